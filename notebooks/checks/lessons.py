"""Check the functions that readers write in notebooks 01, 03, 04, 06, 08, 15 and 16."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eval.attention.subsets import Subsets
from model import ModelConfig
from notebooks import steps
from notebooks.checks import attention
from notebooks.checks.compare import same, shape_of

Function = Callable[..., Any]


def score(function: Function) -> None:
    q = torch.tensor([[1.0, 0], [0, 2]])
    k = torch.tensor([[3.0, 1], [4, 5]])
    expected = torch.tensor([[3.0, 4], [2, 10]])
    same("my_score([[1, 0], [0, 2]], [[3, 1], [4, 5]])", function(q, k), expected)
    shapes = {
        "six words, q and k (6, 8)": (6, 8),
        "heads in front, q and k (2, 3, 6, 8)": (2, 3, 6, 8),
    }
    for name, shape in shapes.items():
        q = attention.random(*shape)
        k = attention.random(*shape, seed=1)
        same(f"my_score(q, k) of {name}", function(q, k), steps.score(q.double(), k.double()))


def hide(function: Function) -> None:
    example = torch.tensor([[3.0, 4, 5], [2, 10, 1], [6, 7, 8]])
    call = f"my_hide({example.int().tolist()})"
    unchanged(call, function, example)
    same(call, function(example.clone()), steps.hide(example))
    for name, shape in {"six words": (6, 6), "heads in front, (2, 3, 6, 6)": (2, 3, 6, 6)}.items():
        scores = 5 * attention.random(*shape)
        same(f"my_hide(scores) of {name}", function(scores), steps.hide(scores))


def softmax(function: Function) -> None:
    x = torch.tensor([[0.0, 1, 2]])
    same("my_softmax([[0, 1, 2]])", function(x), x.double().softmax(-1))
    attention.check_softmax("my_softmax", function)  # as `python -m notebooks.check softmax` does
    hidden = steps.hide(attention.random(2, 3, 6, 6))
    expected = hidden.double().softmax(-1)
    same("my_softmax(hide(scores)) with heads in front", function(hidden), expected)


def mix(function: Function) -> None:
    weights = torch.tensor([[1.0, 0], [0.25, 0.75]])
    v = torch.tensor([[10.0, 0], [20, 4]])
    expected = torch.tensor([[10.0, 0], [17.5, 3]])
    same("my_mix([[1, 0], [0.25, 0.75]], [[10, 0], [20, 4]])", function(weights, v), expected)
    for name, shape in {"six words": (6,), "heads in front": (2, 3, 6)}.items():
        weights = attention.random(*shape, 6).softmax(-1)
        v = attention.random(*shape, 8, seed=1)
        call = f"my_mix(weights, v) of {name}, {tuple(weights.shape)} and {tuple(v.shape)}"
        same(call, function(weights, v), steps.mix(weights.double(), v.double()))


def divide(function: Function) -> None:
    example = torch.tensor([[8.0, 16]])
    unchanged("my_divide([[8, 16]], 64)", function, example, 64)
    same("my_divide([[8, 16]], 64)", function(example.clone(), 64), torch.tensor([[1.0, 2]]))
    for D in (4, 256):
        scores = steps.score(attention.random(300, D), attention.random(300, D, seed=1))
        divided = function(scores, D)
        shape_of(f"my_divide(scores, {D})", divided, (300, 300))
        deviation = f"the standard deviation of my_divide(scores, {D}) for random q and k"
        same(deviation, divided.std(), 1.0, 0.1)


def attend(function: Function) -> None:
    for name, shape in {"(6, 8)": (6, 8), "(2, 3, 6, 32), heads in front": (2, 3, 6, 32)}.items():
        q, k, v = (2 * attention.random(*shape, seed=seed) for seed in range(3))
        call = f"my_attend(q, k, v) of {name}"
        got = function(q, k, torch.ones_like(v))
        lesson = "The shares of a word must sum to 1."
        same(f"{call}, where every value is 1", got, torch.ones_like(v), lesson=lesson)
        later = v.clone()
        later[..., -1, :] = 1000
        got = function(q, k, later)
        shape_of(call, got, shape)
        first = got[..., 0, :]
        lesson = "It may read only itself."
        same(f"the output of the first word, {call}", first, v[..., 0, :], lesson=lesson)
        same(call, function(q, k, v), steps.attend(q.double(), k.double(), v.double()))


def ablate(function: Function) -> None:
    cases = {
        "my_ablate(weight, 1, 2) of the example": ((3, 4), 1, 2),
        "my_ablate(weight, 0, 3), three heads": ((5, 9), 0, 3),
        "my_ablate(weight, 2, 4), three heads": ((2, 12), 2, 4),
        "my_ablate(weight, 3, 1), five heads": ((6, 5), 3, 1),
    }
    for call, (shape, head, size) in cases.items():
        weight = torch.arange(1.0, 1 + shape[0] * shape[1]).view(shape)
        unchanged(call, function, weight, head, size)
        same(call, function(weight.clone(), head, size), steps.ablate(weight, head, size))


def repeat_kv(function: Function) -> None:
    for kv_heads, groups in ((2, 2), (2, 4), (4, 2), (3, 1), (1, 4)):
        numbers = torch.arange(float(kv_heads)).view(1, kv_heads, 1, 1)
        numbered = numbers.expand(2, kv_heads, 3, 5)  # each head has its number
        call = f"my_repeat_kv(x, {groups}) with {kv_heads} key/value heads"
        result = function(numbered, groups)
        shape_of(call, result, (2, kv_heads * groups, 3, 5))
        heads = [int(number) for number in result[0, :, 0, 0]]
        expected = [head for head in range(kv_heads) for _ in range(groups)]
        is_right = heads == expected
        assert is_right, f"{call}: these are heads {heads} of x, and must be heads {expected}."
        x = attention.random(2, kv_heads, 3, 5)
        same(call, function(x, groups), x.repeat_interleave(groups, 1))


def cache_bytes(function: Function) -> None:
    # (layers, query heads, key/value heads, head size, tokens, bytes of a number)
    cases = [
        (3, 6, 2, 4, 5, 4),  # the example of the text
        (1, 1, 1, 4, 1, 1),
        (3, 6, 2, 16, 10, 2),
        (32, 32, 8, 128, 8192, 2),
    ]
    for layers, heads, kv_heads, size, tokens, each in cases:
        config = ModelConfig(
            hidden_size=size * (heads + 1),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=size,
        )
        given = f"{layers} layers, {heads} query and {kv_heads} key/value heads of {size} numbers"
        # the formula, not the library's function: that one reads the same config
        expected = 2 * layers * kv_heads * size * tokens * each
        call = f"my_cache_bytes(config, {tokens}, {each}) of {given}"
        same(call, function(config, tokens, each), float(expected), 1e-9)


def unchanged(call: str, function: Function, x: Tensor, *others: Any) -> None:
    """Assert that a function leaves its argument as it is."""
    before = x.clone()
    function(x, *others)
    problem = f"{call} changes its argument, and must leave it as it is: return a new tensor."
    assert torch.equal(x, before), problem


def begins_to_copy(function: Function) -> None:
    cases = {
        50: [0.1, 1.2, 0.7, 5.0, 3.0],
        100: [0.0, 0.2, 1.0, 3.0],
        0: [1.5, 4.0],
        None: [0.0, 0.1, 0.2],
    }
    for step, gains in cases.items():
        looks = [{"step": 50 * i, "copy_gain": gain} for i, gain in enumerate(gains)]
        call = f"begins_to_copy(looks) with the gains {gains} at the steps 0, 50, …"
        same(call, function(looks), step)


Starts = dict[int, int | None]  # seed -> step from which the run copies


def earlier(function: Function) -> None:
    cases: list[tuple[Starts, Starts, tuple[int, int, int]]] = [
        ({0: 50, 1: 100, 2: 100}, {0: 100, 1: 50, 2: 100}, (1, 1, 1)),
        ({0: 50, 1: 150}, {1: 150, 0: 0}, (0, 1, 1)),
        ({3: 50, 4: None, 5: None, 6: None}, {3: None, 4: 50, 5: None, 6: 150}, (1, 2, 1)),
        ({5: 0, 6: 100}, {5: 50, 6: 150}, (2, 0, 0)),
        ({7: 50, 8: 100}, {8: 50, 9: 100}, (0, 1, 0)),
    ]
    for first, second, counts in cases:
        lists = []
        for starts in (first, second):
            lists.append([{"seed": seed, "looks": looks_from(starts[seed])} for seed in starts])
        call = f"earlier(first, second) of runs that copy from {first} and {second} (seed: step)"
        same(call, function(*lists), counts)


def looks_from(start: int | None) -> list[dict[str, float]]:
    """Return the looks at the steps 0, 50, 100 and 150 of a run that copies from a step."""
    looks = []
    for step in range(0, 200, 50):
        gain = 0.2 if start is None or step < start else 1.0
        looks.append({"step": step, "copy_gain": gain})
    return looks


def shapley(function: Function) -> None:
    games = {"0 without heads": [0, 1, 2, 7], "2 without heads": [2, 3, 3, 4, 9, 1, 0, 8]}
    for title, values in games.items():
        count = len(values).bit_length() - 1
        heads = [(0, i) for i in range(count)]

        def value(on: Iterable[Any], values=values, heads=heads) -> float:
            return float(values[sum(1 << heads.index(head) for head in set(on))])

        expected = Subsets(heads, {"zero": np.array(values, float)}).shapley("zero")
        got = function(value, heads)
        call = f"shapley(value, {heads}), where value is {title}"
        assert isinstance(got, dict), (
            f"{call}, is {got!r}, and must be a dictionary {{head: number}}."
        )
        for head, right in zip(heads, expected, strict=True):
            same(f"{call}: result[{head}]", got.get(head), float(right))


def rows_of_scores() -> tuple[Tensor, Tensor]:
    """Return scores (7, 100) whose exp overflows, in rows far apart, and values (100, 5)."""
    scores = 40 * attention.random(7, 100) + 100 * torch.arange(7)[:, None]
    return scores.float(), attention.random(100, 5, seed=1).float()


def in_blocks(step: Function, scores: Tensor, values: Tensor, sizes: list[int]) -> Tensor:
    """Return the outputs (R, D) of a step that reads blocks of these sizes."""
    state = steps.nothing_read(len(scores), values.shape[1])
    for block, its_values in zip(scores.split(sizes, dim=1), values.split(sizes), strict=True):
        state = step(state, block, its_values)
    return state[2] / state[1]


def read_block(function: Function) -> None:
    scores, values = rows_of_scores()
    at_once = scores.softmax(1) @ values
    for sizes in ([100], [1, 60, 3, 36]):
        blocks = "one block of 100 keys" if len(sizes) == 1 else "blocks of 1, 60, 3 and 36 keys"
        same(f"the output after {blocks}", in_blocks(function, scores, values, sizes), at_once)


def join_halves(function: Function) -> None:
    large, values = rows_of_scores()
    for name, scores in {"small": large / 40, "large": large}.items():
        halves = [
            steps.read_block(steps.nothing_read(7, 5), scores[:, part], values[part])
            for part in (slice(0, 50), slice(50, 100))
        ]
        expected = scores.softmax(1) @ values
        same(f"join_halves(a, b) of {name} scores", function(*halves), expected)


def parting(function: Function) -> None:
    life = {1: 5.0, 2: 4.0, 3: 3.0, 4: 2.0}
    for ours, theirs in (
        (life, {1: 5.0, 2: 4.0, 3: 2.5, 4: 2.5}),
        (life, dict(life)),
        (life, {3: 3.0, 4: 2.0000000001}),
        ({3: 3.0, 4: 2.5}, life),
        ({4: 1.0, 3: 1.0, 2: 4.0, 9: 0.0}, life),
        ({1: 5.0, 2: 4.0}, {3: 3.0, 4: 2.0}),
        ({1: 5.0, 2: 4.5, 3: 3.0}, life),
    ):
        step(f"parting({ours}, {theirs})", function(ours, theirs), steps.parting(ours, theirs))


def looks_back(function: Function) -> None:
    for T in (4, 1, 7):
        expected = torch.zeros(T, T)
        for i in range(T):
            expected[i, max(0, i - 1)] = 1
        same(f"looks_back({T})", function(T), expected)


def middle(function: Function) -> None:
    cases: list[list[int | None]] = [
        [200, 100, 300],
        [100, 175, 200, 300],
        [100, None, 300],
        [None, 100, None],
        [None, 200, None, 100],
        [None, None],
        [225],
        [300, 100, 100, None, 500, 200],
    ]
    for reached in cases:
        step(f"middle({reached})", function([*reached]), steps.middle(reached))


def step(call: str, got: Any, expected: int | None) -> None:
    assert got == expected, f"{call} is {got!r}, and must be {expected!r}."


def in_context(function: Function) -> None:
    example = torch.tensor([[9.0, 5, 3, 1, 2], [9, 3, 4, 3, 2]])
    for name, losses, early, late in (
        (f"{example.int().tolist()}", example, (1, 2), (3, 4)),
        ("(8, 49)", attention.random(8, 49), (3, 6), (42, 47)),
        ("(1, 20)", attention.random(1, 20), (0, 0), (19, 19)),
    ):
        call = f"in_context(losses {name}, {early}, {late})"
        same(call, function(losses, early, late), steps.in_context(losses, early, late))


def half_way(function: Function) -> None:
    for curve in (
        {0: 0.0, 10: 0.2, 20: 0.7, 30: 1.0},
        {0: 0.0, 10: -0.5, 20: -1.2, 30: -2.0},
        {0: 5.0, 10: 4.6, 25: 4.5, 50: 4.0},
        {0: 0.4, 10: 0.4, 20: 0.65, 30: 0.75, 40: 1.0},
        {0: 0.0, 10: 3.0, 20: 0.4, 30: 1.2, 40: 2.0},
        {5: 1.0, 6: 2.0},
    ):
        step(f"half_way({curve})", function(curve), steps.half_way(curve))


def smear(function: Function) -> None:
    example = torch.tensor([[4.0, 0], [0, 8], [2, 2]])
    for name, k, share in (
        (f"{example.int().tolist()}", example, 0.25),
        ("of six tokens, (6, 8)", attention.random(6, 8), 0.7),
        ("of one token, (1, 4)", attention.random(1, 4), 0.5),
    ):
        before = k.clone()
        mixed = share * k[1:] + (1 - share) * k[:-1]
        same(f"smear(k {name}, {share})", function(k, share), torch.cat((k[:1], mixed)))
        assert torch.equal(k, before), "smear changes its argument, and must leave it as it is."
