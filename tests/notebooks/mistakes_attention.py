"""Learners' answers to the exercises on attention: mistakes, and other right answers."""

# attention for the queries x, without tiles
PLAIN = "(x @ k.mT / math.sqrt(x.shape[3])).softmax(dim=-1) @ v"
WRONG = {
    "softmax": [
        ("(x - x.amax(dim=-1, keepdim=True)).exp()", "x.exp()"),  # overflows
        # of the whole tensor: rows far below it vanish
        ("x.amax(dim=-1, keepdim=True)", "x.max()"),
        ("weights.sum(dim=-1, keepdim=True)", "weights.sum()"),
        ("weights.sum(dim=-1, keepdim=True)", "weights.sum(dim=0, keepdim=True)"),
        ("(x - x.amax(dim=-1, keepdim=True)).exp()", "x.sub_(x.amax(dim=-1, keepdim=True)).exp()"),
        ("return weights / weights.sum(dim=-1, keepdim=True)", "return weights"),
        ("weights.sum(dim=-1, keepdim=True)", "weights.sum(dim=-1)"),
        ("weights.sum(dim=-1, keepdim=True)", "weights.sum(dim=1, keepdim=True)"),  # right for two dimensions
        ("weights.sum(dim=-1, keepdim=True)", "weights.amax(dim=-1, keepdim=True)"),  # the largest is 1
        ("weights.sum(dim=-1, keepdim=True)", "(weights.sum(dim=-1, keepdim=True) + 1e-3)"),
        ("x.amax(dim=-1, keepdim=True)", "x.amax(dim=0, keepdim=True)"),  # of the column
        ("x.amax(", "x.amin("),  # -inf in a row
        ("(x - x.amax(dim=-1, keepdim=True)).exp()", "x.clamp(max=80).exp()"),  # 1000 and 1001 become equal
        ("(x - x.amax(dim=-1, keepdim=True)).exp()", "2 ** (x - x.amax(dim=-1, keepdim=True))"),
        (
            "return weights / weights.sum(dim=-1, keepdim=True)",
            "return (weights / weights.sum(dim=-1, keepdim=True)).log()",
        ),
    ],
    "causal_mask": [
        ("torch.arange(keys - queries, keys)", "torch.arange(queries)"),  # wrong with a cache
        (">= torch", "> torch"),  # not even itself
        (">= torch", "<= torch"),  # the future instead of the past
        ("query_positions >= torch.arange(keys)", "(query_positions >= torch.arange(keys)).float()"),
        ("(keys - queries, keys)", "(keys - queries + 1, keys + 1)"),  # one too far
        ("(keys - queries, keys)", "(queries, keys)"),
        ("[:, None]  #", "[None]  #"),  # a row against a row
        (">= torch.arange(keys)", ">= torch.arange(queries)"),
        (">= torch", "== torch"),  # only itself
        (
            "return query_positions >= torch.arange(keys)",
            "return torch.ones(queries, keys, dtype=torch.bool).tril()",
        ),  # from the upper left corner, as is_causal does
        ("return query_positions >= torch.arange(keys)", "return torch.ones(queries, keys).tril(keys - queries)"),
        ("return query_positions >= torch.arange(keys)", "return torch.ones(queries, keys, dtype=torch.bool)"),
        # True = may not look
        ("return query_positions >= torch.arange(keys)", "return ~(query_positions >= torch.arange(keys))"),
        ("return query_positions >= torch.arange(keys)", "return (query_positions >= torch.arange(keys)).T"),
        (
            "query_positions >= torch.arange(keys)",
            "torch.zeros(queries, keys).masked_fill(query_positions < torch.arange(keys), -torch.inf)",
        ),  # to be added to scores
    ],
    "attention": [
        (" * q.shape[-1] ** -0.5", ""),
        ("q.shape[-1] ** -0.5", "q.shape[-1] ** -1"),
        ("q.shape[-1]", "k.shape[-2]"),  # the number of keys
        ("~mask, ", "mask, "),  # True = may *not* look, as in torch.nn.MultiheadAttention
        ("scores.masked_fill(~mask, -torch.inf)", "scores"),
        ("-torch.inf", "0.0"),
        ("dim=-1", "dim=-2"),
        ("return weights @ v", "return weights.masked_fill(~mask, 0) @ v + 0 * scores.mean()"),
        ("-torch.inf", "-10.0"),  # a score like any other
        # overflows
        ("torch.softmax(scores, dim=-1)", "scores.exp() / scores.exp().sum(dim=-1, keepdim=True)"),
        ("return weights @ v", "return weights.detach() @ v"),  # nothing for q and k to learn from
        ("return weights @ v", "return torch.tensor((weights @ v).tolist())"),
        (
            "scores.masked_fill(~mask, -torch.inf)\n    weights = torch.softmax(scores, dim=-1)",
            "torch.softmax(scores, dim=-1) * mask\n    weights = scores / scores.sum(dim=-1, keepdim=True)",
        ),
    ],
    "repeat_kv": [
        ("torch.repeat_interleave(x, groups, dim=1)", "x.repeat(1, groups, 1, 1)"),  # tiled
        ("torch.repeat_interleave(x, groups, dim=1)", "torch.repeat_interleave(x, groups, dim=2)"),
        (
            "x[:, :, None].expand(batch, kv_heads, groups, length, size)",
            "x[:, None].expand(batch, groups, kv_heads, length, size)",
        ),
        ("return x.reshape(batch, kv_heads * groups, length, size)", "return x.view(batch, -1, length, size)"),
        (
            "q.reshape(batch, kv_heads, heads // kv_heads, queries, size)",
            "q.reshape(batch, heads // kv_heads, kv_heads, queries, size).transpose(1, 2)",
        ),
        (" / math.sqrt(size)", ""),
        ("torch.repeat_interleave(x, groups, dim=1)", "x"),
        ("torch.repeat_interleave(x, groups, dim=1)", "torch.repeat_interleave(x, groups, dim=0)"),
        ("return x.reshape(batch, kv_heads * groups, length, size)", "return x"),
        (
            "return x.reshape(batch, kv_heads * groups, length, size)",
            "return x.reshape(batch, length, kv_heads * groups, size).transpose(1, 2)",
        ),
        ("math.sqrt(size)", "size"),
        ("math.sqrt(size)", "math.sqrt(keys)"),
        ("return scores.reshape(batch, heads, queries, keys)", "return scores"),
        (
            "q.reshape(batch, kv_heads, heads // kv_heads, queries, size)\n    scores = q @ k[:, :, None]",
            "q.reshape(batch, heads // kv_heads, kv_heads, queries, size)\n    scores = q @ k[:, None]",
        ),  # query head h reads key head h % H_kv
    ],
    "rope": [
        ("torch.arange(length)[:, None]", "torch.arange(1, length + 1)[:, None]"),
        ("torch.arange(length)[:, None]", "torch.arange(length)"),
        ("torch.polar(torch.ones_like(angle), angle)", "torch.polar(1, angle)"),
        ("torch.arange(0, size, 2) / size", "torch.arange(0, size // 2) / size"),
        # turns backwards
        ("a * angle.cos() - b * angle.sin()", "a * angle.cos() + b * angle.sin()"),
        # swapped halves
        ("b * angle.cos() + a * angle.sin()", "a * angle.cos() + b * angle.sin()"),
        ("x.unflatten(-1, (-1, 2))", "x.unflatten(-1, (2, -1)).transpose(-1, -2)"),  # half-split
        ("torch.view_as_real(turned).flatten(-2)", "torch.cat((turned.real, turned.imag), -1)"),
        # back
        ("torch.stack((first, first + size // 2), dim=1).flatten()", "torch.cat((2 * first, 2 * first + 1))"),
        ("torch.stack((first, first + size // 2), dim=1).flatten()", "torch.stack((first, first), dim=1).flatten()"),
        ("1.0 / theta **", "theta **"),
        ("torch.arange(0, size, 2) / size", "torch.arange(0, size, 2)"),
        ("torch.arange(length)[:, None] * frequencies", "torch.arange(length)[:, None] + frequencies"),
        ("torch.arange(length)[:, None] * frequencies", "(torch.arange(length)[:, None] * frequencies).repeat(1, 2)"),
        ("torch.polar(torch.ones_like(angle), angle)", "torch.polar(torch.ones_like(angle), -angle)"),
        ("torch.view_as_real(turned).flatten(-2)", "turned.real"),
        ("return torch.stack((first, first + size // 2), dim=1).flatten()", "return torch.arange(size)"),
    ],
    "masks": [
        ("[:, None, None, :]", "[:, None, :, None]"),  # hides queries
        ("real.bool()[:, None, None, :]", "real.bool()"),
        ("real.bool()[", "(~real.bool())["),
        ("causal & padding", "causal | padding"),
        (".tril()", ".triu()"),
        ("weights.masked_fill(~mask, 0.0)", "weights"),  # NaN
        ("-torch.inf", "-1.0"),
        (
            "scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)\n    return weights.masked_fill(~mask, 0.0)",
            # equal shares of nothing
            "scores.masked_fill(~mask, -1e9).softmax(dim=-1)\n    return weights",
        ),
        # zeros after the softmax: rows do not sum to 1
        ("scores.masked_fill(~mask, -torch.inf)", "scores"),
        (
            "scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)\n    return weights.masked_fill(~mask, 0.0)",
            "scores.softmax(dim=-1) * mask\n    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)",
        ),  # a hidden score that is far larger takes everything
        ("return weights.masked_fill(~mask, 0.0)", "return weights.masked_fill(~mask, 0.0).detach()"),
        ("causal & padding_mask(real)", "causal"),
        ("causal & padding_mask(real)", "padding_mask(real)"),
        (".tril()", ".tril(-1)"),  # not even itself
        ("weights.masked_fill(~mask, 0.0)", "weights.nan_to_num(1 / scores.shape[-1])"),
        ("-torch.inf", "0.0"),
    ],
    "online_softmax": [
        ("total * correction", "total"),
        ("out * correction", "out"),
        ("(m - new_m).exp()", "(new_m - m).exp()"),
        ("torch.maximum(m, scores.amax(dim=-1, keepdim=True))", "scores.amax(dim=-1, keepdim=True)"),
        ("        m = new_m\n", ""),
        ("scores = q @ keys", "scores = (q @ k.transpose(-2, -1))[..., start : start + tile]; q @ keys"),
        ("values = v[:, :, start : start + tile]", "values = v[:, :, start:]"),
        # no tiles: an ordinary softmax for one query at a time, or for eight; PyTorch's own kernel
        *(("return out / total", f"return torch.cat([{PLAIN} for x in q.split({n}, dim=2)], dim=2)") for n in (1, 8)),
        ("return out / total", "return torch.nn.functional.scaled_dot_product_attention(q, k, v)"),
        (" / math.sqrt(q.shape[-1])", ""),
        ("weights.sum(dim=-1, keepdim=True)", "weights.mean(dim=-1, keepdim=True)"),
        ("weights.sum(dim=-1, keepdim=True)", "weights.sum()"),
        ("scores.amax(dim=-1, keepdim=True))", "scores.amax())"),  # of all queries
        ("out = out * correction + weights @ values", "out = (out * correction + weights @ values) / total"),
        ("weights = (scores - new_m).exp()", "weights = (scores - m).exp()"),
    ],
    "linear_attention": [
        ("(v[:, :, t] - returned)", "v[:, :, t]"),  # keys that are alike pile up
        ("beta[:, :, t, None] * (v[:, :, t] - returned)", "beta[:, :, t, None] * v[:, :, t] - returned"),
        ("beta[:, :, t, None] * (v", "(v"),
        ("(v[:, :, t] - returned)", "(v[:, :, t] + returned)"),
        ("memory = memory + key * correction[:, :, None]", "memory = key * correction[:, :, None]"),
        ("returned = (memory * key)", "returned = (memory * q[:, :, t, :, None])"),
        ("(memory * q[:, :, t, :, None])", "(memory * key)"),
        ("memory = memory + key * correction[:, :, None]", "memory = memory + key * correction[:, :, None].detach()"),
        # reads before it writes
        ("outputs.append((memory * q", "outputs.append(((memory - key * correction[:, :, None]) * q"),
        ("(shares * (keys @ keys.mT)).tril(-1)", "(keys @ keys.mT).tril(-1)"),
        ("(shares * (keys @ keys.mT)).tril(-1)", "(shares.mT * (keys @ keys.mT)).tril(-1)"),  # β of j
        ("(shares * (keys @ keys.mT)).tril(-1)", "(shares * (queries @ keys.mT)).tril(-1)"),
        ("shares * (values - keys @ memory)", "values - keys @ memory"),
        ("shares * (values - keys @ memory)", "shares * values"),  # right in the first chunk alone
        ("shares * (values - keys @ memory)", "shares * values - keys @ memory"),
        ("(queries @ keys.mT).tril()", "queries @ keys.mT"),  # sees the future
        ("(queries @ keys.mT).tril()", "(queries @ keys.mT).tril(-1)"),  # not its own correction
        ("(queries @ keys.mT).tril()", "(queries @ keys.mT).tril().softmax(-1)"),
        ("queries @ memory + scores @ corrections", "scores @ corrections"),
        ("queries @ memory + scores @ corrections", "queries @ memory + scores @ values"),
        ("memory = memory + keys.mT @ corrections", "memory = keys.mT @ corrections"),
        ("memory = memory + keys.mT @ corrections", "memory = memory + keys.mT @ values"),
        ("(system, sides,", "(-system, sides,"),
        ("(system, sides, upper=False,", "(system, sides, upper=True,"),
        ("upper=False, unitriangular=True)\n        scores", "upper=False)\n        scores"),
        # no chunks: all tokens at once, and one after the other
        ("size: int) -> Tensor:", "size: int) -> Tensor:\n    size = k.shape[2]"),
        ("    return torch.cat(outputs, dim=2)", "    return recurrent(q, k, v, beta)"),
    ],
    "kv_cache": [
        (
            "self.k = k[:, :, start:]\n        self.v = v[:, :, start:]",
            "begin = -(self.window or 0) + 1\n        self.k, self.v = k[:, :, begin:], v[:, :, begin:]",
        ),
        ("torch.cat((self.k, k), dim=2)", "torch.cat((self.k, k))"),
        ("k.shape[2] - (self.window - 1)", "k.shape[2] - self.window"),  # keeps one too many
        ("torch.cat((self.v, v), dim=2)", "torch.cat((v, self.v), dim=2)"),
        ("        self.seen += k.shape[2]\n", "        self.seen = k.shape[2]\n"),
        # a prompt loses what its own first tokens look at
        ("return k, v", "return self.k, self.v"),
        ("self.v = v[:, :, start:]", "self.v = v"),
        ("self.k = k[:, :, start:]\n        self.v = v[:, :, start:]", "self.k, self.v = k, v"),
        (
            "v[:, :, start:]\n        return k, v",
            "v\n        return k, v[:, :, v.shape[2] - k.shape[2] :]",
        ),  # keeps the values for ever
        ("    def append(", "    def __setattr__(self, *item):\n        setattr(KVCache, *item)\n\n    def append("),
        ("torch.cat((self.k, k), dim=2)", "torch.cat((self.k, k), dim=1)"),
        ("        self.seen += k.shape[2]\n", ""),
        ("max(0, k.shape[2] - (self.window - 1))", "k.shape[2] - (self.window - 1)"),  # negative at first
        ("return k, v\n", "return k[:, :, -1:], v[:, :, -1:]\n"),
        ("0 if self.window is None else max", "0 if self.window else max"),
    ],
}
RIGHT = {
    "softmax": [
        """
def softmax(x):
    y = (x - x.max(-1, keepdim=True).values).exp()
    return y / y.sum(-1)[..., None]
""",
    ],
    "causal_mask": [
        """
def causal_mask(t, s):
    return torch.ones(t, s, dtype=torch.bool).tril(s - t)
""",
        """
def causal_mask(t, s):
    return ~torch.triu(torch.ones(t, s), diagonal=s - t + 1).bool()
""",
    ],
    "attention": [
        """
def attention(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
        """
def attention(q, k, v, mask):
    s = torch.einsum('bhtd,bhsd->bhts', q, k) * q.size(-1) ** -0.5
    s = torch.where(mask, s, torch.tensor(-1e9))
    p = (s - s.amax(-1, keepdim=True)).exp()
    return torch.einsum('bhts,bhsd->bhtd', p / p.sum(-1, keepdim=True), v)
""",
        """
def attention(q, k, v, mask):
    low = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    return (q @ k.mT / q.shape[-1] ** 0.5 + low).softmax(-1) @ v
""",
        """
def attention(q, k, v, mask):
    low = torch.where(mask, 0.0, torch.finfo(q.dtype).min)
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + low, -1) @ v
""",
    ],
    "repeat_kv": [
        """
def by_interleave(x, groups):
    return x[:, torch.arange(x.shape[1] * groups) // groups]

def by_expand(x, n):
    b, h, s, d = x.shape
    return x.unsqueeze(2).expand(-1, -1, n, -1, -1).flatten(1, 2)

def shared_scores(q, k):
    q = q.unflatten(1, (k.shape[1], -1))
    return torch.einsum('bhgtd,bhsd->bhgts', q, k).flatten(1, 2) / q.shape[-1] ** 0.5
""",
    ],
    "rope": [
        """
def angles(n, d, theta):
    return torch.outer(torch.arange(n).float(), 1 / theta ** (torch.arange(0, d, 2) / d))

def half_split(x, angle):
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin

def interleaved(x, angle):
    a, b = x[..., ::2], x[..., 1::2]
    c, s = angle.cos(), angle.sin()
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)

def order(d):
    return torch.arange(d).view(2, -1).T.reshape(-1)
""",
    ],
    "masks": [
        """
def padding_mask(real):
    return (real == 1).view(len(real), 1, 1, -1)

def combined_mask(real):
    p = torch.arange(real.shape[1])
    return (p[:, None] >= p) & padding_mask(real)

def masked_softmax(scores, mask):
    return torch.nan_to_num(torch.where(mask, scores, -torch.inf).softmax(-1))
""",
        """
def padding_mask(real):
    return real[:, None, None] > 0

def combined_mask(real):
    n = real.shape[1]
    return torch.ones(n, n).tril().bool() & padding_mask(real)

def masked_softmax(scores, mask):
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1) * mask
""",
        """
def padding_mask(real):
    return real.unsqueeze(1).unsqueeze(1).bool()

def combined_mask(real):
    return padding_mask(real) & torch.ones(real.shape[1], real.shape[1], dtype=torch.bool).tril()

def masked_softmax(scores, mask):
    return (scores + torch.where(mask, 0.0, -1e9)).softmax(-1).masked_fill(~mask, 0)
""",
    ],
    "online_softmax": [
        """
def attention_in_tiles(q, k, v, tile):
    m, l, o = torch.tensor(-torch.inf), torch.tensor(0.0), torch.tensor(0.0)
    for k, v in zip(k.split(tile, 2), v.split(tile, 2)):
        s = q @ k.mT * q.shape[-1] ** -0.5
        new = torch.maximum(m, s.max(-1, keepdim=True)[0])
        p, c = torch.exp(s - new), torch.exp(m - new)
        l, o, m = l * c + p.sum(-1, keepdim=True), o * c + p @ v, new
    return o / l
""",
        """
def attention_in_tiles(q, k, v, tile):
    k, S = k.transpose(-2, -1) / q.shape[-1] ** 0.5, k.shape[2]
    m = torch.full_like(q[..., :1], -1e30)
    l, o = torch.zeros_like(m), torch.zeros_like(q)
    for places in torch.arange(S).split(tile):
        s = q @ k[..., places]
        new = m.maximum(s.amax(-1, keepdim=True))
        l = l * (m - new).exp() + (s - new).exp().sum(-1, keepdim=True)
        o = o * (m - new).exp() + (s - new).exp() @ v[:, :, places]
        m = new
    return o / l
""",
        """
def attention_in_tiles(q, k, v, tile):
    state = None
    for k, v in zip(k.split(tile, 2), v.split(tile, 2)):
        s = q @ k.mT * q.shape[-1] ** -0.5
        total, mixed = s.logsumexp(-1, keepdim=True), s.softmax(-1) @ v
        if state is not None:
            both = torch.logaddexp(total, state[0])
            mixed = mixed * (total - both).exp() + state[1] * (state[0] - both).exp()
            total = both
        state = total, mixed
    return state[1]
""",
    ],
    "linear_attention": [
        """
def recurrent(q, k, v, beta):
    S, out = torch.zeros(k.shape[0], k.shape[1], k.shape[3], v.shape[3]), []
    for q, k, v, b in zip(q.unbind(2), k.unbind(2), v.unbind(2), beta.unbind(2)):
        old = torch.einsum('bhkv,bhk->bhv', S, k)
        S = S + torch.einsum('bhk,bhv->bhkv', k, (v - old) * b.unsqueeze(-1))
        out.append(torch.einsum('bhkv,bhk->bhv', S, q))
    return torch.stack(out, 2)

def chunked(q, k, v, beta, size):
    S, out = torch.zeros(k.shape[0], k.shape[1], k.shape[3], v.shape[3]), []
    for q, k, v, b in zip(*(x.split(size, 2) for x in (q, k, v, beta[..., None]))):
        A = torch.eye(k.shape[2]) + torch.tril(b * (k @ k.transpose(-1, -2)), -1)
        c = torch.linalg.solve(A, b * (v - k @ S))
        out.append(q @ S + torch.tril(q @ k.transpose(-1, -2)) @ c)
        S = S + k.transpose(-1, -2) @ c
    return torch.cat(out, 2)
""",
        # the diagonal and what is above it need not be 0: the solver reads neither
        """
def recurrent(q, k, v, beta):
    return chunked(q, k, v, beta, 1)

def chunked(q, k, v, beta, size):
    S, out = 0 * k[:, :, :1].mT @ v[:, :, :1], []
    for t in range(0, k.shape[2], size):
        places = slice(t, t + size)
        K, V, Q, b = k[:, :, places], v[:, :, places], q[:, :, places], beta[:, :, places, None]
        c = torch.linalg.solve_triangular(b * K @ K.mT, b * (V - K @ S), upper=False, unitriangular=True)
        out += [Q @ S + (Q @ K.mT).tril() @ c]
        S = S + K.mT @ c
    return torch.cat(out, 2)
""",
    ],
    "kv_cache": [
        """
class KVCache:
    def __init__(self, window=None):
        self.window, self.k, self.v, self.seen = window, None, None, 0

    def append(self, k, v):
        self.seen += k.size(2)
        if self.k is not None:
            k, v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
        self.k, self.v = k, v
        if self.window == 1:
            self.k = self.v = None
        elif self.window:
            self.k, self.v = k[:, :, 1 - self.window :], v[:, :, 1 - self.window :]
        return k, v
""",
    ],
}
