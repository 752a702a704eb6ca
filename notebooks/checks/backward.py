"""Check the exercises on backward passes. PyTorch's autograd is the reference, in float64."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from notebooks.checks.compare import is_there, same, unchanged
from notebooks.checks.examples import random as normal
from notebooks.checks.examples import shift

TOLERANCE = 1e-9  # float64 errs by about 1e-16, and a step of the wrong size by far more

# A call as the reader writes it, and the same for tensors. Each is called with a and b.
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": lambda a, b: a + b,
    "a + 2": lambda a, b: a + 2,
    "a * b": lambda a, b: a * b,
    "a * 3": lambda a, b: a * 3,
    "a ** 2": lambda a, b: a**2,
    "a ** 3": lambda a, b: a**3,
    "b ** -1": lambda a, b: b**-1,
    "a.exp()": lambda a, b: a.exp(),
    "a.tanh()": lambda a, b: a.tanh(),
    "a - b": lambda a, b: a - b,
    "2 - a": lambda a, b: 2 - a,
    "a / b": lambda a, b: a / b,
    "sum([a, b])": lambda a, b: sum([a, b]),
}
PATHS = "If a value has several paths to the result, the gradients of the paths add up."
COMPLETE = "A value passes its gradient on after all values that were computed from it."
SEVERAL: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a + a": (lambda a, b: a + a, PATHS),
    "a * a + a": (lambda a, b: a * a + a, PATHS),
    "(a * b + 10) ** 2": (lambda a, b: (a * b + 10) ** 2, "Slopes on a path multiply."),
    "(a * b + a) * a.tanh()": (lambda a, b: (a * b + a) * a.tanh(), PATHS),
    "c + c.tanh(), c = a * b": (lambda a, b: (c := a * b) + c.tanh(), COMPLETE),
    "c.tanh() + c, c = a * b": (lambda a, b: (c := a * b).tanh() + c, COMPLETE),
}


def autograd(mine: ModuleType) -> str:
    for call, function in OPERATIONS.items():
        check_gradients(mine, call, function)
    for call, (function, lesson) in SEVERAL.items():
        check_gradients(mine, call, function, lesson)
    check_random_graphs(mine)
    a = mine.Value(2.0)
    (a * 3).backward()
    (a * 4).backward()
    lesson = "`backward` adds to the gradients that are there, as PyTorch does."
    same("a.grad after (a * 3).backward() and (a * 4).backward()", a.grad, 7.0, lesson=lesson)
    check_number_of_visits(mine)
    largest = check_steps(mine)
    difference = f"They differ by at most {largest:.0e}"
    return f"Your autograd and PyTorch's train the same network. {difference}: rounding."


def check_gradients(
    mine: ModuleType, call: str, function: Callable[[Any, Any], Any], lesson: str = ""
) -> None:
    numbers = (0.5, -1.5)
    a, b = (torch.tensor(number, dtype=torch.float64, requires_grad=True) for number in numbers)
    right = function(a, b)
    right.backward()
    values = [mine.Value(number) for number in numbers]
    out = function(*values)
    where = f"({call}) with a = 0.5 and b = -1.5"
    is_there(where, out)
    same(f"the data of {where}", getattr(out, "data", out), right.item(), TOLERANCE)
    problem = f"{where} is a {type(out).__name__}, and must be a Value."
    assert isinstance(out, mine.Value), problem
    same(
        f"the data of a after {call}", values[0].data, 0.5, lesson="An operation changes no value."
    )
    out.backward()
    for name, value, tensor in zip("ab", values, (a, b), strict=True):
        expected = 0.0 if tensor.grad is None else tensor.grad.item()
        same(
            f"the gradient of {name}, after backward of {where}",
            value.grad,
            expected,
            TOLERANCE,
            lesson,
        )


def check_random_graphs(mine: ModuleType) -> None:
    """Compare every gradient of graphs in which each value may be used several times."""
    for seed in range(5):
        chance = random.Random(seed + shift())
        numbers = [chance.uniform(-1, 1) for _ in range(3)]
        values: list[Any] = [mine.Value(number) for number in numbers]
        tensors = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in numbers]
        for _ in range(20):
            first, second = (chance.randrange(len(values)) for _ in range(2))
            operation = chance.choice(
                [
                    lambda a, b: a + b,
                    lambda a, b: a * b,
                    lambda a, b: (a + b).tanh(),
                    lambda a, b: (a * -0.5).exp() - b,
                ]
            )
            values.append(operation(values[first], values[second]))
            tensors.append(operation(tensors[first], tensors[second]))
        for tensor in tensors:
            tensor.retain_grad()
        sum(tensors[-4:]).tanh().backward()  # type: ignore[union-attr]
        sum(values[-4:]).tanh().backward()
        for i, (value, tensor) in enumerate(zip(values, tensors, strict=True)):
            expected = 0.0 if tensor.grad is None else tensor.grad.item()
            name = f"the gradient of value {i} of a random graph (seed {seed})"
            same(name, value.grad, expected, TOLERANCE, f"{PATHS} {COMPLETE}")


def check_number_of_visits(mine: ModuleType) -> None:
    """Count the calls of a backward pass with 2 ** 16 paths: one a path would never end later."""
    value = first = mine.Value(1.0)
    for _ in range(16):
        value = value + value
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        value.backward()
    finally:
        sys.setprofile(before)
    same("the gradient of a, doubled 16 times", first.grad, 65_536.0)
    problem = f"a doubled 16 times is 17 values, and backward makes {calls:,} calls"
    assert calls < 2000, f"{problem}: it must visit each value once, not once a path."


def check_steps(mine: ModuleType) -> float:
    """Compare three steps with PyTorch, and return the largest difference of a parameter."""
    shapes = ((3, 2), (3,), (3,), ())
    start = [normal(*shape, seed=seed).double() for seed, shape in enumerate(shapes)]
    x = normal(4, 2, seed=4).double()
    y = normal(4, seed=5).double()
    network = tuple(in_values(mine, tensor.tolist()) for tensor in start)
    for example, right in zip(x, forward(start, x), strict=True):
        got = mine.predict(network, example.tolist())
        is_there("predict(network, x)", got)
        same("predict(network, x)", getattr(got, "data", got), right.item(), TOLERANCE)
    theirs = [tensor.clone().requires_grad_() for tensor in start]
    reference = [tensor.clone() for tensor in start]
    for step in (1, 2, 3):
        parameters = [tensor.requires_grad_() for tensor in reference]
        loss = (forward(parameters, x) - y).square().mean()
        gradients = torch.autograd.grad(loss, parameters)
        moved = zip(parameters, gradients, strict=True)
        reference = [parameter.detach() - 0.1 * gradient for parameter, gradient in moved]
        lesson = "The gradients of the step before must not be added." if step > 1 else ""
        got = mine.train_step(network, x.tolist(), y.tolist(), 0.1)
        same(f"train_step(…) in step {step}", got, loss.item(), TOLERANCE, lesson)
        got = mine.torch_step(theirs, x, y, 0.1)
        same(f"torch_step(…) in step {step}", got, loss.item(), 1e-6, lesson)
        for i, name in enumerate(("w1", "b1", "w2", "b2")):
            after = f"{name} after step {step} of"
            numbers = torch.tensor(in_numbers(network[i]), dtype=torch.float64)
            same(f"{after} train_step", numbers, reference[i], TOLERANCE, lesson)
            same(f"{after} torch_step", theirs[i].detach(), reference[i], TOLERANCE, lesson)
    return max(
        float((torch.tensor(in_numbers(values), dtype=torch.float64) - tensor).abs().max())
        for values, tensor in zip(network, (tensor.detach() for tensor in theirs), strict=True)
    )


def forward(parameters: list[Tensor], x: Tensor) -> Tensor:
    w1, b1, w2, b2 = parameters
    return (x @ w1.T + b1).tanh() @ w2 + b2


def in_values(mine: ModuleType, numbers: Any) -> Any:
    """Return nested lists of numbers as nested lists of Values."""
    if isinstance(numbers, list):
        return [in_values(mine, part) for part in numbers]
    return mine.Value(numbers)


def in_numbers(values: Any) -> Any:
    if isinstance(values, list):
        return [in_numbers(part) for part in values]
    return values.data


def attention_backward(mine: ModuleType) -> str:
    p = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    g = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    got = mine.softmax_backward(g, p)
    right = torch.tensor([[0.25, -0.125, -0.125]], dtype=torch.float64)
    same("softmax_backward of the example", got, right, TOLERANCE)
    scores = normal(2, 3, 4, 5).double().requires_grad_()
    p = scores.softmax(-1)
    g = normal(2, 3, 4, 5, seed=1).double()
    (right,) = torch.autograd.grad(p, scores, g)
    got = mine.softmax_backward(g, p.detach())
    lesson = "The sum is over a row: the last dimension, with keepdim=True."
    same("softmax_backward(g, p) of random scores", got, right, TOLERANCE, lesson)

    keys = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1]], dtype=torch.float64)[None, None]
    values = torch.tensor([[10.0], [20]], dtype=torch.float64)[None, None]
    everything = torch.ones(1, 1, 1, 2, dtype=torch.bool)
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    check_attention(
        mine.attention_backward, "the example", one, keys[:, :, :1], keys, values, everything
    )
    causal = torch.ones(4, 6, dtype=torch.bool).tril(2)[None, None]
    padded = causal & torch.tensor([[1] * 6, [0, 1, 1, 1, 1, 1]], dtype=torch.bool)[:, None, None]
    cases = {
        "4 queries, 6 keys": torch.ones_like(causal),
        "a causal mask": causal,
        "padding": padded,
    }
    for name, mask in cases.items():
        q, g = (normal(2, 3, 4, 8, seed=seed).double() for seed in (0, 1))
        k, v = (normal(2, 3, 6, 8, seed=seed).double() for seed in (2, 3))
        check_attention(mine.attention_backward, name, g, q, k, v, mask)
    for kv_heads, name in ((2, "GQA, 4 heads on 2"), (1, "MQA, 4 heads on 1"), (4, "MHA, 4 on 4")):
        q, g = (normal(2, 4, 4, 8, seed=seed).double() for seed in (0, 1))
        k, v = (normal(2, kv_heads, 6, 8, seed=seed).double() for seed in (2, 3))
        check_attention(mine.gqa_backward, name, g, q, k, v, padded)
    return "Your backward pass equals autograd's, and shared heads get the sum of their readers'."


def check_attention(
    function: Any, name: str, g: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor
) -> None:
    """Compare the gradients of q, k and v with autograd's."""
    call = f"{getattr(function, '__name__', 'your function')}, {name}"
    inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    groups = q.shape[1] // k.shape[1]
    repeated = [tensor.repeat_interleave(groups, dim=1) for tensor in inputs[1:]]
    scores = inputs[0] @ repeated[0].mT / q.shape[-1] ** 0.5
    out = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ repeated[1]
    before = [tensor.clone() for tensor in (g, q, k, v)]
    with torch.no_grad():
        got = function(g, q, k, v, mask)
    is_there(call, got)
    problem = f"{call} must return three tensors, the gradients of q, k and v."
    is_triple = isinstance(got, tuple | list) and len(got) == 3
    assert is_triple, problem
    expected = torch.autograd.grad(out, inputs, g)
    # v first: its gradient needs the fewest steps
    for letter, i in (("v", 2), ("q", 0), ("k", 1)):
        mine_of = got[i]
        if isinstance(mine_of, Tensor):
            kind = str(mine_of.dtype).removeprefix("torch.")
            problem = (
                f"{call}: the gradient of {letter} is {kind}, and must be float64, as {letter} is."
            )
            assert mine_of.dtype == torch.float64, problem
        right = expected[i].round(decimals=12)  # 0, not 5e-16
        same(f"the gradient of {letter}, {call}", mine_of, right, TOLERANCE)
    for letter, now, old in zip("gqkv", (g, q, k, v), before, strict=True):
        unchanged(call, letter, now, old)


CHECKS: dict[str, Callable[[ModuleType], str]] = {
    "autograd": autograd,
    "attention_backward": attention_backward,
}
