"""How a check compares: with float64 numbers, and a sentence that shows shapes and the first numbers that differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def shape_of(what: str, got: Any, wanted: tuple[int, ...]) -> None:
    """Assert that this is a tensor of this shape. what: how the reader wrote it, "softmax(x)"."""
    assert got is not None, f"{what} returns None: is there a `return`?"
    assert isinstance(got, Tensor), f"{what} is a {type(got).__name__}, and must be a tensor."
    assert got.shape == wanted, f"{what} has the shape {tuple(got.shape)}, and must have the shape {tuple(wanted)}."


def same(what: str, got: Any, wanted: Tensor, tolerance: float = 1e-4) -> None:
    """Assert that this is a tensor of the same shape, with the same numbers.

    tolerance: of a number's size, and of 1 for small ones: float32 errs by about 1e-6. Booleans must be equal.
    """
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
        raise AssertionError(f"{what}: the shape {shape} is right, {count} numbers are not. The first: {numbers}.")


def show(number: Tensor) -> str:
    return str(number.item()) if number.dtype == torch.bool else f"{number.item():.5g}"
