"""Learners' mistakes in notebooks 10 and 10b: a change (right, wrong) of the notebook's solution,
a function without a name, or the code of a whole answer. RIGHT: other answers that a check must
accept.
"""

SDPA = "scaled_dot_product_attention(q, k, v, is_causal=True)"
LARGEST = "largest = largest, scores.amax(1, keepdim=True).clamp(min=largest)"
SWITCH = """
def by_kernel(q, k, v, name):
    torch.backends.cuda.enable_flash_sdp(name == "flash")
    torch.backends.cuda.enable_math_sdp(True)
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    {after}
    return out
"""
KV = "config.num_key_value_heads"
BEFORE = "x = x + attention(norm1(x))\n        return x + mlp(norm2(x))"
AFTER = "x = x + norm1(attention(x))\n        return x + norm2(mlp(x))"
SUM = "x = norm1(x + attention(x))\n    return norm2(x + mlp(x))"

WRONG: dict[str, list[str | tuple[str, str]]] = {
    "10.1": [
        ("transpose(1, 2)", "transpose(0, 1)"),
        ("transpose(1, 2)", "transpose(1, 3)"),
        ("transpose(1, 2)", "transpose(2, 3)"),
        (".transpose(1, 2)", ""),
        ("flatten(2)", "flatten(1)"),
        ("flatten(2)", "flatten()"),
        ("flatten(2)", "flatten(0, 1)"),
        ("flatten(2)", "view(out.shape[0], out.shape[2], -1)"),
        ("flatten(2)", "reshape(2, 6, 32)"),
        "lambda out: out.reshape(out.shape[0], out.shape[2], -1)",
        "lambda out: out.permute(0, 2, 3, 1).flatten(2)",
        "lambda out: out.mean(1)",
        "lambda out: out[:, 0]",
        "lambda out: out.transpose(1, 2).flip(2).flatten(2)",
    ],
    "10.2": [
        "lambda x, groups: x",
        "lambda x, groups: x.repeat(1, groups, 1, 1)",
        "lambda x, groups: torch.cat([x] * groups, dim=1)",
        "lambda x, groups: torch.stack([x] * groups, dim=1).flatten(1, 2)",
        "lambda x, groups: x.repeat_interleave(groups, dim=0)",
        "lambda x, groups: x.repeat_interleave(groups, dim=2)",
        "lambda x, groups: x.repeat_interleave(groups, dim=3)",
        "lambda x, groups: x.repeat_interleave(2, dim=1)",
        "lambda x, groups: x.repeat_interleave(groups, dim=1).flip(1)",
        "lambda x, groups: x.repeat_interleave(groups, dim=1) / groups",
        "lambda x, groups: x.tile(groups, 1, 1)",
        ("reshape", "view"),
        ("x[:, :, None].expand(B, H_kv, groups", "x[:, None].expand(B, groups, H_kv"),
        (".reshape(B, H_kv * groups, S, D)", ""),
        ("reshape(B, H_kv * groups, S, D)", "flatten(2, 3)"),
    ],
    "10.3": [
        ("real[:, None, None, :]", "real"),
        ("real[:, None, None, :]", "real[:, None, :, None]"),
        ("real[:, None, None, :]", "real[:, None, :]"),
        ("real[:, None, None, :]", "real[:, :, None]"),
        ("real[:, None, None, :]", "real[:, :, None, None]"),
        ("real[:, None, None, :]", "real[None, None]"),
        ("~real", "real"),
        ('float("-inf")', "0.0"),
        ('float("-inf")', "-1e9"),
        ('float("-inf")', "-1.0"),
        ('float("-inf")', 'float("inf")'),
        ('float("-inf")', "torch.nan"),
        ("return ", ""),
        ("[:, None, None, :]", "[:1, None, None, :]"),  # the padding of text 0
        "lambda scores, real: scores * real[:, None, None, :]",
        "lambda scores, real: scores.masked_fill(~(real[:, None, :, None] & real[:, None, None]), -torch.inf)",
    ],
    "10.4": [
        ("[:, None]", ""),
        ("[:, None]", "[None]"),
        ("[:, None]", "[None, :, :]"),
        ("[:, None]", "[:, None].conj()"),
        ("[:, None]", "[: x.shape[2]]"),
        ("[:, None]", "[:1, None]"),  # all tokens turn as token 0
        ("[:, None]", "[:, :, None]"),
        ("torch.ones_like(angles)", "angles"),
        ("pairs * turns", "pairs + turns"),
        ("pairs * turns", "pairs / turns"),
        ("pairs * turns", "turns * turns"),
        ("unflatten(-1, (-1, 2))", "unflatten(-1, (2, -1)).mT.contiguous()"),  # halves
        (".flatten(-2)", ""),
        (".flatten(-2)", ".mT.flatten(-2)"),
        ("torch.view_as_real(pairs * turns).flatten(-2)", "(pairs * turns).real"),
    ],
    "10.5": [
        "lambda H, H_kv: list(range(H))",
        "lambda H, H_kv: list(range(H))[::-1]",
        "lambda H, H_kv: [h % H_kv for h in range(H)]",
        "lambda H, H_kv: [h // (H // H_kv) for h in range(H)]",
        "lambda H, H_kv: [h % H_kv * (H // H_kv) + h // H_kv for h in range(H)]",  # the other direction
        "lambda H, H_kv: [0, 2, 1, 3]",
        "lambda H, H_kv: list(range(0, H, 2)) + list(range(1, H, 2))",
        "lambda H, H_kv: sorted(range(H), key=lambda h: h // H_kv)",
        "lambda H, H_kv: sorted(range(H), key=lambda h: -(h % H_kv))",
        ("group * H_kv + head", "head * H_kv + group"),
        ("group * H_kv + head", "group * H // H_kv + head"),
        ("range(H // H_kv)", "range(H_kv)"),
        ("range(H_kv)", "range(H)"),
        ("return ", ""),
    ],
    "10.6": [
        ("triu(1)", "triu()"),  # not even itself
        ("triu(1)", "triu(2)"),
        ("triu(1)", "tril()"),
        ("triu(1)", "tril(-1)"),
        ('float("-inf")', "0.0"),
        ('float("-inf")', "-10.0"),
        (" / q.shape[-1] ** 0.5", ""),
        (" / q.shape[-1] ** 0.5", " / q.shape[-1]"),
        (" / q.shape[-1] ** 0.5", " / q.shape[-2] ** 0.5"),
        ("dim=-1", "dim=-2"),
        ("dim=-1", "dim=1"),
        (" @ v", ""),
        ("k.mT", "q.mT"),
        "lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).tril() @ v",
        "lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).tril().softmax(-1) @ v",
        "lambda q, k, v: (lambda w: w / w.sum(-1, keepdim=True) @ v)"
        "((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).tril())",
    ],
    "10.7": [
        ("q.shape[-1]", "8"),
        ("q.shape[-1]", "16"),
        ("q.shape[-1]", "q.shape[-2]"),
        ("q.shape[-1]", "k.shape[-2]"),
        ("q.shape[-1]", "q.shape[1]"),
        ("q.shape[-1]", "(q.shape[1] * q.shape[-1])"),
        ("** 0.5", ""),
        ("** 0.5", "** -0.5"),
        ("** 0.5", "** 2"),
        (" / q.shape[-1] ** 0.5", ""),
        ("/ q", "* q"),
        ("k.mT", "k"),
        ("q @ k.mT", "k @ q.mT"),
        ("q @ k.mT / q.shape[-1] ** 0.5", "(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)"),
    ],
    "10.8": [
        ("dim=-1", "dim=-2"),
        ("dim=-1", "dim=0"),
        ("dim=-1", "dim=1"),
        ("dim=-1", "dim=2"),
        ("dim=-1", "dim=3"),
        "lambda scores: scores.exp()",
        "lambda scores: scores.exp() / scores.exp().sum()",
        "lambda scores: scores / scores.sum(-1, keepdim=True)",
        "lambda scores: scores.log_softmax(-1)",
        "lambda scores: scores.flatten(1).softmax(-1).view_as(scores)",
        "lambda scores: scores.sigmoid()",
        "lambda scores: scores.exp() / scores.exp().sum(-2, keepdim=True)",
        "lambda scores: scores.softmax(3 if scores.ndim == 4 else 1)",
    ],
    "10b.1": [
        "lambda cache, keep: cache[:, :, -keep:]",
        "lambda cache, keep: cache[:, :, :keep]",
        "lambda cache, keep: cache[:, :, cache.shape[2] - keep :]",
        "lambda cache, keep: cache[:, :, keep:]",
        "lambda cache, keep: cache[:, -keep:]",
        "lambda cache, keep: cache[..., -keep:]",
        "lambda cache, keep: cache[:, :, -keep:] if keep > 1 else cache[:, :, :0]",
        "lambda cache, keep: cache[:, :, -max(keep, 1) :]",
        "lambda cache, keep: cache[:, :, -keep - 1 :]",
        "lambda cache, keep: cache[:, :, 1 - keep :]",
        "lambda cache, keep: cache[:, :, -keep:] if keep else cache[:, :, -1:]",
        "lambda cache, keep: cache[:, :, abs(cache.shape[2] - keep) :]",
        "lambda cache, keep: cache[:, :, max(1, cache.shape[2] - keep) :]",
        "lambda cache, keep: cache[:, :, max(0, cache.shape[1] - keep) :]",
    ],
    "10b.2": [
        ("tril(S - T)", "tril()"),
        ("tril(S - T)", "tril(T - S)"),
        ("tril(S - T)", "tril(S)"),
        ("tril(S - T)", "tril(S - T - 1)"),
        ("tril(S - T)", "tril(S - T + 1)"),
        ("tril(S - T)", "triu(S - T)"),
        ("q, k, v, mask", "q, k, v"),
        ("q, k, v, mask", "q, k, v, ~mask"),
        ("q, k, v, mask", "q, k, v, mask.float()"),  # added, not forbidden
        ("q, k, v, mask", "q, k, v, mask, scale=1.0"),
        ("q, k, v, mask", "q, k[:, :, -T:], v[:, :, -T:], is_causal=True"),
        "lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)",
        "lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)",
        "lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] == k.shape[2])",
    ],
    "10b.3": [
        "lambda scores, allowed: scores.softmax(-1) * allowed",
        "lambda scores, allowed: scores.masked_fill(~allowed, -torch.inf).softmax(-1)",
        "lambda scores, allowed: scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1)",
        "lambda scores, allowed: (scores - 1e3 * ~allowed).softmax(-1) * allowed",
        "lambda scores, allowed: (scores + (~allowed).to(scores.dtype) * torch.finfo(scores.dtype).min)"
        ".softmax(-1) * allowed",
        "lambda scores, allowed: scores.masked_fill(~allowed, -10_000).softmax(-1) * allowed",
        "lambda scores, allowed: scores.masked_fill(allowed, -torch.inf).softmax(-1).nan_to_num(0)",
        "lambda scores, allowed: scores.masked_fill(~allowed, -torch.inf).softmax(-2).nan_to_num(0)",
        "lambda scores, allowed: scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(1)",
        "lambda scores, allowed: scores.exp() * allowed / (scores.exp() * allowed).sum(-1, keepdim=True)",
        "lambda scores, allowed: scores.masked_fill(~allowed, 0).softmax(-1) * allowed",
        "lambda scores, allowed: scores.masked_fill(~allowed, -torch.inf).sigmoid()",
        ("weights.masked_fill(~allowed, 0.0)", "weights.masked_fill(allowed, 0.0)"),
        ("weights.masked_fill(~allowed, 0.0)", "weights * allowed"),  # NaN * 0
    ],
    "10b.7": [
        ("2 * 2 *", "2 *"),
        ("2 * 2 *", "2 * 4 *"),
        ("2 * 2 *", ""),
        ("layers * ", ""),
        ("* kv_heads * head_dim", "* heads * head_dim"),
        ("* kv_heads * head_dim", "* head_dim"),
        ("* kv_heads * head_dim", "* kv_heads"),
        ("* kv_heads * head_dim", "* (heads + kv_heads) * head_dim"),
        ("100 * kv_heads / heads", "kv_heads / heads"),
        ("100 * kv_heads / heads", "100 * heads / kv_heads"),
        ("100 * kv_heads / heads", "100 * kv_heads // heads * 2"),
        ("100 * kv_heads / heads", "100 - 100 * kv_heads / heads"),
        ("kv_heads * head_dim, 100", "kv_heads * head_dim / 1024, 100"),
        (", 100 * kv_heads / heads", ""),
    ],
    "10b.4": [
        ("(scores - largest).exp()", "scores.exp()"),
        ("(old - largest).exp()", "1.0"),  # nothing shrinks
        ("(old - largest).exp()", "(largest - old).exp()"),
        ("shrink * total", "total"),
        ("shrink * mixed", "mixed"),
        (".clamp(min=largest)", ""),  # the largest of this piece only
        (LARGEST, "largest = largest, scores.amax().clamp(min=largest)"),  # one for all rows
        (LARGEST, "largest = largest, scores.amin(1, keepdim=True).clamp(min=largest)"),
        (LARGEST, "largest = largest, scores.amax(0, keepdim=True).clamp(min=largest)"),
        ("torch.finfo(torch.float32).min", "float('-inf')"),  # hidden pieces
        ("torch.finfo(torch.float32).min", "0.0"),
        ("torch.finfo(torch.float32).min", "-100.0"),
        ("powers.sum(1, keepdim=True)", "powers.sum()"),
        ("return mixed / total", "return mixed"),
        ("shrink * total + powers.sum(1, keepdim=True)", "shrink * total + 1"),
        "def mix_pieces(pieces):\n    return sum(s.softmax(1) @ v for s, v in pieces) / len(pieces)",
        "def mix_pieces(pieces):\n    s = torch.cat([s for s, _ in pieces], 1).exp()\n"
        "    return s @ torch.cat([v for _, v in pieces]) / s.sum(1, keepdim=True)",
    ],
    "10b.5": [
        "def stretched(D, trained, longest):\n    return 10_000 ** (-torch.arange(0, D, 2) / D)",
        "def stretched(D, trained, longest):\n    return 10_000 ** (-torch.arange(0, D, 2) / D) * trained / longest",
        "def stretched(D, trained, longest):\n"
        "    return (10_000 * (longest / trained) ** (D / (D - 2))) ** (-torch.arange(0, D, 2) / D)",
        ("usual * trained / longest)", "usual * longest / trained)"),
        ("turns >= 1", "turns < 1"),
        ("turns >= 1", "turns >= 2 * torch.pi"),
        ("turns >= 1", "turns >= 0.5"),
        ("/ (2 * torch.pi)", ""),
        ("trained / (2 * torch.pi)", "longest / (2 * torch.pi)"),
        ("trained / (2 * torch.pi)", "trained / torch.pi"),
        ("torch.arange(0, D, 2)", "torch.arange(D // 2)"),  # exponents of half the size
        ("torch.arange(0, D, 2)", "torch.arange(D)"),
        ("(-torch", "(torch"),  # wavelengths
        ("10_000", "500_000"),
        ("usual * trained / longest)", "0 * usual)"),
        ("usual * trained / longest)", "usual - (longest - trained))"),
    ],
    "10b.6": [
        "def by_kernel(q, k, v, name):\n    with torch.backends.cuda.sdp_kernel("
        'enable_math=name == "math", enable_flash=name == "flash", enable_mem_efficient=False):\n'
        f"        return {SDPA}",
        f"def by_kernel(q, k, v, name):\n    return {SDPA}",
        SWITCH.format(after="pass"),
        SWITCH.format(after="torch.backends.cuda.enable_flash_sdp(True)"),  # not if it stops
        SWITCH.format(after="torch.backends.cuda.enable_math_sdp(False)"),
        ('"math": SDPBackend.MATH', '"math": SDPBackend.FLASH_ATTENTION'),
        ('"flash": SDPBackend.FLASH_ATTENTION', '"flash": SDPBackend.MATH'),
        ('"flash": SDPBackend.FLASH_ATTENTION', '"flash": SDPBackend.EFFICIENT_ATTENTION'),
        ('"flash": SDPBackend.FLASH_ATTENTION', '"flash": SDPBackend.CUDNN_ATTENTION'),
        ("kernels[name]", "list(kernels.values())"),
        ("kernels[name]", "name"),
        ("is_causal=True", "is_causal=False"),
        ("return scaled", "out = scaled"),
        ("kernels[name]", "kernels"),
        ("        return", "        pass\n    return"),  # after the block
        f"def by_kernel(q, k, v, name):\n    sdpa_kernel(SDPBackend.MATH)\n    return {SDPA}",
    ],
    "10b.8": [
        (KV, "config.num_attention_heads"),
        (KV, "(config.num_attention_heads - config.num_key_value_heads)"),
        (KV, "config.num_attention_heads // config.num_key_value_heads"),
        ("2 * 2 *", "2 *"),
        ("2 * 2 *", "2 * 4 *"),
        ("2 * 2 *", ""),
        ("config.num_hidden_layers * ", ""),
        ("* config.head_size", ""),
        ("heads * config.head_size", "config.hidden_size"),
        ("config.head_size", "(config.hidden_size // config.num_attention_heads)"),
        ("memory // ", "memory / "),
        ("memory // ", "1 + memory // "),
        "def tokens_that_fit(config, memory):\n    size = 4 * config.num_hidden_layers"
        " * config.num_key_value_heads * config.head_size\n    return -(-memory // size)",
        ("memory // ", "8 * memory // "),  # bits
        "def tokens_that_fit(config, memory):\n    size = 4 * config.num_hidden_layers"
        " * config.num_key_value_heads * config.head_size\n    return max(1, memory // size)",
    ],
    "10b.9": [
        (BEFORE, AFTER),
        (BEFORE, SUM.replace("\n    ", "\n        ")),
        (AFTER, BEFORE),
        (AFTER, SUM.replace("\n    ", "\n        ")),  # the note
        (SUM, AFTER.replace("\n        ", "\n    ")),
        (SUM, BEFORE.replace("\n        ", "\n    ")),
        (AFTER, AFTER.replace("norm1", "norm").replace("norm2", "norm1").replace("norm(", "norm2(")),
        (BEFORE, BEFORE.replace("norm1", "norm").replace("norm2", "norm1").replace("norm(", "norm2(")),
        (SUM, SUM.replace("norm2", "norm1")),
        (BEFORE, "return x + attention(norm1(x)) + mlp(norm2(x))"),  # side by side
        (AFTER, "return x + norm1(attention(x)) + norm2(mlp(x))"),
        (AFTER, "x = x + norm1(attention(x))\n        return norm2(mlp(x))"),
        (SUM, "x = norm1(x) + attention(x)\n    return norm2(x) + mlp(x)"),
        (SUM, "return norm2(x + mlp(x + attention(x)))"),
        (AFTER, "return x + norm2(mlp(norm1(attention(x))))"),
        (BEFORE, "x = norm1(x)\n        x = x + attention(x)\n        x = norm2(x)\n        return x + mlp(x)"),
    ],
}

RIGHT: dict[str, list[str]] = {
    "10b.4": [
        "def mix_pieces(pieces):\n    s = torch.cat([s for s, _ in pieces], 1)\n"
        "    return s.softmax(1) @ torch.cat([v for _, v in pieces])",
    ],
    "10b.5": [
        "def stretched(D, trained, longest):\n    usual = [10_000 ** (-2 * i / D) for i in range(D // 2)]\n"
        "    slow = 2 * torch.pi / trained\n"
        "    return torch.tensor([f if f >= slow else f * trained / longest for f in usual])",
    ],
    "10b.6": [
        SWITCH.format(after="pass")
        .replace("    out = ", "    try:\n        return ")
        .replace("    pass\n    return out", "    finally:\n        torch.backends.cuda.enable_flash_sdp(True)"),
        "from torch.nn import attention\n\ndef by_kernel(q, k, v, name):\n"
        "    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()\n"
        '    kind = "MATH" if name == "math" else "FLASH_ATTENTION"\n'
        "    with attention.sdpa_kernel([getattr(attention.SDPBackend, kind)]):\n"
        "        return scaled_dot_product_attention(q, k, v, mask)",
    ],
    "10b.8": [
        "tokens_that_fit = lambda c, m: int(m / (4 * c.num_hidden_layers * c.num_key_value_heads * c.head_size))",
    ],
    "10b.9": [
        """
def layer_step(norm, x, attention, mlp, norm1, norm2):
    for part, n in ((attention, norm1), (mlp, norm2)):
        if norm == "sum":
            x = n(x + part(x))
        else:
            x = x + (part(n(x)) if norm == "before" else n(part(x)))
    return x
"""
    ],
}
