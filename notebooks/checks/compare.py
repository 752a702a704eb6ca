"""How a check compares: with float64 numbers, and a sentence that shows shapes and the first numbers that differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def same(what: str, got: Any, wanted: Tensor, tolerance: float = 1e-4) -> None:
    """Assert that two tensors have the same shape and numbers. what: how the reader wrote it, "softmax(x)".

    tolerance: of a number's size, and of 1 for small ones: float32 errs by about 1e-6. Booleans must be equal.
    """
    assert got is not None, f"{what} returns None: is there a `return`?"
    assert isinstance(got, Tensor), f"{what} is a {type(got).__name__}, and must be a tensor."
    shapes = f"{tuple(got.shape)}, and must have the shape {tuple(wanted.shape)}"
    assert got.shape == wanted.shape, f"{what} has the shape {shapes}."
    if wanted.dtype == torch.bool:
        assert got.dtype == torch.bool, f"{what} holds {str(got.dtype).removeprefix('torch.')}, and must hold booleans."
        differs = got != wanted
    else:
        differs = ~torch.isclose(got.double(), wanted.double(), tolerance, tolerance, equal_nan=True)
    if differs.any():
        first = tuple(differs.nonzero()[0].tolist())
        place, count = ", ".join(map(str, first)), f"{int(differs.sum())} of {differs.numel()} numbers"
        numbers = f"[{place}] is {show(got[first])}, and must be {show(wanted[first])}"
        raise AssertionError(f"{what} of shape {tuple(got.shape)} differs in {count}. The first: {numbers}.")


def show(number: Tensor) -> str:
    return str(number.item()) if number.dtype == torch.bool else f"{number.item():.5g}"
