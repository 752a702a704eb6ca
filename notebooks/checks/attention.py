"""The checks of the exercises on attention. Each compares with the formula in float64, in a few milliseconds."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from notebooks.checks.compare import same, shape_of

BEFORE = "Forbid before the softmax. After it, a forbidden score has already taken its share from the others."


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def softmax(mine: ModuleType) -> str:
    x = torch.tensor([[0.0, 1.0, 2.0], [-1.0, 3.0, 0.5]])
    for what, scores in {
        f"softmax(x) for x = {x.tolist()}": x,
        "softmax(x) for a row of 1000, 1001 and 999": torch.tensor([[1000.0, 1001.0, 999.0]]),
        "softmax(x) for two rows, one around 0 and one around 1000": torch.stack([x[0], x[1] + 1000]),
        "softmax(x) for a score of -inf beside others": torch.tensor([[0.0, -torch.inf, 1.0]]),
        "softmax(x) for random x": random(2, 3, 5),
    }.items():
        before = scores.clone()
        same(what, mine.softmax(scores), scores.double().softmax(-1))
        assert torch.equal(scores, before), "softmax(x) changes x itself: compute a new tensor (x - …, not x -= …)."
    return "Attention, sampling and the loss turn scores into shares with these lines, and yours do not overflow."


def causal_mask(mine: ModuleType) -> str:
    for queries, keys in ((3, 3), (2, 5), (1, 4), (1, 1)):
        wanted = [[key <= keys - queries + query for key in range(keys)] for query in range(queries)]
        same(f"causal_mask({queries}, {keys})", mine.causal_mask(queries, keys), torch.tensor(wanted))
    return "No token sees the future, with a cache and without."


def attention(mine: ModuleType) -> str:
    one = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1]])[None, None]  # the example of the text
    values, everything = torch.tensor([[10.0], [20.0]])[None, None], torch.ones(1, 1, 1, 2, dtype=torch.bool)
    out = mine.attention(one[:, :, :1], one, values, everything)
    same("the example of the text", out, torch.tensor([[[[11.192]]]]))
    q, k, v = (random(2, 3, length, 6, seed=seed) for seed, length in enumerate((4, 7, 7)))
    causal = torch.ones(4, 7, dtype=torch.bool).tril(3)[None, None]  # (1, 1, T, S)
    ones = mine.attention(q, k, torch.ones_like(v), causal)
    same("the output where every value is 1 (shares that sum to 1 copy 1)", ones, torch.ones_like(q))
    for name, mask in {"causal mask": causal, "mask (2, 1, 4, 7)": causal & (random(2, 1, 1, 7) < 1)}.items():
        assert mask.any(-1).all()
        same(f"attention(q, k, v, mask) with a {name}", mine.attention(q, k, v, mask), formula(q, k, v, mask))

    # large scores: the first number of every query is 1, so the first one of a key moves all of its scores
    q[..., 0] = 1
    for name, keys, by, lesson in [
        ("scores around 100", slice(7), 100, "exp(100) is too large: subtract a row's largest score first."),
        ("scores around -100", slice(7), -100, "A score of -10 would be the largest here: what forbids is -∞."),
        ("forbidden scores that are the largest", slice(4, 7), 200, BEFORE),
    ]:
        moved = k.clone()
        moved[:, :, keys, 0] += by * math.sqrt(6)
        out, wanted = mine.attention(q, moved, v, causal), formula(q, moved, v, causal)
        same(f"attention(q, k, v, mask) with {name}", out, wanted, 1e-3, lesson)

    inputs = {"q": q.requires_grad_(), "k": k.requires_grad_(), "v": v.requires_grad_()}
    same_gradients("attention(q, k, v, mask)", mine.attention(q, k, v, causal), formula(q, k, v, causal), inputs)
    # the next sentence ends in a command: docs/attention.md explains it
    return (
        "This is the heart of every language model, and it can train one: python -m train.pretrain "
        "configs/small.yaml name=my_heads model.attn_implementation=mine "
        "model.my_attention=notebooks/build/attention.py"
    )


def formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q.double() @ k.double().mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v.double()


def same_gradients(what: str, got: Tensor, wanted: Tensor, inputs: dict[str, Tensor]) -> None:
    """Assert that the reader's result, which is right, also teaches its inputs what the formula teaches them."""
    lesson = "The numbers are right, but training would break: something is detached, or is NaN on its way."
    assert got.requires_grad, f"{what} has no gradient. {lesson}"
    results = [
        torch.autograd.grad(out.square().sum(), [*inputs.values()], allow_unused=True, materialize_grads=True)
        for out in (got, wanted)
    ]
    for name, mine, right in zip(inputs, *results, strict=True):
        same(f"the gradient of {what} for {name}", mine, right, 1e-3, lesson)


def repeat_kv(mine: ModuleType) -> str:
    numbered = torch.arange(2.0)[None, :, None, None].expand(1, 2, 3, 4)  # each head is full of its own number
    x = random(2, 3, 5, 4)
    for name in ("by_interleave", "by_expand"):
        function = getattr(mine, name)
        result = function(numbered, 2)
        shape_of(f"{name}(x, 2)", result, (1, 4, 3, 4))
        heads = [int(number) for number in result[0, :, 0, 0]]
        assert heads == [0, 0, 1, 1], f"The heads of {name}(x, 2) are x's heads {heads}, and must be [0, 0, 1, 1]."
        for groups in (1, 3):
            same(f"{name}(x, {groups})", function(x, groups), x.repeat_interleave(groups, 1))
    q = random(2, 6, 4, 4, seed=1)
    wanted = q.double() @ x.double().repeat_interleave(2, 1).mT / 2
    same("shared_scores(q, k) with 6 query heads and 3 key/value heads", mine.shared_scores(q, x), wanted)
    return "MHA, GQA and MQA are one model to you now, with three numbers of key/value heads."


def rope(mine: ModuleType) -> str:
    wanted = torch.tensor([[p * theta ** (-2 * i / 8) for i in range(4)] for theta in (100.0,) for p in range(5)])
    same("angles(5, 8, 100)", mine.angles(5, 8, 100.0), wanted)
    x, (cos, sin) = random(2, 3, 5, 8), (wanted.double().cos(), wanted.double().sin())

    def turned(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * cos - b * sin, b * cos + a * sin

    halves = torch.cat(turned(x[..., :4].double(), x[..., 4:].double()), -1)
    same("half_split(x, angle)", mine.half_split(x, wanted), halves)
    pairs = torch.stack(turned(x[..., 0::2].double(), x[..., 1::2].double()), -1).flatten(-2)
    same("interleaved(x, angle)", mine.interleaved(x, wanted), pairs)
    order = mine.order(8)
    assert isinstance(order, Tensor), f"order(8) is a {type(order).__name__}, and must be a tensor."
    assert sorted(order.tolist()) == list(range(8)), f"order(8) is {order.tolist()}: each of 0 … 7 must be there once."
    same("interleaved(x[..., order(8)], angle)", mine.interleaved(x[..., order], wanted), halves[..., order])
    return "You can read both customs, and convert a model from one to the other."


def masks(mine: ModuleType) -> str:
    real = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])  # padding on the right, and on the left
    same("padding_mask(real)", mine.padding_mask(real), real[:, None, None].bool())
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    mask = real[:, None, None].bool() & causal
    same("combined_mask(real)", mine.combined_mask(real), mask)
    scores = 3 * random(2, 3, 4, 4)
    hidden = scores.masked_fill(~mask, 200.0)  # what may not be seen is by far the largest
    for what, given, lesson in [
        ("masked_softmax(scores, mask)", scores, ""),
        ("masked_softmax(scores, mask) where forbidden scores are 200", hidden, BEFORE),
    ]:
        given.requires_grad_()
        weights = mine.masked_softmax(given, mask)
        # what exp leaves of the scores that count, as shares; an empty row has the sum 0
        allowed = given.double().exp() * mask
        wanted = allowed / allowed.sum(-1, keepdim=True).clamp(min=1e-300)
        same(what, weights, wanted, lesson=lesson)
        assert (weights[~mask.expand_as(weights)] == 0).all(), "A forbidden share is small, and must be exactly 0."
        same_gradients(what, weights, wanted, {"scores": given})
    return "A batch of texts of any lengths is safe: no padding is read, and no row turns into NaN."


class OnlyTiles(TorchDispatchMode):
    """Raises AssertionError where the reader's code has a score for every key at once, of all queries or of a few."""

    def __init__(self, scores: int, keys: int, size: int):
        super().__init__()
        self.scores = scores
        self.keys = keys
        self.size = size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        assert "scaled_dot_product" not in str(function), "PyTorch's own kernel reads the tiles here: write the loop."
        if isinstance(result, Tensor) and result.is_floating_point():
            shape = tuple(result.shape)
            problem = f"a tensor of shape {shape} is as large as all scores (T x S): use the tiles"
            assert result.numel() < self.scores, problem
            # k itself, turned or scaled, has the size of a head as well
            is_row = self.keys in shape and self.size not in shape
            assert not is_row, f"a tensor of shape {shape} has a score for each of the {self.keys} keys: take one tile"
        return result


def online_softmax(mine: ModuleType) -> str:
    example = [torch.tensor([[[[number] for number in numbers]]]) for numbers in ([1.0], [1.0, 2, 4], [10.0, 20, 30])]
    out = mine.attention_in_tiles(*example, 2)
    same("the example of the text, tile = 2", out, torch.tensor([[[[28.0178]]]]))
    q, k, v = (random(1, 2, length, 7, seed=seed) for seed, length in enumerate((64, 300, 300)))
    rising = torch.arange(300)[:, None] / 30  # later tiles have larger scores; turned round, earlier ones
    for name, keys in {
        "random keys": k,
        "ever larger scores": k + rising * q.mean(2, keepdim=True),
        "large keys": 40 * k,
    }.items():
        for tile in (16, 300):
            with OnlyTiles(2 * 64 * 300, 300, 7) if tile == 16 else nullcontext():
                result = mine.attention_in_tiles(q, keys, v, tile)
            wanted = formula(q, keys, v, torch.tensor(True))
            same(f"attention_in_tiles(q, k, v, {tile}) with {name}", result, wanted, 1e-3)
    return "Your code computes attention over any number of keys in the memory of one tile, as FlashAttention does."


def kv_cache(mine: ModuleType) -> str:
    k, v = random(1, 2, 8, 4), random(1, 2, 8, 4, seed=1)
    for window in (None, 3, 1):
        cache, seen = mine.KVCache(window), 0
        for count in (4, 1, 1, 2):
            what = f"append, the cache has seen {seen} tokens, T = {count}, window = {window}"
            result = cache.append(k[:, :, seen : seen + count], v[:, :, seen : seen + count])
            assert len(result or ()) == 2, f"{what}: return two tensors, keys and values."
            first = 0 if window is None else max(0, seen - (window - 1))
            seen += count
            for name, all_of, got in zip(("keys", "values"), (k, v), result, strict=True):
                same(f"what append returns as {name} ({what})", got, all_of[:, :, first:seen])
            assert cache.seen == seen, f"{what}: then `seen` is {cache.seen}, and must be {seen}."
            most = seen if window is None else min(seen, window - 1)
            for name, kept in (("keys", cache.k), ("values", cache.v)):
                count = 0 if kept is None else kept.shape[2]
                assert count == most, f"{what}: then the cache keeps {count} {name}, and must keep {most}."
    caches = mine.KVCache(), mine.KVCache()  # a model has one for each layer, and uses them in turn
    for layer, cache in enumerate(caches):
        got = cache.append(k[:, :, layer:4], v[:, :, layer:4])[0]
        shared = "Two caches share what they keep: keep keys, values and `seen` in `self`, not in the class."
        assert got.shape[2] == cache.seen == 4 - layer, shared
    return "Text is written without reading it again, and a window keeps the memory constant."


CHECKS = {
    "softmax": softmax,
    "causal_mask": causal_mask,
    "attention": attention,
    "repeat_kv": repeat_kv,
    "rope": rope,
    "masks": masks,
    "online_softmax": online_softmax,
    "kv_cache": kv_cache,
}
