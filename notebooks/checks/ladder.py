"""Check what readers write in notebook 12: an interval, and a rung of the ladder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from data.tokenizer import DEFAULT_VOCAB_SIZE
from eval.compare.runs import difference
from model.transformer import on_meta
from notebooks.checks.compare import same
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


def changes_of(rung: dict[str, Any]) -> list[str]:
    """Write a rung as the arguments of a command."""
    return [f"{key}={json.dumps(value)}" for key, value in rung.items()]


def size_of(config: RunConfig) -> int:
    vocabulary = config.data.tokenizer.vocab_size or DEFAULT_VOCAB_SIZE
    return on_meta(config.model.model_copy(update={"vocab_size": vocabulary})).num_parameters()
