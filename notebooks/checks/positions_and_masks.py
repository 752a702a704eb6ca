"""Check the functions that readers write in notebooks 02 and 02b."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from model import LanguageModel
from model.masks import MaskSpec, boolean_mask
from model.rope import RotaryEmbedding, apply_rotary
from notebooks.checks.attention import random
from notebooks.checks.compare import same, shape_of
from notebooks.translator import Masks, Translator, exact, masks_of, words

Function = Callable[..., Any]
THETA = 10_000.0


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """Return x (…, T, D) as the model turns it at these positions (T,)."""
    cos, sin = RotaryEmbedding(x.shape[-1], THETA)(positions[None], x.dtype)  # (1, 1, T, D)
    flat = x.reshape(1, -1, *x.shape[-2:])
    return apply_rotary(flat, cos, sin).view(x.shape)


def rotate_pair(function: Function) -> None:
    one, zero, quarter = torch.tensor([1.0, 0.0, torch.pi / 2])
    same("rotate_pair(1, 0, π / 2)", function(one, zero, quarter), (0.0, 1.0))
    same("rotate_pair(0, 1, π / 2)", function(zero, one, quarter), (-1.0, 0.0))
    a, b = torch.tensor([0.6, -0.8])
    # with D = 2 there is one pair, and its angle at position 5 is 5
    expected = tuple(turned(torch.stack((a, b))[None], torch.tensor([5]))[0])
    same("rotate_pair(0.6, -0.8, 5)", function(a, b, torch.tensor(5.0)), expected)


def rope(function: Function, lm: LanguageModel, ids: Tensor) -> None:
    """Compare with the model's RoPE, alone and inside the trained model: ids (1, T)."""
    x = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]])
    for position in (0, 1):
        call = f"my_rope([[[[1, 2, 3, 4]]]], [{position}])"
        positions = torch.tensor([position])
        same(call, function(x.clone(), positions), turned(x, positions))
    shape = (2, 3, 7, 16)
    x = random(*shape).float()
    for start in (0, 40):
        positions = torch.arange(start, start + shape[2])
        call = f"my_rope(x, positions {start} … {start + shape[2] - 1}) of x {shape}"
        before = x.clone()
        same(call, function(x, positions), turned(before, positions), 1e-3)
        assert torch.equal(x, before), f"{call} changes x itself, and must return a new tensor."
    positions = torch.arange(ids.shape[1])
    with torch.no_grad():
        usual = lm(ids)
        # the backends read this name whenever a layer runs
        with patch("model.attention.apply_rotary", lambda x, cos, sin: function(x, positions)):
            same("lm(ids) with my_rope in each layer", lm(ids), usual, 1e-3)


def sinusoidal(function: Function) -> None:
    same("my_sinusoidal([0], 4)", function(torch.tensor([0]), 4), torch.tensor([[0.0, 0, 1, 1]]))
    for positions, size in ((torch.tensor([0, 1, 2]), 4), (torch.arange(90, 100), 64)):
        call = f"my_sinusoidal({positions[0]} … {positions[-1]}, {size})"
        result = function(positions, size)
        shape_of(call, result, (len(positions), size))
        # the point (1, 0), turned by RoPE, is (cos, sin)
        x = torch.cat(
            (torch.ones(len(positions), size // 2), torch.zeros(len(positions), size // 2)), 1
        )
        cos, sin = turned(x, positions).chunk(2, dim=1)
        same(call, result, torch.cat((sin, cos), dim=1), 1e-3)


def prefix_mask(function: Function) -> None:
    queries = torch.arange(6)[:, None]
    keys = torch.arange(6)[None, :]
    for prompt in (3, 1):
        expected = torch.ones(6, 6, dtype=torch.bool).tril()
        expected[:, :prompt] = True
        call = f"prefix_mask(queries, keys, {prompt}), of 6 tokens"
        same(call, function(queries, keys, prompt), expected)


def mended_mask(function: Function, length: int = 12) -> None:
    """Compare with the mask of model/masks.py, for several windows and paddings."""
    position = torch.arange(length)
    paddings = {
        "no padding": position >= 0,
        "padding on the left": position >= 3,
        "padding on the right": position < length - 3,
    }
    for window in (length, 4, 1):
        for name, is_real in paddings.items():
            real = is_real.long()
            spec = MaskSpec(position, position, attention_mask=real[None], sliding_window=window)
            expected = boolean_mask(spec)
            assert expected is not None  # a window is a rule of its own
            call = f"mended_mask(window={window}, real) with {name}"
            same(call, function(window, real), expected[0, 0])


def safe_softmax(function: Function) -> None:
    scores = torch.linspace(-3, 3, 20).view(4, 5).sin().requires_grad_()
    # row 1 may see nothing
    may_see = [[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]]
    mask = torch.tensor(may_see).bool()
    exps = scores.detach().exp() * mask
    weights = function(scores, mask)
    expected = exps / exps.sum(-1, keepdim=True).clamp(min=1e-9)
    same("safe_softmax(scores, mask)", weights, expected)
    problem = "The weights are right, but they carry no gradient to the scores."
    assert weights.requires_grad, problem
    (weights * torch.arange(5)).sum().backward()
    problem = "The weights are right, but the gradient of the scores is NaN."
    gradient = scores.grad
    assert gradient is not None, problem
    assert gradient.isfinite().all(), problem


def three_masks(function: Function, translator: Translator) -> None:
    """Compare what may be seen, then let a trained translator write with these masks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        source, _ = words(4)
    for length in (5, 1, 9):
        call = f"three_masks(source, {length})"
        result = function(source, length)
        is_right = isinstance(result, tuple | list) and len(result) == 3
        assert is_right, f"{call} must return 3 masks, as in `return encoder, decoder, cross`."
        for name, mask, expected in zip(
            ("encoder", "decoder", "cross"), result, masks_of(source, length), strict=True
        ):
            what = f"the {name} mask of {call}"
            assert isinstance(mask, Tensor), (
                f"{what} is a {type(mask).__name__}, and must be a tensor."
            )
            queries = source.shape[1] if name == "encoder" else length
            keys = length if name == "decoder" else source.shape[1]
            scores = (len(source), 1, queries, keys)
            same(what, fitted(what, mask, scores), expected.broadcast_to(scores))

    def makes_masks(source: Tensor, length: int) -> Masks:
        return Masks(*function(source, length))

    share = exact(translator, makes_masks, count=100)
    assert share > 0.9, f"With three_masks the translator writes {share:.0%} of the words right."


def fitted(what: str, mask: Tensor, scores: tuple[int, ...]) -> Tensor:
    """Return a mask in the shape of the scores (B, 1, queries, keys) that it must fit."""
    try:
        return mask.broadcast_to(scores)
    except RuntimeError:
        problem = (
            f"{what} has the shape {tuple(mask.shape)}, which does not fit scores of {scores}."
        )
        raise AssertionError(problem) from None
