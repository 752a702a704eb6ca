"""Learners' answers to the exercises of notebooks 01, 03, 04, 06, 08, 15 and 16: mistakes, and other right answers."""

HIDE = "torch.ones_like(s).triu(1).bool()"
MASK = "torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool()"
SHARES = "(x - x.amax(-1, keepdim=True)).exp()"
DIVIDED = "q @ k.mT / q.shape[-1] ** 0.5"
NUMBERS = "c.num_hidden_layers * c.kv_heads * c.head_size"
FIRST = "next((a['step'] for a in looks if a['copy_gain'] >= 1), None)"
START = "next((a['step'] for a in run['looks'] if a['copy_gain'] >= 1), math.inf)"
EARLIER = (
    "lambda first, second: (lambda a, b: tuple(sum(f(a[s], b[s]) for s in a.keys() & b.keys()) for f in "
    "(lambda x, y: x < y, lambda x, y: x > y, lambda x, y: x == y)))"
    f"(*({{run['seed']: {START} for run in runs}} for runs in (first, second)))"
)
BOTH = "sorted(a.keys() & b.keys())"
EARLY = "l[:, e[0]:e[1] + 1].mean()"
LATER = "l[:, t[0]:t[1] + 1].mean()"
FIRST_VALUE = "next(iter(c.values()))"
LAST = "[*c.values()][-1]"
MIDDLE = f"({FIRST_VALUE} + {LAST}) / 2"
REACHED = "[s for s in steps if s is not None]"
LATE = "[math.inf if s is None else s for s in steps]"
ADDED = "value(o[:o.index(h) + 1]) - value(o[:o.index(h)])"
SHAPLEY = (
    f"lambda value, heads: (lambda orders: {{h: sum({ADDED} for o in orders)"
    " / len(orders) for h in heads})(list(itertools.permutations(heads)))"
)
# state s, scores x and values v; m: the largest score, f: how much the old sums shrink, p: exp(scores)
READ = (
    "lambda s, x, v: (lambda m: (lambda f, p: (m, f * s[1] + p.sum(1, keepdim=True), f * s[2] + p @ v))"
    "((s[0] - m).exp(), (x - m).exp()))(torch.maximum(s[0], x.amax(1, keepdim=True)))"
)
JOIN = (
    "lambda a, b: (lambda m: (lambda f, g: (a[2] * f + b[2] * g) / (a[1] * f + b[1] * g))"
    "((a[0] - m).exp(), (b[0] - m).exp()))(torch.maximum(a[0], b[0]))"
)
WRONG = {
    "begins_to_copy": [
        f"lambda looks: {FIRST.replace('>= 1', '> 1')}",
        f"lambda looks: {FIRST.replace('>= 1', '>= 0')}",
        f"lambda looks: {FIRST.replace('>= 1', '< 1')}",
        "lambda looks: " + FIRST.replace(">= 1", ">= looks[-1]['copy_gain'] / 2"),
        "lambda looks: " + FIRST.replace(">= 1", ">= max(a['copy_gain'] for a in looks) / 2"),
        f"lambda looks: {FIRST.replace('None', '0')}",
        f"lambda looks: {FIRST.replace('None', 'len(looks)')}",
        "lambda looks: " + FIRST.replace("None", "looks[-1]['step']"),
        "lambda looks: " + FIRST.replace("a['step']", "a['copy_gain']"),
        "lambda looks: " + FIRST.replace("a['step']", "a"),
        "lambda looks: next(a['step'] for a in looks if a['copy_gain'] >= 1)",
        "lambda looks: next((i for i, a in enumerate(looks) if a['copy_gain'] >= 1), None)",
        "lambda looks: max((a['step'] for a in looks if a['copy_gain'] >= 1), default=None)",
        "lambda looks: [a['step'] for a in looks if a['copy_gain'] >= 1]",
        "lambda looks: max(looks, key=lambda a: a['copy_gain'])['step']",
        "lambda looks: looks[-1]['step']",
    ],
    "parting": [
        "lambda a, b: next((s for s in a if s in b and a[s] != b[s]), None)",  # in the log's own order
        "lambda a, b: next((s for s in sorted(a) if a[s] != b[s]), None)",
        "lambda a, b: next((s for s in sorted(a) if a[s] != b.get(s)), None)",
        f"lambda a, b: next((s for s in {BOTH} if abs(a[s] - b[s]) > 1e-6), None)",
        f"lambda a, b: next((s for s in {BOTH} if a[s] > b[s]), None)",
        f"lambda a, b: next((s for s in {BOTH} if a[s] == b[s]), None)",
        f"lambda a, b: next((s for s in {BOTH} if a[s] != b[s]), 0)",
        f"lambda a, b: next(s for s in {BOTH} if a[s] != b[s])",
        f"lambda a, b: next((i for i, s in enumerate({BOTH}) if a[s] != b[s]), None)",
        f"lambda a, b: next((a[s] for s in {BOTH} if a[s] != b[s]), None)",
        f"lambda a, b: next((s for s in reversed({BOTH}) if a[s] != b[s]), None)",
        f"lambda a, b: [s for s in {BOTH} if a[s] != b[s]]",
        f"lambda a, b: a != b and {BOTH}[0]",
    ],
    "looks_back": [
        "lambda T: torch.eye(T)",
        "lambda T: torch.eye(T).roll(1, 0)",
        "lambda T: torch.eye(T).roll(-1, 0)",
        "lambda T: torch.ones(T - 1).diag(-1)",
        "lambda T: torch.ones(T - 1).diag(1)",
        "lambda T: torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]",
        "lambda T: torch.ones(T, T).tril(-1)",
        "lambda T: torch.ones(T, T).tril(-1).softmax(-1)",
        "lambda T: torch.ones(T - 1).diag(-1) + torch.eye(T)",
        "lambda T: (torch.ones(T - 1).diag(-1) + torch.eye(T)) / 2",
        "lambda T: torch.tensor([max(0, i - 1) for i in range(T)])",
        "lambda T: F.one_hot(torch.arange(1, T + 1) % T, T).float()",
    ],
    "in_context": [
        "lambda l, e, t: (l[:, t[0]:t[1]].mean() - l[:, e[0]:e[1]].mean()).item()",
        f"lambda l, e, t: ({EARLY} - {LATER}).item()",
        f"lambda l, e, t: ({LATER} / {EARLY}).item()",
        f"lambda l, e, t: {LATER}.item()",
        f"lambda l, e, t: ({LATER} - l.mean()).item()",
        f"lambda l, e, t: (l.mean() - {EARLY}).item()",
        "lambda l, e, t: (l[:, t[0]] - l[:, e[0]]).mean().item()",
        "lambda l, e, t: (l[:, t[1]] - l[:, e[1]]).mean().item()",
        "lambda l, e, t: (l[t[0]:t[1] + 1].mean() - l[e[0]:e[1] + 1].mean()).item()",
        f"lambda l, e, t: ({LATER} - {EARLY}).abs().item()",
        "lambda l, e, t: (l[:, t[0]:t[1] + 1].sum() - l[:, e[0]:e[1] + 1].sum()).item()",
        "lambda l, e, t: l[:, t[0]:t[1] + 1].mean(1) - l[:, e[0]:e[1] + 1].mean(1)",
        "lambda l, e, t: (l[0, t[0]:t[1] + 1].mean() - l[0, e[0]:e[1] + 1].mean()).item()",
    ],
    "half_way": [
        "lambda c: next(s for s, x in c.items() if x >= max(c.values()) / 2)",
        "lambda c: next(s for s, x in c.items() if x >= list(c.values())[-1] / 2)",
        "lambda c: list(c)[len(c) // 2]",
        "lambda c: (min(c) + max(c)) // 2",
        f"lambda c: next(s for s, x in c.items() if x >= {MIDDLE})",
        f"lambda c: next(s for s, x in c.items() if x <= {MIDDLE})",
        f"lambda c: min(c, key=lambda s: abs(c[s] - {MIDDLE}))",
        f"lambda c: next(i for i, x in enumerate(c.values()) if abs(x - {LAST}) <= abs({FIRST_VALUE} - {LAST}) / 2)",
        f"lambda c: next(x for x in c.values() if abs(x - {LAST}) <= abs({FIRST_VALUE} - {LAST}) / 2)",
        f"lambda c: next(s for s, x in c.items() if abs(x - {FIRST_VALUE}) > abs({FIRST_VALUE} - {LAST}) / 2)",
        f"lambda c: [s for s, x in c.items() if abs(x - {LAST}) <= abs({FIRST_VALUE} - {LAST}) / 2][-1]",
        f"lambda c: next(s for s, x in c.items() if abs(x - {LAST}) <= 0.1)",
        f"lambda c: next(s for s, x in c.items() if x - {LAST} <= ({FIRST_VALUE} - {LAST}) / 2)",
    ],
    "smear": [
        "lambda k, s: s * k + (1 - s) * k.roll(1, 0)",
        "lambda k, s: s * k + (1 - s) * torch.cat((0 * k[:1], k[:-1]))",
        "lambda k, s: s * k + (1 - s) * torch.cat((k[1:], k[-1:]))",
        "lambda k, s: (1 - s) * k + s * torch.cat((k[:1], k[:-1]))",
        "lambda k, s: k + (1 - s) * torch.cat((k[:1], k[:-1]))",
        "lambda k, s: s * k + s * torch.cat((k[:1], k[:-1]))",
        "lambda k, s: s * k[1:] + (1 - s) * k[:-1]",
        "lambda k, s: s * k + (1 - s) * torch.cat((k[:, :1], k[:, :-1]), 1)",
        "lambda k, s: s * k + (1 - s) * k.cumsum(0) / torch.arange(1, len(k) + 1)[:, None]",
        "lambda k, s: s * k",
        "lambda k, s: torch.cat((k[:1], (k[1:] + k[:-1]) / 2))",
        "lambda k, s: torch.cat((s * k[:1], s * k[1:] + (1 - s) * k[:-1]))",
    ],
    "middle": [
        "lambda steps: sorted(steps)[len(steps) // 2]",
        "lambda steps: sorted(s or 0 for s in steps)[len(steps) // 2]",
        f"lambda steps: sorted({REACHED})[len({REACHED}) // 2]",
        f"lambda steps: sorted({REACHED})[len(steps) // 2]",
        f"lambda steps: sum({REACHED}) / len(steps)",
        f"lambda steps: min({REACHED}, default=None)",
        f"lambda steps: max({REACHED}, default=None)",
        f"lambda steps: sorted({LATE})[len(steps) // 2]",  # infinity
        f"lambda steps: {LATE}[len(steps) // 2]",  # not sorted
        f"lambda steps: sorted({LATE}.copy(), reverse=True)[len(steps) // 2]",
        f"lambda steps: (lambda s: None if s == math.inf else s)(sorted({LATE})[(len(steps) - 1) // 2])",
        "lambda steps: steps[len(steps) // 2]",
        f"lambda steps: None if None in steps else sorted({REACHED})[len(steps) // 2]",
    ],
    "shapley": [
        "lambda value, heads: {h: value([h]) - value([]) for h in heads}",  # alone
        "lambda value, heads: {h: value(heads) - value([o for o in heads if o != h]) for h in heads}",  # missing
        "lambda value, heads: {h: (value([h]) - value([]) + value(heads) - value([o for o in heads if o != h])) / 2"
        " for h in heads}",
        "lambda value, heads: {h: (value(heads) - value([])) / len(heads) for h in heads}",
        SHAPLEY.replace(" / len(orders)", ""),
        SHAPLEY.replace("len(orders)", "len(heads)"),
        SHAPLEY.replace("list(itertools.permutations(heads))", "[tuple(heads)]"),
        SHAPLEY.replace("list(itertools.permutations(heads))", "[tuple(heads), tuple(heads[::-1])]"),
        SHAPLEY.replace("list(itertools.permutations(heads))", "list(itertools.permutations(heads))[1:]"),
        SHAPLEY.replace(" - value(o[:o.index(h)])", ""),
        SHAPLEY.replace(
            "value(o[:o.index(h) + 1]) - value(o[:o.index(h)])", "value(o[:o.index(h)]) - value(o[:o.index(h) + 1])"
        ),
        SHAPLEY.replace(
            "value(o[:o.index(h) + 1]) - value(o[:o.index(h)])",
            "abs(value(o[:o.index(h) + 1]) - value(o[:o.index(h)]))",
        ),
        SHAPLEY.replace("{h: sum(", "[sum(").replace("for h in heads}", "for h in heads]"),  # no dictionary
        # each subset counts the same (Banzhaf)
        "lambda value, heads: {h: sum(value([*s, h]) - value(s) for n in range(len(heads)) for s in "
        "itertools.combinations([o for o in heads if o != h], n)) / 2 ** (len(heads) - 1) for h in heads}",
        "lambda value, heads: {h: value([h]) / sum(value([o]) for o in heads) * value(heads) for h in heads}",
    ],
    "earlier": [
        EARLIER.replace("math.inf", "0"),  # never is before every step
        EARLIER.replace("math.inf", "run['looks'][-1]['step']"),  # never is at the last step
        EARLIER.replace("math.inf", "math.nan"),  # two that never copy are no tie
        EARLIER.replace("x > y, lambda x, y: x == y", "x >= y, lambda x, y: x == y"),
        EARLIER.replace("x < y, ", "x <= y, "),
        EARLIER.replace("x < y, lambda x, y: x > y", "x > y, lambda x, y: x < y"),
        EARLIER.replace(", lambda x, y: x == y", ""),  # no ties
        EARLIER.replace("x == y", "False"),
        EARLIER.replace("a.keys() & b.keys()", "a.keys()"),  # KeyError
        EARLIER.replace("sum(f(a[s], b[s]) for s in a.keys() & b.keys())", "sum(map(f, a.values(), b.values()))"),
        EARLIER.replace("a[s], b[s]", "a.get(s, math.inf), b.get(s, math.inf)").replace("a.keys() & b", "a.keys() | b"),
        EARLIER.replace(">= 1", "> 1"),
        EARLIER.replace(START, f"({START} or math.inf)"),  # a run that copies from step 0
        EARLIER.replace(START, "run['looks'][-1]['copy_gain']"),
        EARLIER.replace("sum(f", "list(f"),
        EARLIER.replace("tuple(", "max("),
    ],
    "read_block": [
        READ.replace("f * s[1]", "s[1]"),
        READ.replace("f * s[2]", "s[2]"),
        READ.replace("f * s[1]", "s[1]").replace("f * s[2]", "s[2]"),
        READ.replace("(s[0] - m).exp()", "(m - s[0]).exp()"),  # grows
        READ.replace("(x - m)", "(x - s[0])"),  # the old largest
        READ.replace("(x - m)", "(x - x.amax(1, keepdim=True))"),  # of the block alone
        READ.replace("(x - m)", "x"),  # overflows
        READ.replace("torch.maximum(s[0], x.amax(1, keepdim=True))", "x.amax(1, keepdim=True)"),
        READ.replace("torch.maximum(s[0], x.amax(1, keepdim=True))", "s[0]"),
        READ.replace("x.amax(1, keepdim=True)", "x.amax()"),  # of all queries: others become 0 / 0
        READ.replace("x.amax(1, keepdim=True)", "x.amax(0, keepdim=True)"),
        READ.replace("p.sum(1, keepdim=True)", "p.sum(1)"),
        READ.replace("p.sum(1, keepdim=True)", "p.sum()"),
        READ.replace("p.sum(1, keepdim=True)", "p.mean(1, keepdim=True)"),
        READ.replace("p @ v", "p @ v / p.sum(1, keepdim=True)"),  # divided too early
        READ.replace("p @ v", "x @ v"),
        READ.replace("(m, f", "(s[0], f"),  # forgets the new largest
    ],
    "join_halves": [
        "lambda a, b: (a[2] + b[2]) / (a[1] + b[1])",
        "lambda a, b: (a[2] / a[1] + b[2] / b[1]) / 2",
        "lambda a, b: a[2] / a[1] + b[2] / b[1]",
        "lambda a, b: torch.maximum(a[2] / a[1], b[2] / b[1])",
        "lambda a, b: (a[0] * a[2] + b[0] * b[2]) / (a[0] * a[1] + b[0] * b[1])",
        "lambda a, b: (a[2] * a[0].exp() + b[2] * b[0].exp()) / (a[1] * a[0].exp() + b[1] * b[0].exp())",  # overflows
        JOIN.replace("a[2] * f", "a[2]"),
        JOIN.replace("b[1] * g", "b[1]"),
        JOIN.replace("a[1] * f + b[1] * g", "a[1] + b[1]"),
        JOIN.replace("(a[0] - m).exp(), (b[0] - m).exp()", "(m - a[0]).exp(), (m - b[0]).exp()"),
        JOIN.replace("(a[0] - m).exp(), (b[0] - m).exp()", "(b[0] - m).exp(), (a[0] - m).exp()"),
        JOIN.replace("a[2] * f + b[2] * g", "a[2] * f - b[2] * g"),
        JOIN.replace(" / (a[1]", " * (a[1]"),
        "lambda a, b: print(a, b)",
    ],
    "score": [
        "lambda q, k: k @ q.mT",
        "lambda q, k: q * k",
        "lambda q, k: (q * k).sum(-1)",  # each query with one key
        "lambda q, k: q @ k",
        "lambda q, k: q.mT @ k",
        "lambda q, k: q @ k.transpose(0, 1)",
        "lambda q, k: q @ k.transpose(1, -1)",
        "lambda q, k: torch.einsum('td,sd->ts', q, k)",  # no dimensions in front
        "lambda q, k: q @ k.mT / q.shape[-1] ** 0.5",
        "lambda q, k: (q @ k.mT).softmax(-1)",
        "lambda q, k: q @ q.mT",
        "lambda q, k: (q[..., None, :] * k[..., None, :, :]).mean(-1)",
        "lambda q, k: (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)",
        "lambda q, k: torch.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1)",
        "lambda q, k: (q @ k.mT).tolist()",
        "lambda q, k: print(q @ k.mT)",
    ],
    "hide": [
        "lambda s: s.tril()",
        "lambda s: s.triu()",
        "lambda s: s.masked_fill(torch.ones_like(s).triu().bool(), -torch.inf)",
        "lambda s: s.masked_fill(torch.ones_like(s).triu(2).bool(), -torch.inf)",
        "lambda s: s.masked_fill(torch.ones_like(s).tril().bool(), -torch.inf)",
        "lambda s: s.masked_fill(torch.ones_like(s).tril(-1).bool(), -torch.inf)",
        f"lambda s: s.masked_fill({HIDE}, -1e9)",
        f"lambda s: s.masked_fill({HIDE}, torch.inf)",
        f"lambda s: s.masked_fill({HIDE}, 0.0)",
        f"lambda s: s.masked_fill_({HIDE}, -torch.inf)",
        f"lambda s: s.masked_fill({HIDE}, -torch.inf).softmax(-1)",
        "lambda s: s.masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)",
        "lambda s: s * torch.ones_like(s).tril() - torch.inf * torch.ones_like(s).triu(1)",  # NaN
        "lambda s: s.masked_fill(s > s.diagonal(0, -2, -1)[..., None], -torch.inf)",
        f"lambda s: {HIDE}",
        "lambda s: s",
    ],
    "softmax": [
        "lambda x: x.exp() / x.exp().sum(-1, keepdim=True)",
        "lambda x: x.exp() / x.exp().sum()",
        "lambda x: (x - x.max()).exp() / (x - x.max()).exp().sum(-1, keepdim=True)",
        f"lambda x: {SHARES} / {SHARES}.sum()",
        f"lambda x: {SHARES} / {SHARES}.sum(-2, keepdim=True)",
        f"lambda x: {SHARES} / {SHARES}.mean(-1, keepdim=True)",
        f"lambda x: {SHARES} / {SHARES}.amax(-1, keepdim=True)",
        f"lambda x: {SHARES} / {SHARES}.sum(-1)",
        f"lambda x: {SHARES}",
        "lambda x: x.softmax(0)",
        "lambda x: x.softmax(1)",
        "lambda x: x.log_softmax(-1)",
        "lambda x: x / x.sum(-1, keepdim=True)",
        "lambda x: x.sigmoid()",
        "lambda x: (2 * x).softmax(-1)",
        "lambda x: x.sub_(x.amax(-1, keepdim=True)).softmax(-1)",
    ],
    "mix": [
        "lambda w, v: w.mT @ v",
        "lambda w, v: v @ w",
        "lambda w, v: v.mT @ w",
        "lambda w, v: w * v",
        "lambda w, v: w @ v.mT",
        "lambda w, v: (v.mT @ w).mT",
        "lambda w, v: w @ v / w.shape[-1]",
        "lambda w, v: w.softmax(-1) @ v",
        "lambda w, v: w.tril() @ v / w.tril().sum(-1, keepdim=True)",
        "lambda w, v: v[w.argmax(-1)]",
        "lambda w, v: (w @ v).sum(-1)",
        "lambda w, v: torch.einsum('ts,sd->td', w, v)",
        "lambda w, v: v",
        "lambda w, v: (w[..., None] * v[..., None, :, :]).mean(-2)",
    ],
    "divide": [
        "lambda s, D: s / D",
        "lambda s, D: s * D**0.5",
        "lambda s, D: s * D",
        "lambda s, D: s / D**2",
        "lambda s, D: s / (D**0.5 + 1)",
        "lambda s, D: s / D ** (1 / 3)",
        "lambda s, D: s / s.std()",
        "lambda s, D: s / s.norm(dim=-1, keepdim=True)",
        "lambda s, D: s / s.shape[-1] ** 0.5",
        "lambda s, D: s / 8",
        "lambda s, D: s - D**0.5",
        "lambda s, D: s.div_(D**0.5)",
        "lambda s, D: (s / D**0.5).softmax(-1)",
        "lambda s, D: s",
    ],
    "attend": [
        f"lambda q, k, v: (q @ k.mT).masked_fill({MASK}, -torch.inf).softmax(-1) @ v",
        f"lambda q, k, v: ({DIVIDED}).softmax(-1) @ v",
        f"lambda q, k, v: ({DIVIDED}).softmax(-1).tril() @ v",
        f"lambda q, k, v: ({DIVIDED}).tril().softmax(-1) @ v",
        f"lambda q, k, v: ({DIVIDED}).softmax(-1).masked_fill({MASK}, -torch.inf) @ v",
        f"lambda q, k, v: (q @ k.mT / 8**0.5).masked_fill({MASK}, -torch.inf).softmax(-1) @ v",
        f"lambda q, k, v: (q @ k.mT / q.shape[-2]**0.5).masked_fill({MASK}, -torch.inf).softmax(-1) @ v",
        f"lambda q, k, v: (q @ k.mT / q.shape[-1]).masked_fill({MASK}, -torch.inf).softmax(-1) @ v",
        f"lambda q, k, v: (q @ k.mT).masked_fill({MASK}, -torch.inf).softmax(-1) / q.shape[-1]**0.5 @ v",
        f"lambda q, k, v: ({DIVIDED}).masked_fill({MASK}, -torch.inf) @ v",
        f"lambda q, k, v: ({DIVIDED}).masked_fill({MASK}, -torch.inf).softmax(-2) @ v",
        f"lambda q, k, v: ({DIVIDED}).masked_fill({MASK}.mT, -torch.inf).softmax(-1) @ v",
        f"lambda q, k, v: ({DIVIDED}).masked_fill({MASK}, -torch.inf).softmax(-1) @ k",
        f"lambda q, k, v: (k @ q.mT / q.shape[-1]**0.5).masked_fill({MASK}, -torch.inf).softmax(-1) @ v",
        f"lambda q, k, v: ({DIVIDED}).masked_fill({MASK}, -torch.inf).softmax(-1)",
        f"lambda q, k, v: ({DIVIDED}).masked_fill({MASK}, -1.0).softmax(-1) @ v",
    ],
    "ablate": [
        "lambda w, h, D: torch.cat((w[: h * D], 0 * w[h * D : h * D + D], w[h * D + D :]))",  # rows
        "lambda w, h, D: w.index_fill(1, torch.arange(h, h + D), 0)",
        "lambda w, h, D: w.index_fill(1, torch.tensor(h), 0)",
        "lambda w, h, D: w.index_fill_(1, torch.arange(h * D, h * D + D), 0)",
        "lambda w, h, D: w.index_fill(1, torch.arange(h * D, h * D + D - 1), 0)",
        "lambda w, h, D: w.index_fill(1, torch.arange(h * D, w.shape[1]), 0)",
        "lambda w, h, D: w.index_fill(1, torch.arange(0, h * D + D), 0)",
        "lambda w, h, D: w.index_fill(1, torch.arange(h * D, h * D + D), -1)",
        "lambda w, h, D: w.index_fill(1, torch.arange(h, w.shape[1], w.shape[1] // D), 0)",
        "lambda w, h, D: w[:, h * D : h * D + D]",
        "lambda w, h, D: torch.cat((w[:, : h * D], w[:, h * D + D :]), dim=1)",
        "lambda w, h, D: torch.zeros_like(w).index_copy(1, torch.arange(D), w[:, h * D : h * D + D])",
        "lambda w, h, D: torch.zeros_like(w)",
        "lambda w, h, D: w",
    ],
    "repeat_kv": [
        "lambda x, groups: x.repeat(1, groups, 1, 1)",
        "lambda x, groups: torch.cat([x] * groups, dim=1)",
        "lambda x, groups: x[:, None].expand(-1, groups, -1, -1, -1).flatten(1, 2)",
        "lambda x, groups: x.repeat_interleave(groups, dim=2)",
        "lambda x, groups: x.repeat_interleave(groups, dim=0)",
        "lambda x, groups: x.repeat_interleave(groups, dim=3)",
        "lambda x, groups: x.repeat_interleave(groups)",
        "lambda x, groups: x.repeat_interleave(2, dim=1)",
        "lambda x, groups: x.repeat_interleave(x.shape[1], dim=1)",
        "lambda x, groups: x[:, :1].repeat_interleave(groups * x.shape[1], dim=1)",
        "lambda x, groups: x.repeat_interleave(groups, dim=1).flip(1)",
        "lambda x, groups: x.repeat_interleave(groups, dim=1) / groups",
        "lambda x, groups: x[:, :, None].expand(-1, -1, groups, -1, -1)",
        "lambda x, groups: x[:, :, None].expand(-1, -1, groups, -1, -1).flatten(2, 3)",
        "lambda x, groups: x",
    ],
    "cache_bytes": [
        f"lambda c, t, b: {NUMBERS} * t * b",
        f"lambda c, t, b: 4 * {NUMBERS} * t * b",
        f"lambda c, t, b: 16 * {NUMBERS} * t * b",
        f"lambda c, t, b: 2 * {NUMBERS} * b",
        f"lambda c, t, b: 2 * {NUMBERS} * t",
        f"lambda c, t, b: 2 * {NUMBERS} * t**2 * b",
        "lambda c, t, b: 2 * c.num_hidden_layers * c.num_attention_heads * c.head_size * t * b",
        "lambda c, t, b: 2 * c.num_hidden_layers * c.kv_heads * c.hidden_size * t * b",
        "lambda c, t, b: 2 * c.num_hidden_layers * c.hidden_size * t * b",
        "lambda c, t, b: 2 * c.kv_heads * c.head_size * t * b",
        "lambda c, t, b: 2 * c.num_hidden_layers * c.head_size * t * b",
        "lambda c, t, b: 2 * c.num_hidden_layers * c.kv_heads * t * b",
        f"lambda c, t, b: 2 * {NUMBERS} * t * b // 10**9",
        f"lambda c, t, b: 2 * {NUMBERS} * t * b * (c.num_attention_heads // c.kv_heads)",
    ],
}
RIGHT = {
    "parting": [
        f"lambda a, b: next((s for s in {BOTH} if a[s] != b[s]), None)",
        "lambda a, b: min((s for s in a if s in b and a[s] != b[s]), default=None)",
    ],
    "looks_back": [
        "lambda T: F.one_hot(torch.arange(-1, T - 1).clamp(min=0), T).float()",
        "lambda T: torch.tensor([[float(j == max(0, i - 1)) for j in range(T)] for i in range(T)])",
    ],
    "in_context": [
        f"lambda l, e, t: {LATER} - {EARLY}",
        f"lambda l, e, t: float({LATER}) - float({EARLY})",
    ],
    "half_way": [
        f"lambda c: next(s for s, x in c.items() if abs(x - {LAST}) <= abs({FIRST_VALUE} - {LAST}) / 2)",
        f"lambda c: min(s for s in c if (c[s] - {FIRST_VALUE}) / ({LAST} - {FIRST_VALUE}) >= 0.5)",
    ],
    "smear": [
        "lambda k, s: s * k + (1 - s) * torch.cat((k[:1], k[:-1]))",
        "lambda k, s: torch.lerp(torch.cat((k[:1], k[:-1])), k, s)",
    ],
    "middle": [
        f"lambda steps: (lambda s: None if s == math.inf else s)(sorted({LATE})[len(steps) // 2])",
        "lambda steps: sorted(steps, key=lambda s: (s is None, s))[len(steps) // 2]",
    ],
    "begins_to_copy": [
        f"lambda looks: {FIRST}",
        "lambda looks: min((a['step'] for a in looks if a['copy_gain'] >= 1), default=None)",
    ],
    "shapley": [
        SHAPLEY,
        "lambda value, heads: {h: sum((value([*s, h]) - value(s)) / (len(heads) * math.comb(len(heads) - 1, n)) for n "
        "in range(len(heads)) for s in itertools.combinations([o for o in heads if o != h], n)) for h in heads}",
    ],
    "earlier": [
        EARLIER,
        EARLIER.replace("tuple(", "list(").replace("math.inf", "10**9"),
    ],
    "read_block": [READ],
    "join_halves": [
        JOIN,
        "lambda a, b: torch.lerp(a[2] / a[1], b[2] / b[1], (b[0] + b[1].log() - a[0] - a[1].log()).sigmoid())",
    ],
    "score": [
        "lambda q, k: q @ k.transpose(-2, -1)",
        "lambda q, k: torch.einsum('...td,...sd->...ts', q, k)",
        "lambda q, k: (q[..., :, None, :] * k[..., None, :, :]).sum(-1)",
    ],
    "hide": [
        "lambda s: s.masked_fill(~torch.ones(s.shape[-1], s.shape[-1]).tril().bool(), -torch.inf)",
        "lambda s: s + torch.full_like(s, -torch.inf).triu(1)",
        "lambda s: torch.where(torch.ones_like(s).tril() == 1, s, -torch.inf)",
    ],
    "softmax": [
        f"lambda x: {SHARES} / {SHARES}.sum(-1, keepdim=True)",
        "lambda x: x.softmax(-1)",
        "lambda x: (x - x.logsumexp(-1, keepdim=True)).exp()",
    ],
    "mix": [
        "lambda w, v: w @ v",
        "lambda w, v: torch.einsum('...ts,...sd->...td', w, v)",
        "lambda w, v: (w[..., None] * v[..., None, :, :]).sum(-2)",
    ],
    "divide": ["lambda s, D: s * D**-0.5", "lambda s, D: s / math.sqrt(D)"],
    "attend": [
        f"lambda q, k, v: ({DIVIDED}).masked_fill({MASK}, -torch.inf).softmax(-1) @ v",
        "lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    ],
    "ablate": [
        "lambda w, h, D: w.index_fill(1, torch.arange(h * D, h * D + D), 0)",
        "lambda w, h, D: w * (torch.arange(w.shape[1]) // D != h)",
        "lambda w, h, D: torch.cat((w[:, : h * D], 0 * w[:, h * D : h * D + D], w[:, h * D + D :]), dim=1)",
    ],
    "repeat_kv": [
        "lambda x, groups: x.repeat_interleave(groups, dim=1)",
        "lambda x, groups: x[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2)",
        "lambda x, groups: torch.stack([x] * groups, dim=2).flatten(1, 2)",
    ],
    "cache_bytes": [f"lambda c, t, b: 2 * {NUMBERS} * t * b"],
}
