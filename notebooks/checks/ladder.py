"""Check what readers write in notebook 12: an interval, a rung of the ladder, a test for leaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from data.tokenizer import DEFAULT_VOCAB_SIZE
from eval.compare.runs import difference
from model.transformer import on_meta
from notebooks.checks.compare import same, unchanged
from train.config import RunConfig, load_run_config
from train.run.sweep import plan

LADDER = "configs/ladder.yaml"
# A rung may have this share of parameters more or fewer than the baseline.
ENOUGH_ALIKE = 0.05
Interval = tuple[float, float, float]


def by_headlight(baseline: Mapping[int, float], other: Mapping[int, float]) -> Interval:
    """Return the mean difference of common seeds, and the ends of its 95 % interval."""
    change = difference(baseline, other)
    assert change is not None
    assert change.interval is not None, "an interval needs two common seeds"
    return change.value, *change.interval


def paired_difference(function: Callable[..., Any]) -> None:
    cases: dict[str, tuple[dict[int, float], dict[int, float]]] = {
        "with equal differences": ({0: 1.0, 1: 2.0, 2: 4.0}, {0: 2.0, 1: 3.0, 2: 5.0}),
        "of the example": ({0: 1.0, 1: 2.0, 2: 4.0}, {0: 2.0, 1: 4.0, 2: 5.0}),
        "in another order": ({0: 1.0, 1: 2.0, 2: 4.0}, {2: 5.0, 0: 2.0, 1: 4.0}),
        "of smaller numbers": ({0: 3.0, 1: 2.5, 2: 2.0}, {0: 1.0, 1: 1.5, 2: 1.9}),
        "of other seeds": ({0: 0.5, 1: 9.0, 2: 4.0, 3: 2.0}, {1: 8.0, 2: 4.5, 7: 90.0}),
        "of four seeds": ({0: 1.0, 1: 5.0, 2: 2.0, 3: 8.0}, {0: 1.5, 1: 4.0, 2: 3.5, 3: 8.1}),
    }
    for case, (baseline, other) in cases.items():
        call = f"paired_difference({baseline}, {other}) {case}"
        same(call, function(dict(baseline), dict(other)), by_headlight(baseline, other), 1e-3)


def own_rung(rung: Any) -> None:
    """Assert that a rung is a new change of the baseline, of its size, on its data."""
    problem = f"A rung is a dictionary of keys and values, not {rung!r}."
    assert isinstance(rung, dict), problem
    assert rung, problem
    rungs = plan(LADDER, [], seeds=1)
    baseline = rungs[0].config
    config = load_run_config(LADDER, changes_of(rung))
    for key in rung:
        is_part = key.startswith(("model.", "train.optimizer."))
        problem = f"{key} is not a part of the model or the optimizer: only these may differ."
        assert is_part, problem
    for run in rungs:
        is_equal = (run.config.model, run.config.train) == (config.model, config.train)
        problem = f"Your rung {rung} is the ladder's {run.label}: change something else."
        assert not is_equal, problem
    size = size_of(config)
    wanted = size_of(baseline)
    problem = f"Your rung has {size:,} parameters, and must have about {wanted:,}."
    assert abs(size / wanted - 1) <= ENOUGH_ALIKE, problem


def furthest_look(predict: Callable[[Tensor], Tensor], ids: Tensor) -> int:
    """Return by how many places an output looks ahead at most. predict: ids (1, T) -> (1, T, V)"""
    before = predict(ids)
    furthest = 0
    for place in range(ids.shape[1]):
        changed = ids.clone()
        changed[:, place] = 0
        moved = (predict(changed) - before).abs().amax((0, 2)) > 1e-4  # (T,)
        for first in moved.nonzero()[:1, 0].tolist():  # none, if no output moves
            furthest = max(furthest, place - first)
    return furthest


def looks_ahead(function: Callable[..., Any]) -> None:
    """Check a test for leaks on small models: each output is a sum of the tokens that it sees."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(40, 6, generator=generator).abs()
    table[0] = 0.0  # so a change makes every number smaller
    ids = torch.randint(1, 40, (1, 8), generator=generator)
    causal = torch.ones(8, 8).tril()
    first_sees_last = causal.clone()
    first_sees_last[0, 7] = 1
    middle = causal.clone()
    middle[3, 5] = 0.01
    cases = {
        "with the causal mask": (causal, 0),
        "without a mask": (torch.ones(8, 8), 7),
        "whose outputs see one token too many": (torch.ones(8, 8).tril(1), 1),
        "in which only the first output sees the last token": (first_sees_last, 7),
        "whose output 3 hardly sees token 5": (middle, 2),
        "whose outputs see only earlier tokens": (causal.tril(-1), 0),
    }
    for case, (sees, expected) in cases.items():

        def predict(ids: Tensor, sees: Tensor = sees) -> Tensor:
            # the last term is like rounding, which depends on all tokens
            return sees @ table[ids] + 1e-7 * ids.sum()

        given = ids.clone()
        same(f"looks_ahead of a model {case}", function(predict, given), expected)
        unchanged("looks_ahead", "ids", given, ids)


def changes_of(rung: dict[str, Any]) -> list[str]:
    """Write a rung as the arguments of a command."""
    return [f"{key}={json.dumps(value)}" for key, value in rung.items()]


def size_of(config: RunConfig) -> int:
    vocabulary = config.data.tokenizer.vocab_size or DEFAULT_VOCAB_SIZE
    return on_meta(config.model.model_copy(update={"vocab_size": vocabulary})).num_parameters()
