"""Learners' answers to the exercises on backward passes: mistakes, and other right answers."""

WRONG: dict[str, list[tuple[str, str]]] = {
    "autograd": [
        ("(self, other), (1.0, 1.0))", "(self, other), (self.data, other.data))"),
        ("(self, other), (other.data, self.data))", "(self, other), (self.data, other.data))"),  # each its own
        ("(self, other), (other.data, self.data))", "(self, other), (other, self))"),  # Values, not numbers
        ("(self, other), (other.data, self.data))", "(self,), (other.data,))"),  # one parent gets nothing
        (
            "return Value(self.data * other.data, (self, other), (other.data, self.data))",
            "return self.data * other.data",
        ),
        ("(n * self.data ** (n - 1),)", "(n * self.data**n,)"),
        ("(n * self.data ** (n - 1),)", "(self.data ** (n - 1),)"),
        ("return Value(power, (self,), (power,))", "return Value(power, (self,), (self.data,))"),
        ("(1 - squashed**2,)", "(1 - self.data**2,)"),
        ("(1 - squashed**2,)", "(1 + squashed**2,)"),
        ("(1 - squashed**2,)", "(1 - squashed,)"),
        ("parent.grad += slope * value.grad", "parent.grad = slope * value.grad"),
        ("parent.grad += slope * value.grad", "parent.grad += slope"),
        ("parent.grad += slope * value.grad", "parent.grad += slope * self.grad"),
        ("        self.grad = 1.0\n", ""),
        (
            "        self.grad = 1.0\n",
            "        for value in order:\n            value.grad = 0.0\n        self.grad = 1.0\n",
        ),
        ("for value in reversed(order):", "for value in order:"),
        (
            "                for parent in value.parents:\n                    visit(parent)\n"
            "                order.append(value)  # after its parents\n",
            "                order.insert(0, value)\n"
            "                for parent in value.parents:\n                    visit(parent)\n",
        ),  # before its parents: right for a chain alone
        ("            if value not in seen:\n", "            if True:\n"),
        (
            "        visit(self)\n        self.grad = 1.0\n",
            "        def spread(value: Value, g: float) -> None:\n"
            "            value.grad += g\n"
            "            for parent, slope in zip(value.parents, value.slopes, strict=True):\n"
            "                spread(parent, g * slope)\n\n"
            "        spread(self, 1.0)\n        return\n",
        ),  # right numbers, once a path: 2 ** 16 calls
        ("total = total + weight * number", "total = total + weight + number"),
        ("        total = bias\n", "        total = as_value(0.0)\n"),
        ("out_weight * total.tanh()", "out_weight * total"),
        ("out_weight * total.tanh()", "total.tanh()"),
        ("    prediction = b2\n", "    prediction = as_value(0.0)\n"),
        ("    return prediction\n    # </sol", "    return prediction.tanh()\n    # </sol"),
        (" * (1 / len(errors))", ""),
        ("        value.data -= lr * value.grad\n", "        value.data += lr * value.grad\n"),
        ("        value.grad = 0.0\n", ""),
        ("    for value in all_values(network):\n", "    for value in [*network[1], *network[2], network[3]]:\n"),
        (
            "    return loss.data\n",
            "    return sum(((predict(network, x) - y) ** 2).data for x, y in zip(xs, ys)) / len(xs)\n",
        ),
        ("(x @ w1.T + b1).tanh() @ w2 + b2", "((x @ w1.T + b1).tanh() @ w2 + b2).tanh()"),
        ("(prediction - y).square().mean()", "(prediction - y).square().sum()"),
        ("    optimizer.zero_grad()\n", ""),
        ("    optimizer.step()\n", ""),
        ("torch.optim.SGD(parameters, lr)", "torch.optim.Adam(parameters, lr)"),
        ("return loss.item()", "print(loss)"),
    ],
    "attention_backward": [
        ("return p * (g - mean)", "return p * g - mean"),
        ("return p * (g - mean)", "return p * (1 - p) * g"),  # the slope of a share for its own score alone
        ("return p * (g - mean)", "return p * g"),
        ("mean = (g * p).sum(dim=-1, keepdim=True)", "mean = g.mean(dim=-1, keepdim=True)"),
        ("mean = (g * p).sum(dim=-1, keepdim=True)", "mean = g.sum(dim=-1, keepdim=True)"),
        ("mean = (g * p).sum(dim=-1, keepdim=True)", "mean = (g * p).sum(dim=-2, keepdim=True)"),
        ("mean = (g * p).sum(dim=-1, keepdim=True)", "mean = (g * p).sum()"),
        ("    scale = 1 / math.sqrt(q.shape[-1])\n", "    scale = 1.0\n"),
        ("    scale = 1 / math.sqrt(q.shape[-1])\n", "    scale = 1 / math.sqrt(k.shape[-2])\n"),
        ("softmax_backward(g_weights, weights) * scale", "softmax_backward(g_weights, weights)"),
        ("softmax_backward(g_weights, weights) * scale", "g_weights * scale"),
        ("softmax_backward(g_weights, weights) * scale", "softmax_backward(weights, g_weights) * scale"),
        ("q @ k.transpose(-2, -1) * scale).masked_fill", "q @ k.transpose(-2, -1)).masked_fill"),
        (".masked_fill(~mask, -torch.inf)", ""),
        (".masked_fill(~mask, -torch.inf)", ".masked_fill(mask, -torch.inf)"),
        (".masked_fill(~mask, -torch.inf)", ".masked_fill(~mask, 0.0)"),
        ("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=-2)"),
        ("g_weights = g @ v.transpose(-2, -1)", "g_weights = (g @ v.transpose(-2, -1)).masked_fill(~mask, -torch.inf)"),
        ("g_v = weights.transpose(-2, -1) @ g", "g_v = g.transpose(-2, -1) @ weights"),
        ("g_scores.transpose(-2, -1) @ q, g_v", "g_scores.transpose(-2, -1) @ q * scale, g_v"),
        ("return g_scores @ k, g_scores.transpose(-2, -1) @ q, g_v", "return g_scores @ k, g_v, g_scores.mT @ q"),
        ("return g_scores @ k, g_scores.transpose(-2, -1) @ q, g_v", "return g_scores @ k, g_scores.mT @ q"),
        ("return g_scores @ k, g_scores", "return g_scores.float() @ k.float(), g_scores"),
        ("keys = k.repeat_interleave(groups, dim=1)", "keys = k.repeat(1, groups, 1, 1)"),
        ("values = v.repeat_interleave(groups, dim=1)", "values = v.repeat(1, groups, 1, 1)"),
        ("g_k = g_keys.unflatten(1, (-1, groups)).sum(2)", "g_k = g_keys.unflatten(1, (-1, groups)).mean(2)"),
        ("g_k = g_keys.unflatten(1, (-1, groups)).sum(2)", "g_k = g_keys.unflatten(1, (groups, -1)).sum(1)"),
        ("g_v = g_values.unflatten(1, (-1, groups)).sum(2)", "g_v = g_values[:, ::groups]"),
        ("g_v = g_values.unflatten(1, (-1, groups)).sum(2)", "g_v = g_values"),
    ],
}

RIGHT: dict[str, list[str]] = {
    "autograd": [
        # each operation brings a function, as in micrograd
        """
import math


class Value:
    def __init__(self, data, children=()):
        self.data = data
        self.grad = 0.0
        self.children = set(children)
        self.spread = lambda: None

    def __add__(self, other):
        other = other if isinstance(other, Value) else Value(other)
        out = Value(self.data + other.data, (self, other))

        def spread():
            self.grad += out.grad
            other.grad += out.grad

        out.spread = spread
        return out

    def __mul__(self, other):
        other = other if isinstance(other, Value) else Value(other)
        out = Value(self.data * other.data, (self, other))

        def spread():
            self.grad += other.data * out.grad
            other.grad += self.data * out.grad

        out.spread = spread
        return out

    def __pow__(self, n):
        out = Value(self.data**n, (self,))

        def spread():
            self.grad += n * self.data ** (n - 1) * out.grad

        out.spread = spread
        return out

    def exp(self):
        out = Value(math.exp(self.data), (self,))

        def spread():
            self.grad += out.data * out.grad

        out.spread = spread
        return out

    def tanh(self):
        power = (self * 2).exp()
        return (power - 1) / (power + 1)

    def backward(self):
        topo, visited = [], set()

        def build(v):
            if v not in visited:
                visited.add(v)
                for child in v.children:
                    build(child)
                topo.append(v)

        build(self)
        self.grad = 1
        for v in reversed(topo):
            v.spread()

    def __neg__(self):
        return self * -1

    def __sub__(self, other):
        return self + (other * -1)

    def __rsub__(self, other):
        return self * -1 + other

    def __truediv__(self, other):
        return self * other**-1

    def __radd__(self, other):
        return self + other

    def __rmul__(self, other):
        return self * other


def predict(network, x):
    w1, b1, w2, b2 = network
    hidden = [(sum(w * n for w, n in zip(row, x)) + b).tanh() for row, b in zip(w1, b1)]
    return sum(w * h for w, h in zip(w2, hidden)) + b2


def train_step(network, xs, ys, lr):
    loss = sum((predict(network, x) + -y) ** 2 for x, y in zip(xs, ys)) / len(xs)
    w1, b1, w2, b2 = network
    values = [v for row in w1 for v in row] + b1 + w2 + [b2]
    for v in values:
        v.grad = 0.0
    loss.backward()
    for v in values:
        v.data = v.data - lr * v.grad
    return loss.data


def torch_step(parameters, x, y, lr):
    w1, b1, w2, b2 = parameters
    loss = F.mse_loss((torch.tanh(x @ w1.T + b1) * w2).sum(-1) + b2, y)
    gradients = torch.autograd.grad(loss, parameters)
    for p, g in zip(parameters, gradients):
        p.data.sub_(lr * g)
    return loss
""",
        # no recursion: a value waits until all of its children have passed their gradients on
        """
import math
from collections import Counter


class Value:
    def __init__(self, data, *edges):
        self.data, self.edges, self.grad = float(data), edges, 0.0

    def __add__(self, other):
        return Value(self.data + data(other), (self, 1), *([(other, 1)] if isinstance(other, Value) else []))

    def __mul__(self, other):
        right = [(other, self.data)] if isinstance(other, Value) else []
        return Value(self.data * data(other), (self, data(other)), *right)

    def __pow__(self, n):
        return Value(self.data**n, (self, n * self.data**n / self.data))

    def exp(self):
        return Value(math.e**self.data, (self, math.e**self.data))

    def tanh(self):
        return Value(math.tanh(self.data), (self, 1 / math.cosh(self.data) ** 2))

    def backward(self):
        waits, stack = Counter(), [self]
        seen = {id(self)}
        while stack:
            for parent, _ in stack.pop().edges:
                waits[id(parent)] += 1
                if id(parent) not in seen:
                    seen.add(id(parent))
                    stack.append(parent)
        self.grad, ready = 1.0, [self]
        while ready:
            value = ready.pop()
            for parent, slope in value.edges:
                parent.grad += value.grad * slope
                waits[id(parent)] -= 1
                if not waits[id(parent)]:
                    ready.append(parent)

    __radd__ = __add__
    __rmul__ = __mul__
    __sub__ = lambda self, other: self + other * -1
    __rsub__ = lambda self, other: self * -1 + other
    __truediv__ = lambda self, other: self * other**-1


def data(x):
    return x.data if isinstance(x, Value) else x


def predict(network, x):
    total = network[3]
    for row, b, w in zip(*network[:3]):
        total = total + w * (b + row[0] * x[0] + row[1] * x[1]).tanh()
    return total


def train_step(network, xs, ys, lr):
    loss = Value(0)
    for x, y in zip(xs, ys):
        error = predict(network, x) - y
        loss = loss + error * error * (1 / len(xs))
    loss.backward()
    for part in [*network[0], network[1], network[2], [network[3]]]:
        for v in part:
            v.data, v.grad = v.data - lr * v.grad, 0.0
    return loss.data


def torch_step(parameters, x, y, lr):
    w1, b1, w2, b2 = parameters
    hidden = torch.nn.functional.linear(x, w1, b1).tanh()
    loss = ((hidden @ w2 + b2 - y) ** 2).sum() / len(y)
    loss.backward()
    with torch.no_grad():
        for p in parameters:
            p -= lr * p.grad
            p.grad.zero_()
    return float(loss.detach())
""",
    ],
    "attention_backward": [
        # the sum of g · out over the head is the mean of g_weights: flash attention's way
        """
def softmax_backward(g, p):
    return p * g - p * torch.einsum("...n,...n->...", g, p)[..., None]


def attention_backward(g, q, k, v, mask):
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
    p = F.softmax(scores.masked_fill(mask.logical_not(), float("-inf")), -1)
    out = p @ v
    delta = (g * out).sum(-1, keepdim=True)
    ds = p * (torch.einsum("bhtd,bhsd->bhts", g, v) - delta) / q.shape[-1] ** 0.5
    return ds @ k, ds.mT @ q, p.mT @ g


def gqa_backward(g, q, k, v, mask):
    groups = q.shape[1] // k.shape[1]
    parts = []
    for j in range(k.shape[1]):
        heads = range(j * groups, (j + 1) * groups)
        parts.append([attention_backward(g[:, h : h + 1], q[:, h : h + 1], k[:, j : j + 1], v[:, j : j + 1], mask)
                      for h in heads])
    g_q = torch.cat([one[0] for part in parts for one in part], 1)
    g_k = torch.cat([sum(one[1] for one in part) for part in parts], 1)
    g_v = torch.cat([sum(one[2] for one in part) for part in parts], 1)
    return g_q, g_k, g_v
""",
        # the whole matrix of a softmax's slopes, and no repeated key: a dimension for the group
        """
def softmax_backward(g, p):
    slopes = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
    return (slopes @ g[..., None])[..., 0]


def attention_backward(g, q, k, v, mask):
    d = q.size(-1)
    p = (q @ k.mT * d**-0.5 + torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -1e30)).softmax(-1)
    ds = softmax_backward(g @ v.mT, p)
    return [ds @ k * d**-0.5, ds.mT @ q * d**-0.5, p.mT @ g]


def gqa_backward(g, q, k, v, mask):
    B, H, T, D = q.shape
    split = (B, k.shape[1], -1, T, D)
    results = attention_backward(g.view(split), q.view(split), k[:, :, None], v[:, :, None], mask[:, :, None])
    return results[0].reshape(q.shape), results[1].sum(2), results[2].sum(2)
""",
    ],
}
