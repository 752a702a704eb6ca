"""Learners' answers to the exercises on the whole model: mistakes, and other right answers."""

WRONG: dict[str, list[tuple[str, str]]] = {
    "tokenizer": [
        ('[""] * SPECIAL + sorted(set(text))', "sorted(set(text))"),  # characters get PAD's id
        ("sorted(set(text))\n", "sorted(text)\n"),  # each character again and again
        ("sorted(set(text))\n", "list(dict.fromkeys(text))\n"),  # in the order of the text
        ('[""] * (-len(vocabulary) % 64)', '[""] * (64 - len(vocabulary) % 64)'),  # 64 more
        ('[""] * (-len(vocabulary) % 64)', '[""] * (-len(vocabulary) % 32)'),
        ('return vocabulary + [""] * (-len(vocabulary) % 64)', "return vocabulary"),
        ('    if unknown:\n        raise ValueError(f"the vocabulary has no {unknown[0]!r}")\n', ""),  # KeyError
        ('raise ValueError(f"the vocabulary has no {unknown[0]!r}")', "return []"),
        ("{unknown[0]!r}", "this"),  # which one?
        ("[id_of[character] for character in text]", "[id_of[character] for character in sorted(text)]"),
        ("[id_of[character] for character in text]", "[id_of[c] for c in text] + [2]"),
        ('"".join(vocabulary[i] for i in ids)', '" ".join(vocabulary[i] for i in ids)'),
        ('"".join(vocabulary[i] for i in ids)', "[vocabulary[i] for i in ids]"),
        ("enumerate(vocabulary) if token}", "enumerate(vocabulary, start=1) if token}"),
    ],
    "embedding": [
        ("one_hot(ids, len(table))", "one_hot(ids)"),
        ("one_hot.to(table.dtype) @ table", "one_hot @ table"),
        ("return self.weight[ids]", "return self.weight[ids].detach()"),
        ("return self.weight[ids]", "return self.weight.data[ids]"),
        ("return self.weight[ids]", "return self.weight[:, ids]"),
        ("return self.weight[ids]", "return self.weight.T[ids]"),
        ("return self.weight[ids]", "return self.weight[ids - 1]"),
        ("return self.weight[ids]", "return self.weight[ids] * self.weight.shape[1] ** 0.5"),
        ("return self.weight[ids]", "return self.weight[ids].sum(1)"),
        ("return self.weight[ids]", "return self.weight[ids[0]]"),
        ("return self.weight[ids]", "return self.weight[ids.flatten()]"),
        ("one_hot.to(table.dtype) @ table", "one_hot.to(table.dtype) @ table.T"),
        ("one_hot.to(table.dtype) @ table", "one_hot @ table.long()"),
        ("one_hot.to(table.dtype) @ table", "one_hot.float() @ table"),  # a float64 table
        ("one_hot(ids, len(table))", "one_hot(ids)"),  # as many columns as the largest id
        ("one_hot(ids, len(table))", "one_hot(ids, table.shape[1])"),
    ],
    "rmsnorm": [
        ("x.pow(2).mean(-1, keepdim=True) + eps", "x.pow(2).mean(-1, keepdim=True)"),
        ("x.pow(2).mean(-1, keepdim=True) + eps", "x.pow(2).sum(-1, keepdim=True) + eps"),
        ("x.pow(2).mean(-1, keepdim=True) + eps", "x.pow(2).mean(0, keepdim=True) + eps"),
        ("x.pow(2).mean(-1, keepdim=True) + eps", "x.var(-1, keepdim=True) + eps"),  # a LayerNorm's
        ("torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)", "1 / (x.pow(2).mean(-1, keepdim=True).sqrt() + eps)"),
        ("torch.rsqrt(", "torch.sqrt("),
        ("return x * factor, factor", "return x / factor, factor"),
        ("return x * factor, factor", "return x * factor, factor.squeeze(-1)"),
        ("return x * factor, factor", "return (x - x.mean(-1, keepdim=True)) * factor, factor"),
        ("return x * factor, factor", "return factor, x * factor"),
        ("    product = g * normal\n", "    product = g\n"),
        ("value=-1) * factor", "value=1) * factor"),
        ("value=-1) * factor", "value=-1)"),
        ("torch.addcmul(g * weight, normal, along, value=-1) * factor", "g * weight * factor"),  # a constant factor
        ("product @ weight / len(weight)", "product @ weight"),
        ("product.flatten(0, -2).sum(0)", "product.flatten(0, -2).mean(0)"),
        ("product.flatten(0, -2).sum(0)", "product"),
        ("return x_gradient, product.flatten(0, -2).sum(0)", "return product.flatten(0, -2).sum(0), x_gradient"),
    ],
    "mlp": [
        ("F.silu(self.gate_proj(x)) * self.up_proj(x)", "self.gate_proj(x) * F.silu(self.up_proj(x))"),
        ("F.silu(self.gate_proj(x)) * self.up_proj(x)", "F.silu(self.gate_proj(x) * self.up_proj(x))"),
        ("F.silu(self.gate_proj(x)) * self.up_proj(x)", "F.silu(self.gate_proj(x)) + self.up_proj(x)"),
        ("F.silu(self.gate_proj(x)) * self.up_proj(x)", "F.silu(self.gate_proj(x)) @ self.up_proj(x).mT"),
        ("F.silu(self.gate_proj(x)) * self.up_proj(x)", "self.gate_proj(x) * self.up_proj(x)"),
        ("F.silu(self.gate_proj(x)) * self.up_proj(x)", "F.silu(self.gate_proj(x))"),
        ("F.silu(self.gate_proj(x)) * self.up_proj(x)", "F.silu(self.gate_proj(x)) * self.gate_proj(x)"),
        ("F.silu(", "F.relu("),
        ("F.silu(", "F.gelu("),
        ("F.silu(", "F.sigmoid("),
        ("return self.down_proj(", "return x + self.down_proj("),
        (
            "return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))",
            "return F.silu(self.down_proj(self.up_proj(x)))",
        ),
        ("return self.down_proj(", "self.down_proj("),
    ],
    "block": [
        (".view(B, T, -1, self.head_dim)\n        k =", ".view(B, -1, T, self.head_dim).transpose(1, 2)\n        k ="),
        ("            q = self.q_norm(q)\n", ""),
        ("            k = self.k_norm(k)\n", "            k = self.q_norm(k)\n"),
        ("        if self.q_norm is not None and self.k_norm is not None:\n", "        if True:\n"),
        ("k = half_split(k.transpose(1, 2), angle)", "k = k.transpose(1, 2)"),
        ("q = half_split(q.transpose(1, 2), angle)", "q = half_split(q, angle[:, None]).transpose(1, 2) * 0.5"),
        ("v = v.transpose(1, 2)", "v = half_split(v.transpose(1, 2), angle)"),
        ("            k, v = cache.append(k, v)  #", "            cache.append(k, v)  #"),
        ("        if cache is not None:\n", "        if False:\n"),
        ("by_expand(k, groups), by_expand(v, groups)", "k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)"),
        ("by_expand(k, groups), by_expand(v, groups)", "by_expand(v, groups), by_expand(k, groups)"),
        ("out.transpose(1, 2).reshape(B, T, -1)", "out.reshape(B, T, -1)"),
        ("return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))", "return out.transpose(1, 2).reshape(B, T, -1)"),
        (", mask)  # (B, H, T, D)", ", mask | True)  # (B, H, T, D)"),  # the future is seen
        ("x = x + self.self_attn(", "x = self.self_attn("),
        ("self.self_attn(self.input_layernorm(x), angle", "self.self_attn(x, angle"),
        ("return x + self.mlp(self.post_attention_layernorm(x))", "return self.mlp(self.post_attention_layernorm(x))"),
        ("self.mlp(self.post_attention_layernorm(x))", "self.mlp(self.input_layernorm(x))"),
        (
            "return x + self.mlp(self.post_attention_layernorm(x))",
            "return self.post_attention_layernorm(x + self.mlp(x))",
        ),
    ],
    "loss": [
        ("largest = logits.amax(-1, keepdim=True)", "largest = torch.zeros(len(logits), 1)"),
        ("largest = logits.amax(-1, keepdim=True)", "largest = logits.amax()"),  # of all rows: exp gives 0
        ("(total.log() + largest - logits.gather(1, right))", "(total.log() - logits.gather(1, right))"),
        ("(total.log() + largest - logits.gather(1, right))", "(logits.gather(1, right) - total.log() - largest)"),
        (
            "    losses = (total.log() + largest - logits.gather(1, right)) * trained\n",
            "    losses = total.log() + largest - logits.gather(1, right)\n",
        ),
        ("return losses.sum(), ", "return losses.mean(), "),
        ("return losses.sum(), ", "return losses, "),
        ("return losses.sum(), ", "return losses.sum().item(), "),
        ("powers * (trained / total)", "powers / total"),
        ("powers * (trained / total)", "powers * trained"),
        ("scatter_add(1, right, -trained)", "scatter_add(1, right, trained)"),
        ("gradient.scatter_add(1, right, -trained)", "gradient"),
        ("gradient.scatter_add(1, right, -trained)", "gradient.scatter(1, right, -trained)"),
        ("gradient.scatter_add(1, right, -trained)", "gradient.scatter_add(1, right, -trained) / trained.sum()"),
        ("(logits - largest).exp()", "logits.sub_(largest).exp()"),  # the caller's logits
        ("targets.clamp(min=0)[:, None]", "targets[:, None]"),  # -100 is no column
    ],
    "model": [
        ('("o_proj.weight", "down_proj.weight")', '("o_proj.weight",)'),
        ("std=1 / math.sqrt(weight.shape[1])", "std=1 / math.sqrt(weight.shape[0])"),
        ("std=1 / math.sqrt(weight.shape[1])", "std=0.02"),
        ("            elif weight.ndim > 1:\n", "            else:\n"),  # norms are drawn, too
        ("        self.model.embed_tokens.weight.add_(torch.empty(C).normal_())\n", ""),
        ("torch.empty(C).normal_())", "torch.empty(1).normal_())"),
        ("std=0.1 / math.sqrt(C)", "std=1 / math.sqrt(C)"),
        ("        if not self.config.tie_word_embeddings:\n", "        if True:\n"),
        ("[past:]", "[:T]"),  # new tokens have the first positions
        ("causal_mask(T, past + T)[None, None]", "causal_mask(T, T)[None, None]"),
        ("causal_mask(T, past + T)[None, None]", "causal_mask(T, past + T)[None, None] | True"),
        ("caches[i] if caches else None)", "caches[0] if caches else None)"),
        ("caches[i] if caches else None)", "None)"),
        ("        x = self.model.norm(x)\n", ""),
        ("enumerate(self.model.layers)", "enumerate(self.model.layers[:1])"),
        ("            x = layer(x,", "            layer(x,"),
        ("return self.lm_head(x)", "return self.lm_head(x).softmax(-1)"),
        ("return self.lm_head(x)", "return self.lm_head(x)[:, -1]"),
        ("targets.flatten())\n", "targets.roll(1, 1).flatten())\n"),
    ],
    "batches": [
        ("np.random.default_rng([seed, epoch])\n        offset", "np.random.default_rng(seed)\n        offset"),
        (
            "np.random.default_rng([seed, epoch])\n        offset",
            "np.random.default_rng([epoch, seed])\n        offset",
        ),
        ("        offset = generator.integers(len(stream))\n", "        offset = 0\n"),
        ("generator.permutation(-(-len(stream) // length))", "range(-(-len(stream) // length))"),
        ("generator.permutation(-(-len(stream) // length))", "generator.permutation(len(stream) // length)"),
        ("min(row * length + length, len(stream))", "row * length + length"),  # some tokens twice
        ("constant_values=PAD", "constant_values=BOS"),
        ("(0, length - len(ids)), constant", "(length - len(ids), 0), constant"),
        ("                batch = []\n    # </solution>", "                batch = batch[1:]\n    # </solution>"),
        (
            "        generator = np.random",
            "        batch = []\n        generator = np.random",
        ),  # left-over rows are lost
        ("for epoch in count():", "for epoch in range(2):"),
        ("torch.from_numpy(np.stack(batch))", "torch.from_numpy(np.stack(batch)).float()"),
        ("F.pad(ids[:, 1:], (0, 1), value=IGNORED)", "ids.roll(-1, 1)"),  # the row's first id comes last
        ("F.pad(ids[:, 1:], (0, 1), value=IGNORED)", "ids.clone()"),  # each predicts itself
        ("F.pad(ids[:, 1:], (0, 1), value=IGNORED)", "F.pad(ids[:, :-1], (1, 0), value=IGNORED)"),
        ("(targets == BOS) | (targets == PAD)", "targets == PAD"),
        ("(targets == BOS) | (targets == PAD)", "(ids == BOS) | (ids == PAD)"),
        ("(targets == BOS) | (targets == PAD)", "targets < 3"),  # EOS must be learned
    ],
    "loop": [
        ("(step + 1) / max(1, training.warmup_steps)", "step / max(1, training.warmup_steps)"),  # step 0 does nothing
        ("(step + 1) / max(1, training.warmup_steps)", "(step + 1) / training.warmup_steps"),
        ("min(1.0, (step + 1)", "max(1.0, (step + 1)"),
        ("max(1, training.max_steps - 1)", "training.max_steps"),
        ("    return warmup * (", "    return min(warmup, "),
        ("(1 - training.final_lr_fraction) * shape", "shape"),
        ("(loss_sum * (1 / trained)).backward()", "loss_sum.backward()"),
        ("int((targets != IGNORED).sum())", "targets.numel()"),
        ("        nn.utils.clip_grad_norm_(model.parameters(), training.grad_clip)\n", ""),
        (
            "nn.utils.clip_grad_norm_(model.parameters(), training.grad_clip)",
            "nn.utils.clip_grad_value_(model.parameters(), training.grad_clip)",
        ),
        ('rate * group["highest"]', "rate * training.lr"),  # the embedding has a rate of its own
        ('            group["lr"] = rate * group["highest"]\n', '            group["lr"] = group["highest"]\n'),
        ("        optimizer.zero_grad()\n", ""),
        ("        optimizer.step()\n", ""),
        ("float(loss_sum.detach() / trained)", "loss_sum / trained"),
        ("float(loss_sum.detach() / trained)", "float(loss_sum.detach())"),
        (
            "for step in range(training.max_steps):\n        ids = next(batches)\n",
            "for step, ids in enumerate(batches):\n        if step == training.max_steps:\n            break\n",
        ),
        ("targets = targets_of(ids)", "targets = ids"),
    ],
}

RIGHT: dict[str, list[str]] = {
    "embedding": [
        """
class Embedding(torch.nn.Module):
    def __init__(self, vocab_size, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(vocab_size, size))

    def forward(self, ids):
        return F.embedding(ids, self.weight)


def by_product(ids, table):
    return torch.eye(len(table), dtype=table.dtype)[ids] @ table
"""
    ],
    "loss": [
        """
def cross_entropy(logits, targets):
    trained = targets != -100
    log_p = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    p = log_p.exp() * trained[:, None]
    rows = torch.arange(len(logits))[trained]
    loss = -log_p[rows, targets[trained]].sum()
    p[rows, targets[trained]] -= 1
    return loss, p


class HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, head, targets):
        loss, gradient = cross_entropy(hidden @ head.T, targets)
        ctx.save_for_backward(gradient @ head, gradient.T @ hidden)
        return loss

    @staticmethod
    def backward(ctx, scale):
        a, b = ctx.saved_tensors
        return a * scale, b * scale, None
"""
    ],
}
