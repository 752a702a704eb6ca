"""Check the exercises on attention. Each is compared with the formula in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from notebooks.checks.compare import same, shape_of, unchanged
from notebooks.checks.examples import random

BEFORE = "Mask before the softmax. After it, a forbidden score already has a share."


def softmax(mine: ModuleType) -> str:
    check_softmax("softmax", mine.softmax)
    return (
        "Attention, sampling and the loss turn scores into shares like this. Yours do not overflow."
    )


def check_softmax(name: str, function: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([[0.0, 1.0, 2.0], [-1.0, 3.0, 0.5]])
    cases = {
        f"x = {x.tolist()}": x,
        "a row of 1000, 1001 and 999": torch.tensor([[1000.0, 1001.0, 999.0]]),
        "two rows, one around 0 and one around 1000": torch.stack([x[0], x[1] + 1000]),
        "a score of -inf beside others": torch.tensor([[0.0, -torch.inf, 1.0]]),
        "random x": random(2, 3, 5),
    }
    for case, scores in cases.items():
        before = scores.clone()
        same(f"{name}(x) for {case}", function(scores), scores.double().softmax(-1))
        unchanged(f"{name}(x)", "x", scores, before)


def causal_mask(mine: ModuleType) -> str:
    for queries, keys in ((3, 3), (2, 5), (1, 4), (1, 1)):
        positions = torch.arange(keys - queries, keys)[:, None]  # (T, 1), of the queries
        expected = torch.arange(keys) <= positions  # (T, S)
        same(f"causal_mask({queries}, {keys})", mine.causal_mask(queries, keys), expected)
    return "No token sees the future, with a cache and without."


def attention(mine: ModuleType) -> str:
    # The example in the text.
    keys = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1]])[None, None]
    values = torch.tensor([[10.0], [20.0]])[None, None]
    everything = torch.ones(1, 1, 1, 2, dtype=torch.bool)
    out = mine.attention(keys[:, :, :1], keys, values, everything)
    same("attention(q, k, v, mask) of the example in the text", out, torch.tensor([[[[11.192]]]]))

    call = "attention(q, k, v, mask)"
    q, k, v = (random(2, 3, length, 6, seed=seed) for seed, length in enumerate((4, 7, 7)))
    causal = torch.ones(4, 7, dtype=torch.bool).tril(3)[None, None]  # (1, 1, T, S)
    out = mine.attention(q, k, torch.ones_like(v), causal)
    name = f"{call} where every value is 1 (shares that sum to 1 copy 1)"
    same(name, out, torch.ones_like(q))
    some = random(2, 1, 1, 7) < 1
    some[..., 0] = True  # every row sees something
    masks = {"causal mask": causal, "mask (2, 1, 4, 7)": causal & some}
    for name, mask in masks.items():
        out = mine.attention(q, k, v, mask)
        same(f"{call} with a {name}", out, formula(q, k, v, mask))

    # The first number of every query is 1, so the first number of a key moves all its scores.
    q[..., 0] = 1
    for name, places, by, lesson in [
        ("scores around 100", slice(7), 100, "exp(100) is too large: subtract the largest score."),
        ("scores around -100", slice(7), -100, "-10 would be the largest score here: use -∞."),
        ("forbidden scores that are the largest", slice(4, 7), 200, BEFORE),
    ]:
        moved = k.clone()
        moved[:, :, places, 0] += by * math.sqrt(6)
        out = mine.attention(q, moved, v, causal)
        same(f"{call} with {name}", out, formula(q, moved, v, causal), 1e-3, lesson)

    inputs = {"q": q.requires_grad_(), "k": k.requires_grad_(), "v": v.requires_grad_()}
    same_gradients(call, mine.attention(q, k, v, causal), formula(q, k, v, causal), inputs)
    # docs/attention.md explains this command.
    command = (
        "python -m train.pretrain configs/small.yaml name=my_heads "
        "model.attn_implementation=mine model.my_attention=notebooks/build/attention.py"
    )
    return f"This is the heart of every language model. Train one with it: {command}"


def formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q.double() @ k.double().mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v.double()


def same_gradients(call: str, got: Tensor, expected: Tensor, inputs: dict[str, Tensor]) -> None:
    """Assert that the gradients are right, too."""
    lesson = "The numbers are right, but training would break: something is detached, or NaN."
    assert got.requires_grad, f"{call} has no gradient, and must have one. {lesson}"
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    tensors = [*inputs.values()]
    gradients = torch.autograd.grad(got.square().sum(), tensors, **options)
    expected_ones = torch.autograd.grad(expected.square().sum(), tensors, **options)
    for name, mine, right in zip(inputs, gradients, expected_ones, strict=True):
        same(f"the gradient of {call} for {name}", mine, right, 1e-3, lesson)


def repeat_kv(mine: ModuleType) -> str:
    numbered = torch.arange(2.0)[None, :, None, None].expand(1, 2, 3, 4)  # each head has its number
    x = random(2, 3, 5, 4)
    for name in ("by_interleave", "by_expand"):
        function = getattr(mine, name)
        result = function(numbered, 2)
        shape_of(f"{name}(x, 2)", result, (1, 4, 3, 4))
        heads = [int(number) for number in result[0, :, 0, 0]]
        problem = f"The heads of {name}(x, 2) are x's heads {heads}, and must be [0, 0, 1, 1]."
        assert heads == [0, 0, 1, 1], problem
        for groups in (1, 3):
            same(f"{name}(x, {groups})", function(x, groups), x.repeat_interleave(groups, 1))
    q = random(2, 6, 4, 4, seed=1)
    expected = q.double() @ x.double().repeat_interleave(2, 1).mT / 2
    call = "shared_scores(q, k) with 6 query heads and 3 key/value heads"
    same(call, mine.shared_scores(q, x), expected)
    return "Your code fits MHA, GQA and MQA: they differ only in the number of key/value heads."


def rope(mine: ModuleType) -> str:
    angles = torch.tensor([[p * 100.0 ** (-2 * i / 8) for i in range(4)] for p in range(5)])
    same("angles(5, 8, 100)", mine.angles(5, 8, 100.0), angles)
    x = random(2, 3, 5, 8)
    cos = angles.double().cos()
    sin = angles.double().sin()

    def turned(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * cos - b * sin, b * cos + a * sin

    halves = torch.cat(turned(x[..., :4].double(), x[..., 4:].double()), -1)
    same("half_split(x, angle)", mine.half_split(x, angles), halves)
    pairs = torch.stack(turned(x[..., 0::2].double(), x[..., 1::2].double()), -1).flatten(-2)
    same("interleaved(x, angle)", mine.interleaved(x, angles), pairs)
    order = mine.order(8)
    assert isinstance(order, Tensor), f"order(8) is a {type(order).__name__}, and must be a tensor."
    is_order = sorted(order.tolist()) == list(range(8))
    assert is_order, f"order(8) is {order.tolist()}: each of 0 … 7 must be there once."
    got = mine.interleaved(x[..., order], angles)
    call = f"order(8) is {order.tolist()}, and interleaved(x[..., order(8)], angle)"
    same(call, got, halves[..., order])
    return "You can read both customs, and convert a model between them."


def masks(mine: ModuleType) -> str:
    real = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])  # padding on the right, and on the left
    same("padding_mask(real)", mine.padding_mask(real), real[:, None, None].bool())
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    mask = real[:, None, None].bool() & causal
    same("combined_mask(real)", mine.combined_mask(real), mask)
    scores = 3 * random(2, 3, 4, 4)
    hidden = scores.masked_fill(~mask, 200.0)  # the forbidden ones are the largest by far
    for call, x, lesson in [
        ("masked_softmax(scores, mask)", scores, ""),
        ("masked_softmax(scores, mask) where forbidden scores are 200", hidden, BEFORE),
    ]:
        x.requires_grad_()
        weights = mine.masked_softmax(x, mask)
        allowed = x.double().exp() * mask
        # an empty row has the sum 0
        expected = allowed / allowed.sum(-1, keepdim=True).clamp(min=1e-300)
        same(call, weights, expected, lesson=lesson)
        largest = weights[~mask.expand_as(weights)].abs().max().item()
        assert largest == 0, f"{call}: a forbidden share is {largest:.2g}, and must be exactly 0."
        same_gradients(call, weights, expected, {"scores": x})
    return "Texts of any lengths fit into a batch: no token reads padding, and no row becomes NaN."


class OnlyTiles(TorchDispatchMode):
    """Raise AssertionError if the reader's code has the scores of all keys at once."""

    def __init__(self, scores: int, keys: int, size: int):
        super().__init__()
        self.scores = scores
        self.keys = keys
        self.size = size

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        is_kernel = "scaled_dot_product" in str(function)
        call = "attention_in_tiles"
        assert not is_kernel, f"{call} calls PyTorch's own kernel, and must loop over the tiles."
        if isinstance(result, Tensor) and result.is_floating_point():
            shape = tuple(result.shape)
            call = f"{call} makes a tensor of the shape {shape}"
            problem = "as large as all scores (T x S), and must keep to one tile"
            assert result.numel() < self.scores, f"{call}, {problem}."
            # k itself, turned or scaled, has the size of a head as well
            is_row = self.keys in shape and self.size not in shape
            problem = f"with a score for each of the {self.keys} keys, and must take one tile"
            assert not is_row, f"{call}, {problem}."
        return result


def online_softmax(mine: ModuleType) -> str:
    example = [torch.tensor(x)[None, None, :, None] for x in ([1.0], [1.0, 2, 4], [10.0, 20, 30])]
    out = mine.attention_in_tiles(*example, 2)
    call = "attention_in_tiles(q, k, v, 2) of the example in the text"
    same(call, out, torch.tensor([[[[28.0178]]]]))
    q, k, v = (random(1, 2, length, 7, seed=seed) for seed, length in enumerate((64, 300, 300)))
    rising = torch.arange(300)[:, None] / 30  # later tiles have larger scores
    cases = {
        "random keys": k,
        "growing scores": k + rising * q.mean(2, keepdim=True),
        "large keys": 40 * k,
    }
    for name, keys in cases.items():
        for tile in (16, 300):
            with OnlyTiles(2 * 64 * 300, 300, 7) if tile == 16 else nullcontext():
                got = mine.attention_in_tiles(q, keys, v, tile)
            expected = formula(q, keys, v, torch.tensor(True))
            same(f"attention_in_tiles(q, k, v, {tile}) with {name}", got, expected, 1e-3)
    return (
        "Your code attends to any number of keys in the memory of one tile, as FlashAttention does."
    )


class InChunks(TorchDispatchMode):
    """Count the operations of the reader's code; raise AssertionError for scores of all tokens."""

    def __init__(self, tokens: int):
        super().__init__()
        self.tokens = tokens
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        self.count += 1
        if isinstance(result, Tensor):
            problem = f"chunked makes a tensor of the shape {tuple(result.shape)}"
            is_whole = result.shape[-2:] == (self.tokens, self.tokens)
            assert not is_whole, f"{problem}, and must compute a chunk at a time."
        return result


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """The formula, token by token in float64."""
    q, k, v, beta = q.double(), k.double(), v.double(), beta.double()
    memory = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3], dtype=torch.float64)
    outputs = []
    for t in range(k.shape[2]):
        returned = torch.einsum("bhkv,bhk->bhv", memory, k[:, :, t])
        correction = beta[:, :, t, None] * (v[:, :, t] - returned)
        memory = memory + torch.einsum("bhk,bhv->bhkv", k[:, :, t], correction)
        outputs.append(torch.einsum("bhkv,bhk->bhv", memory, q[:, :, t]))
    return torch.stack(outputs, dim=2)


def linear_attention(mine: ModuleType) -> str:
    # The example of the text.
    keys = torch.tensor([[1.0, 0], [0.6, 0.8], [1, 0]])[None, None]
    values = torch.tensor([[10.0], [20], [30]])[None, None]
    shares = torch.tensor([[[1.0, 1, 0.5]]])
    outputs = torch.tensor([[10.0], [20], [24.2]])[None, None]
    out = mine.recurrent(keys, keys, values, shares)
    same("recurrent: the example of the text", out, outputs)
    for size in (3, 1, 2):
        out = mine.chunked(keys, keys, values, shares, size)
        same(f"chunked: the example of the text in chunks of {size}", out, outputs)

    # Queries and keys of length 1, as in a model.
    q = F.normalize(random(2, 3, 100, 6), dim=-1)
    k = F.normalize(random(2, 3, 100, 6, seed=1), dim=-1)
    v = random(2, 3, 100, 4, seed=2)
    beta = random(2, 3, 100, seed=3).sigmoid()
    expected = delta_rule(q, k, v, beta)
    same("recurrent(q, k, v, beta) for 100 tokens", mine.recurrent(q, k, v, beta), expected, 1e-5)
    for size in (100, 32, 1):
        call = f"chunked(q, k, v, beta, {size}) for 100 tokens"
        same(call, mine.chunked(q, k, v, beta, size), expected, 1e-5)
    nothing = mine.recurrent(q, k, v, torch.zeros_like(beta))
    same("recurrent where β is 0, so nothing is written", nothing, torch.zeros_like(expected))

    inputs = {"q": q, "k": k, "v": v, "beta": beta}
    for tensor in inputs.values():
        tensor.requires_grad_()
    for name, out in (
        ("recurrent", mine.recurrent(q, k, v, beta)),
        ("chunked", mine.chunked(q, k, v, beta, 32)),
    ):
        same_gradients(name, out, delta_rule(q, k, v, beta), inputs)

    long = [random(1, 1, 256, 6, seed=seed) / 6 for seed in range(3)]
    with InChunks(256) as mode:
        mine.chunked(*long, torch.ones(1, 1, 256), 64)
    problem = f"chunked takes {mode.count} operations for 256 tokens in 4 chunks"
    remedy = "solve the equations of a chunk at once, without a loop"
    assert mode.count < 256, f"{problem}, and must take fewer than 256: {remedy}."
    return (
        "Your memory is as large after a million tokens as after three. A model with it: "
        "python -m train.pretrain configs/hybrid.yaml"
    )


def kv_cache(mine: ModuleType) -> str:
    k = random(1, 2, 8, 4)
    v = random(1, 2, 8, 4, seed=1)
    for window in (None, 3, 1, 6):
        cache = mine.KVCache(window)
        seen = 0
        for count in (4, 1, 1, 2):
            call = f"append, the cache has seen {seen} tokens, T = {count}, window = {window}"
            result = cache.append(k[:, :, seen : seen + count], v[:, :, seen : seen + count])
            assert len(result or ()) == 2, f"{call}: return two tensors, keys and values."
            first = 0 if window is None else max(0, seen - (window - 1))
            seen += count
            for name, tensor, got in zip(("keys", "values"), (k, v), result, strict=True):
                same(f"what append returns as {name} ({call})", got, tensor[:, :, first:seen])
            assert cache.seen == seen, f"{call}: then `seen` is {cache.seen}, and must be {seen}."
            most = seen if window is None else min(seen, window - 1)
            for name, cached in (("keys", cache.k), ("values", cache.v)):
                number = 0 if cached is None else cached.shape[2]
                problem = f"then the cache keeps {number} {name}, and must keep {most}."
                assert number == most, f"{call}: {problem}"
    # A model has a cache for each layer, and uses them in turn.
    for layer, cache in enumerate([mine.KVCache(), mine.KVCache()]):
        got = cache.append(k[:, :, layer:4], v[:, :, layer:4])[0]
        is_own = got.shape[2] == cache.seen == 4 - layer
        problem = f"append to cache {layer} of two returns {got.shape[2]} keys"
        remedy = "store keys, values and `seen` in `self`"
        assert is_own, f"{problem}, and must return its own {4 - layer}: {remedy}."
    return "A model need not read its text again, and a window keeps the memory constant."


CHECKS = {
    "softmax": softmax,
    "causal_mask": causal_mask,
    "attention": attention,
    "repeat_kv": repeat_kv,
    "rope": rope,
    "masks": masks,
    "online_softmax": online_softmax,
    "linear_attention": linear_attention,
    "kv_cache": kv_cache,
}
