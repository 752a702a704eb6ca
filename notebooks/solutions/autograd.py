"""Autograd: gradients come from a graph. 40 minutes.

Training needs the slope of the loss for every parameter. Autograd computes all of them in one
pass. Each result remembers its parents, the values that it was computed from, and its slope for
each parent: how fast it changes if this parent changes alone.

    a + b       slopes 1 and 1              a ** n      slope n · a ** (n - 1)
    a · b       slopes b and a              exp(a)      slope exp(a)
                                            tanh(a)     slope 1 - tanh(a)²

The chain rule: on a path, slopes multiply. If a value has several paths to the loss, they add up.
So `backward` gives the loss the gradient 1, and goes from it to the first values. Each value
adds its own gradient · slope to each parent's gradient:

    a = 2, b = -3, c = 10        d = a · b = -6        e = d + c = 4        loss = e ** 2 = 16
    gradients: e 2 · 4 = 8       d and c 8 · 1 = 8     a 8 · b = -24        b 8 · a = 16
    y = a · a + a, a = 3         the gradient of a is 3 + 3 + 1 = 7: a has three paths

There is a trap. A value may pass its gradient on only when it is complete, after all values that
were computed from it. So sort the graph first: parents before children (a topological order). Then
go through it in reverse. Visit each value once: in b = a + a, c = b + b, … the paths double.

Then train a network of two layers with it, one example at a time. w1 has a row for each hidden
neuron, b1 a number for each, w2 a number for each, and b2 is one number:

    hidden_i = tanh(Σ_j w1[i][j] · x[j] + b1[i])         prediction = Σ_i w2[i] · hidden_i + b2
    loss = mean over all examples of (prediction - y)²

    train_step      a step with your Values:   value.data = value.data - lr · value.grad
    torch_step      the same step with PyTorch: loss.backward() and torch.optim.SGD

Both set the gradients back after the step, because `backward` adds to them. The check compares the
parameters of both in float64.

After A. Karpathy's micrograd. In Headlight PyTorch does this: loss.backward() in train/loop.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor


class Value:
    """A number that remembers its parents."""

    def __init__(
        self, data: float, parents: tuple[Value, ...] = (), slopes: tuple[float, ...] = ()
    ):
        self.data = data
        self.parents = parents
        self.slopes = slopes  # how fast this value changes with each parent
        self.grad = 0.0  # how fast the loss changes with this value

    def __add__(self, other: Value | float) -> Value:
        other = as_value(other)
        # <solution>
        return Value(self.data + other.data, (self, other), (1.0, 1.0))
        # </solution>

    def __mul__(self, other: Value | float) -> Value:
        other = as_value(other)
        # <solution>
        return Value(self.data * other.data, (self, other), (other.data, self.data))
        # </solution>

    def __pow__(self, n: float) -> Value:
        """n is a number, not a Value."""
        # <solution>
        return Value(self.data**n, (self,), (n * self.data ** (n - 1),))
        # </solution>

    def exp(self) -> Value:
        # <solution>
        power = math.exp(self.data)
        return Value(power, (self,), (power,))
        # </solution>

    def tanh(self) -> Value:
        # <solution>
        squashed = math.tanh(self.data)
        return Value(squashed, (self,), (1 - squashed**2,))
        # </solution>

    def backward(self) -> None:
        """Add the slope of this value to the `grad` of every value that it was computed from."""
        # <solution>
        order: list[Value] = []
        seen: set[Value] = set()

        def visit(value: Value) -> None:
            if value not in seen:
                seen.add(value)
                for parent in value.parents:
                    visit(parent)
                order.append(value)  # after its parents

        visit(self)
        self.grad = 1.0
        for value in reversed(order):
            for parent, slope in zip(value.parents, value.slopes, strict=True):
                parent.grad += slope * value.grad
        # </solution>

    # All other operations are made of yours.
    def __neg__(self) -> Value:
        return self * -1

    def __sub__(self, other: Value | float) -> Value:
        return self + -as_value(other)

    def __rsub__(self, other: float) -> Value:
        return as_value(other) - self

    def __truediv__(self, other: Value | float) -> Value:
        return self * as_value(other) ** -1

    __radd__ = __add__  # 2 + a; so sum(values), which begins with 0, works
    __rmul__ = __mul__


def as_value(number: Value | float) -> Value:
    return number if isinstance(number, Value) else Value(number)


# w1 (hidden, inputs), b1 (hidden,), w2 (hidden,), b2 (): the parameters of the two layers.
Network = tuple[list[list[Value]], list[Value], list[Value], Value]


def all_values(network: Network) -> Iterator[Value]:
    w1, b1, w2, b2 = network
    for row in w1:
        yield from row
    yield from [*b1, *w2, b2]


def predict(network: Network, x: list[float]) -> Value:
    """Return the prediction of the network for one example."""
    w1, b1, w2, b2 = network
    # <solution>
    prediction = b2
    for weights, bias, out_weight in zip(w1, b1, w2, strict=True):
        total = bias
        for weight, number in zip(weights, x, strict=True):
            total = total + weight * number
        prediction = prediction + out_weight * total.tanh()
    return prediction
    # </solution>


def train_step(network: Network, xs: list[list[float]], ys: list[float], lr: float) -> float:
    """Return the loss of these examples, then take one step and set the gradients to 0."""
    # <solution>
    errors = [(predict(network, x) - y) ** 2 for x, y in zip(xs, ys, strict=True)]
    loss = sum(errors, Value(0.0)) * (1 / len(errors))
    loss.backward()
    for value in all_values(network):
        value.data -= lr * value.grad
        value.grad = 0.0
    return loss.data
    # </solution>


def torch_step(parameters: list[Tensor], x: Tensor, y: Tensor, lr: float) -> float:
    """Return the loss, then take the same step with PyTorch.

    - parameters: w1 (H, I), b1 (H,), w2 (H,) and b2 (), each with requires_grad=True
    - x (N, I), y (N,)
    """
    w1, b1, w2, b2 = parameters
    # <solution>
    prediction = (x @ w1.T + b1).tanh() @ w2 + b2  # (N,)
    loss = (prediction - y).square().mean()
    optimizer = torch.optim.SGD(parameters, lr)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
    # </solution>
