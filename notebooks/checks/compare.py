"""How a check compares: with float64 numbers, and a sentence that shows shapes and the first numbers that differ."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def shape_of(what: str, got: Any, wanted: tuple[int, ...]) -> None:
    """Assert that this is a tensor of this shape. what: how the reader wrote it, "softmax(x)"."""
    is_there(what, got)
    assert isinstance(got, Tensor), f"{what} is a {type(got).__name__}, and must be a tensor."
    assert got.shape == wanted, f"{what} has the shape {tuple(got.shape)}, and must have the shape {tuple(wanted)}."


def is_there(what: str, got: Any) -> None:
    """Assert that a function returned something."""
    assert got is not None, f"{what} returns None: is there a `return`? To print a result is not to return it."


def same(what: str, got: Any, wanted: Any, tolerance: float = 1e-4, lesson: str = "") -> None:
    """Assert that a function returned what is wanted: a tensor, a number, several of them in a tuple, or a list.

    tolerance: of a number's size, and of 1 for small ones: float32 errs by about 1e-6. Booleans must be equal.
    lesson: what it means if the numbers differ.
    """
    if wanted is not None:
        is_there(what, got)
    if isinstance(wanted, tuple):
        is_right = isinstance(got, tuple | list) and len(got) == len(wanted)
        assert is_right, f"{what} must return {len(wanted)} results, as in `return a, b`."
        for place, (mine, right) in enumerate(zip(got, wanted, strict=True), 1):
            same(f"result {place} of {what}", mine, right, tolerance, lesson)
    elif isinstance(wanted, Tensor) and wanted.ndim:
        same_numbers(what, got, wanted, tolerance, lesson)
    elif isinstance(wanted, int | float | Tensor):
        number = number_of(got)
        assert number is not None, f"{what} is {described(got)}, and must be one number."
        is_right = math.isclose(number, wanted, rel_tol=tolerance, abs_tol=tolerance)
        assert is_right, f"{what} is {in_digits(number)}, and must be {in_digits(float(wanted))}. {lesson}".strip()
    else:
        got = list(got) if isinstance(wanted, list) else got  # a range will do
        assert got == wanted, f"{what} is {got!r}, and must be {wanted!r}. {lesson}".strip()


def same_numbers(what: str, got: Any, wanted: Tensor, tolerance: float, lesson: str) -> None:
    shape_of(what, got, wanted.shape)
    if wanted.dtype == torch.bool:
        assert got.dtype == torch.bool, f"{what} holds {str(got.dtype).removeprefix('torch.')}, and must hold booleans."
        differs = got != wanted
    else:
        differs = ~torch.isclose(got.double(), wanted.double(), tolerance, tolerance, equal_nan=True)
    if differs.any():
        first = tuple(differs.nonzero()[0].tolist())
        place, count = ", ".join(map(str, first)), f"{int(differs.sum())} of {differs.numel()}"
        numbers = f"[{place}] is {show(got[first])}, and must be {show(wanted[first])}"
        shape = tuple(got.shape)
        problem = f"{what}: the shape {shape} is right, {count} numbers are not. The first: {numbers}."
        raise AssertionError(f"{problem} {lesson}".strip())


def is_value(answer: Any, wanted: Any, tolerance: float) -> None:
    """Assert that an answer is this number, word or tuple, in a sentence that does not give it away."""
    if isinstance(wanted, str | tuple):
        answer = tuple(answer) if isinstance(answer, list) else answer
        assert type(answer) is type(wanted), f"Your answer is {described(answer)}, and must be {described(wanted)}."
        assert answer == wanted, f"Your answer is {answer!r}, and that is not it."
        return
    number = number_of(answer)
    assert number is not None, f"Your answer is {described(answer)}, and must be one number."
    shown = f"Your answer is {in_digits(number)}"
    assert number >= wanted - tolerance, f"{shown}, and that is too small."
    assert number <= wanted + tolerance, f"{shown}, and that is too large."


def number_of(got: Any) -> float | None:
    """A Python number, NumPy's, or a tensor of one element as a float; else None."""
    try:
        return None if isinstance(got, str | bool) else float(got)
    except (TypeError, ValueError, RuntimeError):
        return None


def described(got: Any) -> str:
    """A noun for it: a function, a tensor of the shape (2, 3), 3 values, a value of the type str."""
    if callable(got):
        return "a function"
    if isinstance(got, Tensor):
        return f"a tensor of the shape {tuple(got.shape)}"
    if isinstance(got, tuple | list):
        return f"{len(got)} value{'s' * (len(got) != 1)}"
    return f"a value of the type {type(got).__name__}"


def show(number: Tensor) -> str:
    return str(number.item()) if number.dtype == torch.bool else in_digits(number.item())


def in_digits(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1e5 else f"{number:.5g}"
