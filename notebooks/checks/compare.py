"""Compare results with float64 numbers, and describe a difference in one sentence."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def shape_of(call: str, got: Any, shape: tuple[int, ...]) -> None:
    """Assert that this is a tensor of this shape. call: as the reader wrote it, "softmax(x)"."""
    is_there(call, got)
    assert isinstance(got, Tensor), f"{call} is a {type(got).__name__}, and must be a tensor."
    problem = f"{call} has the shape {tuple(got.shape)}, and must have the shape {tuple(shape)}."
    assert got.shape == shape, problem


def is_there(call: str, got: Any) -> None:
    """Assert that a function returned something."""
    lesson = "is there a `return`? To print a result is not to return it."
    assert got is not None, f"{call} returns None, and must return a result: {lesson}"


def same(call: str, got: Any, expected: Any, tolerance: float = 1e-4, lesson: str = "") -> None:
    """Assert that a function returned a tensor, a number, a tuple of them, or a list.

    - tolerance: a share of a number, or absolute for small ones; float32 errs by about 1e-6
    - lesson: a sentence about the cause of a difference
    """
    if expected is not None:
        is_there(call, got)
    if isinstance(expected, tuple):
        is_right = isinstance(got, tuple | list) and len(got) == len(expected)
        assert is_right, f"{call} must return {len(expected)} results, as in `return a, b`."
        for i, (mine, right) in enumerate(zip(got, expected, strict=True), start=1):
            same(f"result {i} of {call}", mine, right, tolerance, lesson)
    elif isinstance(expected, Tensor) and expected.ndim:
        same_numbers(call, got, expected, tolerance, lesson)
    elif isinstance(expected, int | float | Tensor):
        number = number_of(got)
        assert number is not None, f"{call} is {described(got)}, and must be one number."
        is_right = math.isclose(number, expected, rel_tol=tolerance, abs_tol=tolerance)
        came, right = both(number, float(expected))
        assert is_right, f"{call} is {came}, and must be {right}. {lesson}".strip()
    else:
        if isinstance(expected, list):  # a range will do
            got = list(got)
            same_items(call, got, expected, lesson)
        assert got == expected, f"{call} is {got!r}, and must be {expected!r}. {lesson}".strip()


def same_items(call: str, got: list[Any], expected: list[Any], lesson: str) -> None:
    """Assert that two lists are equal, and name the first place that differs in long ones."""
    if len(expected) < 12:
        return
    for i, (mine, right) in enumerate(zip(got, expected, strict=False)):
        assert mine == right, f"{call}: [{i}] is {mine!r}, and must be {right!r}. {lesson}".strip()
    problem = f"{call} has {len(got)} values, and must have {len(expected)}. {lesson}"
    assert len(got) == len(expected), problem.strip()


def same_numbers(call: str, got: Any, expected: Tensor, tolerance: float, lesson: str) -> None:
    shape_of(call, got, expected.shape)
    if expected.dtype == torch.bool:
        kind = str(got.dtype).removeprefix("torch.")
        assert got.dtype == torch.bool, f"{call} holds {kind}, and must hold booleans."
        differs = got != expected
    else:
        close = torch.isclose(got.double(), expected.double(), tolerance, tolerance, equal_nan=True)
        differs = ~close
    if differs.any():
        first = tuple(differs.nonzero()[0].tolist())
        place = ", ".join(map(str, first))
        came, right = both(got[first].item(), expected[first].item())
        numbers = f"[{place}] is {came}, and must be {right}"
        if differs.numel() > 1:
            numbers += f" ({int(differs.sum())} of {differs.numel()} numbers differ)"
        raise AssertionError(f"{call}: {numbers}. {lesson}".strip())


def unchanged(call: str, name: str, now: Tensor, before: Tensor) -> None:
    """Assert that a function has not changed its input. name: what the input is called."""
    is_same = torch.equal(now, before)
    remedy = f"compute a new tensor ({name} - …, not {name} -= …)"
    assert is_same, f"{call} changes {name}, and must leave it as it is: {remedy}."


def is_value(answer: Any, expected: Any, tolerance: float) -> None:
    """Assert that an answer is this number, word or tuple. The sentence does not give it away."""
    if isinstance(expected, str | tuple):
        if isinstance(answer, list):
            answer = tuple(answer)
        is_right = type(answer) is type(expected)
        problem = f"Your answer is {described(answer)}, and must be {described(expected)}."
        assert is_right, problem
        assert answer == expected, f"Your answer is {answer!r}, and that is not it."
        return
    number = number_of(answer)
    problem = f"Your answer is {described(answer)}, and must be one number."
    assert number is not None, problem
    digits = in_digits(number)
    assert number >= expected - tolerance, f"Your answer is {digits}, and that is too small."
    assert number <= expected + tolerance, f"Your answer is {digits}, and that is too large."


def number_of(value: Any) -> float | None:
    """Return a number of Python or NumPy, or a tensor of one element, as a float; else None."""
    if isinstance(value, str | bool):
        return None
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        return None


def described(value: Any) -> str:
    """Name a value: a function, a tensor of the shape (2, 3), 3 values, a value of the type str."""
    if callable(value):
        return "a function"
    if isinstance(value, Tensor):
        return f"a tensor of the shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{len(value)} value{'s' * (len(value) != 1)}"
    return f"a value of the type {type(value).__name__}"


def both(came: float, right: float) -> tuple[str, str]:
    """Write two numbers with as many digits as it takes to see that they differ."""
    for digits in (5, 9, 17):
        texts = in_digits(came, digits), in_digits(right, digits)
        if texts[0] != texts[1]:
            break
    return texts


def in_digits(number: float, digits: int = 5) -> str:
    if isinstance(number, bool):
        return str(number)
    return f"{number:,.0f}" if abs(number) >= 1e5 else f"{number:.{digits}g}"
