"""The model straight from its formulas, in float64 and one query at a time: what every backend is
measured against.

Nothing here is shared with `model/`, nothing is quick, and no mask is ever built: a query asks
which keys it may see.
"""

import math

import torch


def may_see(i, j, *, window=None, documents=None, real=None):
    """Return True if the token at place i of a row may attend to the one at place j."""
    return (
        j <= i
        and (window is None or i - j < window)
        and (documents is None or documents[i] == documents[j])
        and (real is None or bool(real[j]))
    )


def attention(q, k, v, visible):
    """q (B, H, T, D), k and v (B, H_kv, S, D), visible(b, i, j) -> (B, H, T, D). A row that sees
    nothing is zero.

    Values may have another size than keys; then the output has theirs.
    """
    group = q.shape[1] // k.shape[1]
    rows = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = [j for j in range(k.shape[2]) if visible(b, i, j)]
                scores = k[b, h // group, seen] @ q[b, h, i] / math.sqrt(q.shape[-1])
                rows.append(scores.softmax(0) @ v[b, h // group, seen])
    return torch.stack(rows).view(*q.shape[:3], -1)


def rotate(x, positions, config):
    """x (B, H, T, D) as complex numbers, each pair turned by its own angle.

    A pair: of two halves, or neighbours.
    """
    half = x.shape[-1] // 2
    angles = positions.double()[:, None, :, None] * torch.tensor(frequencies(config, half))
    pairs = (x[..., 0::2], x[..., 1::2]) if config.rope_interleave else (x[..., :half], x[..., half:])
    turned = torch.complex(*pairs) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1) * rope_factor(config)


def frequencies(config, half):
    """Radians a position, pair by pair; YaRN as its paper writes it (section 3.2), with the bounds
    rounded outwards.
    """
    scaling = config.rope_scaling
    found = []
    for pair in range(half):
        plain = config.rope_theta ** (-pair / half)
        if scaling is None:
            found.append(plain)
        elif scaling.rope_type == "linear":
            found.append(plain / scaling.factor)
        elif scaling.rope_type == "llama3":
            # over a text of training
            turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
            share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
            share = min(1, max(0, share))
            found.append(plain * share + plain / scaling.factor * (1 - share))
        else:
            trained = scaling.original_max_position_embeddings
            log_base = math.log(config.rope_theta)

            def pair_of(turns, trained=trained, log_base=log_base):
                return half * math.log(trained / (2 * math.pi * turns)) / log_base

            low = max(0, math.floor(pair_of(scaling.beta_fast)))
            high = min(2 * half - 1, math.ceil(pair_of(scaling.beta_slow)))
            slow = min(1, max(0, (pair - low) / ((high - low) or 0.001)))
            found.append(plain * (1 - slow) + plain / scaling.factor * slow)
    return found


def rope_factor(config):
    scaling = config.rope_scaling
    if scaling is None or scaling.rope_type != "yarn":
        return 1.0
    return 0.1 * math.log(scaling.factor) + 1 if scaling.attention_factor is None else scaling.attention_factor


def norm(x, weight, config, eps=None):
    return x / (x.square().mean(-1, keepdim=True) + (eps or config.rms_norm_eps)).sqrt() * weight


def latent_heads(a, w, config, positions):
    """Queries, keys and values (B, H, T, ·) of one layer's latent attention, in the plain form."""
    B, T, H = *a.shape[:2], config.num_attention_heads
    nope = config.qk_nope_head_dim
    rank = config.kv_lora_rank
    if config.q_lora_rank is None:
        q = a @ w["q_proj.weight"].T
    else:
        q = norm(a @ w["q_a_proj.weight"].T, w["q_a_layernorm.weight"], config, 1e-6) @ w["q_b_proj.weight"].T
    q = q.view(B, T, H, -1).transpose(1, 2)
    both = a @ w["kv_a_proj_with_mqa.weight"].T
    latent = norm(both[..., :rank], w["kv_a_layernorm.weight"], config, 1e-6)
    position = both[:, None, :, rank:]
    made = (latent @ w["kv_b_proj.weight"].T).view(B, T, H, -1).transpose(1, 2)
    position = rotate(position, positions, config).expand(B, H, T, -1)
    q = torch.cat((q[..., :nope], rotate(q[..., nope:], positions, config)), -1)
    return q, torch.cat((made[..., :nope], position), -1), made[..., nope:]


def plain_heads(a, w, config, positions):
    """Queries (B, H, T, D), keys and values (B, H_kv, T, D) of one layer."""
    (B, T, _), D = a.shape, config.head_size
    heads = [(a @ w[f"{p}_proj.weight"].T).view(B, T, -1, D).transpose(1, 2) for p in "qkv"]
    if config.qk_norm:
        heads[:2] = [norm(y, w[f"{p}_norm.weight"], config) for p, y in zip("qk", heads[:2], strict=True)]
    return rotate(heads[0], positions, config), rotate(heads[1], positions, config), heads[2]


def smeared(k, logits, may_mix):
    """Keys (B, H_kv, S, D) of which each is mixed with the one before, where may_mix(b, j)."""
    mixed = k.clone()
    for b, head, j in torch.ones(k.shape[:3]).nonzero().tolist():
        if may_mix(b, j):
            share = logits[head].sigmoid()
            mixed[b, head, j] = share * k[b, head, j] + (1 - share) * k[b, head, j - 1]
    return mixed


MLP = ("gate", "up", "down")


def swiglu(x, gate, up, down):
    """One expert, or the dense layer: x (…, hidden_size) -> the same shape."""
    g = x @ gate.T
    return (g * g.sigmoid() * (x @ up.T)) @ down.T


def experts(x, w, config):
    """One token at a time, and of it one expert at a time: x (B, T, hidden_size) -> the same shape."""
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            chances = (w["mlp.gate.weight"] @ x[b, t]).softmax(0)
            chosen = sorted(range(len(chances)), key=lambda e, chances=chances: -chances[e])[
                : config.num_experts_per_tok
            ]
            total = chances[chosen].sum() if config.norm_topk_prob else 1.0
            for e in chosen:
                matrices = *w["mlp.experts.gate_up_proj"][e], w["mlp.experts.down_proj"][e]
                out[b, t] += chances[e] / total * swiglu(x[b, t], *matrices)
    return out


def logits(lm, input_ids, attention_mask=None, document_ids=None, position_ids=None):
    """Every logit of the model (B, T, V), in float64, from its weights as they are."""
    config = lm.config
    weights = {name: p.detach().double() for name, p in lm.state_dict().items()}
    B, T = input_ids.shape
    positions = torch.arange(T).expand(B, T) if position_ids is None else position_ids.expand(B, T)
    x = weights["model.embed_tokens.weight"][input_ids]
    for n in range(config.num_hidden_layers):
        w = {k.removeprefix(f"model.layers.{n}."): p for k, p in weights.items() if k.startswith(f"model.layers.{n}.")}
        a = norm(x, w["input_layernorm.weight"], config)
        own = {k.removeprefix("self_attn."): p for k, p in w.items()}
        heads = (latent_heads if config.attention == "mla" else plain_heads)(a, own, config, positions)

        def visible(b, i, j, window=config.windows[n]):
            documents, real = (None if x is None else x[b] for x in (document_ids, attention_mask))
            return may_see(i, j, window=window, documents=documents, real=real)

        if config.smear_keys:
            q, k, v = heads
            k = smeared(k, own["smear"], lambda b, j, sees=visible: j > 0 and sees(b, j, j - 1))
            heads = q, k, v
        out = attention(*heads, visible)
        x = x + out.transpose(1, 2).reshape(B, T, -1) @ w["self_attn.o_proj.weight"].T
        a = norm(x, w["post_attention_layernorm.weight"], config)
        x = x + (
            experts(a, w, config) if config.has_experts[n] else swiglu(a, *(w[f"mlp.{p}_proj.weight"] for p in MLP))
        )
    return norm(x, weights["model.norm.weight"], config) @ weights["lm_head.weight"].T
