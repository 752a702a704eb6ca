"""The checks of notebook 10: each takes a reader's function and says whether it is right, in sizes that the notebook
does not use. A function that only works in the notebook's own sizes, or only in the case that was shown, is not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from model.attention import eager, repeat_kv

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
LLAMA_2 = {"7B": (32, 32, 32, 128), "13B": (40, 40, 40, 128), "70B": (80, 64, 8, 128)}  # Touvron et al. 2023


def draw(*shape: int) -> Tensor:
    """Random numbers, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def attends(attend: Attend, queries: int, keys: int, head_dim: int = 8) -> bool:
    """attend(q, k, v) is the formula in float64, where the last `queries` of `keys` tokens ask."""
    q, k, v = draw(3, 4, queries, head_dim), draw(3, 4, keys, head_dim), draw(3, 4, keys, head_dim + 1)[..., 1:]
    return torch.allclose(attend(q, k, v).double(), eager(q.double(), k.double(), v.double(), None, 0.0), atol=1e-5)


def merges(merge: Callable[[Tensor], Tensor]) -> bool:
    """(B, H, T, D) -> (B, T, H * D): token t has the numbers of its own heads, one head after the other."""
    out = draw(2, 3, 5, 4)
    expected = torch.stack([torch.cat([out[:, h, t] for h in range(3)], dim=-1) for t in range(5)], dim=1)
    return torch.equal(merge(out), expected)


def repeats(repeat: Callable[[Tensor, int], Tensor]) -> bool:
    """(B, H_kv, S, D) -> (B, H_kv * groups, S, D): neighbours share, 0 0 0 1 1 1."""
    x = draw(2, 3, 5, 4)
    return all(torch.equal(repeat(x, groups), repeat_kv(x, groups)) for groups in (1, 2, 4))


def hides_padding(hide: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """scores (B, H, T, T), real (B, T): minus infinity for every padded key, whatever B, H and T are."""
    for B, H, T in ((2, 3, 5), (4, 3, 4), (4, 4, 4), (1, 4, 3)):
        scores, real = draw(B, H, T, T), torch.ones(B, T, dtype=torch.bool)
        for row in range(B):
            real[row, : row % T] = False
        expected = scores.clone()
        for row, key in (~real).nonzero().tolist():
            expected[row, :, :, key] = -torch.inf
        if not torch.equal(hide(scores, real), expected):
            return False
    return True


def rotates(rotate: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """x (B, T, H, D), angles (T, D / 2): numbers 2i and 2i + 1 of token t are turned by angles[t, i], in every head."""
    for B, T, H in ((2, 5, 3), (1, 4, 4), (3, 3, 2)):
        x, angles = draw(B, T, H, 6), draw(T, 3)
        cos, sin = angles.double().cos()[:, None], angles.double().sin()[:, None]  # (T, 1, D / 2)
        a, b = x.double().unflatten(-1, (3, 2)).unbind(-1)
        expected = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        if not torch.allclose(rotate(x, angles).double(), expected, atol=1e-6):
            return False
    return True


def reorders(order: Callable[[int, int], list[int]]) -> bool:
    """H, H_kv -> the old numbers of the query heads in a new order: those of one key/value head stand together."""
    for heads, kv_heads in ((4, 2), (6, 2), (6, 3), (8, 1), (4, 4)):
        new = [int(head) for head in order(heads, kv_heads)]
        read = [head % kv_heads for head in new]
        if sorted(new) != list(range(heads)) or read != [place // (heads // kv_heads) for place in range(heads)]:
            return False
    return True


def masks_in_time(attend: Attend) -> bool:
    """Causal attention, also where a hidden score is far larger than all that may be seen."""
    q, k, v = draw(2, 4, 6, 8), draw(2, 4, 6, 8), draw(2, 4, 6, 8)
    k[:, :, -1] *= 1000
    rest = (attend(q, k, v)[:, :, :-1], eager(q, k, v, None, 0.0)[:, :, :-1])
    return attends(attend, 6, 6) and torch.allclose(*rest, atol=1e-5)


def scales(scores: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """q kᵀ / √D, of heads of any size."""
    for head_dim in (4, 16, 64):
        q, k = draw(2, 3, 5, head_dim).double(), draw(2, 3, 7, head_dim).double()
        if not torch.allclose(scores(q, k), q @ k.mT / head_dim**0.5):
            return False
    return True


def sums_to_one(weights: Callable[[Tensor], Tensor]) -> bool:
    """Scores (…, T, S) become shares of the keys, with as many dimensions in front as there are."""
    many = (draw(2, 3, 5, 5), draw(2, 5, 7), draw(4, 6))
    return all(torch.allclose(weights(x), x.exp() / x.exp().sum(-1, keepdim=True), atol=1e-6) for x in many)


def trims(trim: Callable[[Tensor, int], Tensor]) -> bool:
    """(B, H, S, D): the last `keep` tokens stay, none at 0, and all where there are fewer."""
    cache = draw(2, 3, 5, 4)
    return all(torch.equal(trim(cache, keep), cache[:, :, max(0, 5 - keep) :]) for keep in range(9))


def attends_behind_cache(attend: Attend) -> bool:
    """One new token, several of them, and a whole prompt."""
    return all(attends(attend, queries, 6) for queries in (1, 2, 3, 6))


def survives_half(weights: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """scores and allowed (B, 1, T, T): shares of what is allowed in any dtype; zeros in a row that may see nothing."""
    allowed = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    allowed[1, :, :, :2] = False  # padding on the left: rows 0 and 1 see nothing
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 1e-6)):
        for size in (1.0, 4000.0):  # a score of fp16 may be large, too
            scores = (size * (draw(2, 4, 6, 6) - 3)).to(dtype)  # added to a mask, these overflow
            expected = scores.double().masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0.0)
            if not torch.allclose(weights(scores, allowed).double(), expected, atol=tolerance):
                return False
    return True


def counts_cache(cache: Callable[[int, int, int, int], tuple[float, float]]) -> bool:
    """(layers, heads, kv_heads, head_dim) -> bytes of a token in 16 bits, and per cent of the same model with MHA."""
    for layers, heads, kv_heads, head_dim in (*LLAMA_2.values(), (32, 32, 8, 128), (32, 32, 1, 128), (2, 6, 3, 16)):
        size, share = cache(layers, heads, kv_heads, head_dim)
        if size != 2 * 2 * layers * kv_heads * head_dim or abs(share - 100 * kv_heads / heads) > 0.1:
            return False
    return True
