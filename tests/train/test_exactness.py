"""A run that is stopped and resumed is, to the last bit of every step, the run that never stopped."""

import json

import pytest

from tests.train.checkpoints import edit_state
from tests.train.helpers import (
    assert_held_the_same,
    metrics,
    noting_rank,
    pretrain_rank,
    run_world,
    trace,
    write_config,
)
from tests.train.trials import attempt

# 11.6 steps make an epoch of the tiny text in steps of 32 rows
STEPS = {"max_steps": 26, "tokens_per_step": 1024, "trace": True, "checkpoint_every": 0}
CASES = {
    "dropout, accumulation": {
        "model": {"hidden_dropout": 0.2, "attention_dropout": 0.1},
        "train": {"micro_batch_size": 8},
    },
    "adamw, warm-up, cosine, untied": {
        "model": {"tie_word_embeddings": False},
        "train": {"optimizer": {"name": "adamw", "lr": 2e-3}, "warmup_steps": 5, "schedule": "cosine"},
    },
    "fp16, its loss scale growing": {"train": {"precision": "fp16"}},
    "activation checkpointing, dropout": {
        "model": {"hidden_dropout": 0.2},
        "train": {"activation_checkpointing": True},
    },
    "experts, which are looked at": {
        "model": {"num_hidden_layers": 3, "mlp_only_layers": [1], "num_experts": 4, "moe_intermediate_size": 16},
        "eval": {"every": 4, "hooks": ["validation", {"name": "experts", "early": [1]}]},
    },
}


def quick_first(cases: list) -> list:
    return [cases[0], *(pytest.param(case, marks=pytest.mark.slow) for case in cases[1:])]


@pytest.mark.parametrize("case", quick_first(list(CASES)))
def test_stopped_at_the_first_step_mid_epoch_and_around_the_end_of_an_epoch(tmp_path, case):
    """Five stops in one run, so each but the first is a second resume as well."""
    changes = dict(CASES[case])
    config = write_config(tmp_path, train=STEPS | changes.pop("train", {}), **changes)
    assert run_world(1, noting_rank, config, ["name=whole"]) == [0]
    for stop in (1, 6, 11, 12, 13):
        assert run_world(1, noting_rank, config, [], stop - 1) == [143]
    assert run_world(1, noting_rank, config, []) == [0]
    assert "resumed from" in config.with_name("rank0.txt").read_text()
    assert_held_the_same(tmp_path / "runs/tiny", tmp_path / "runs/whole")
    whole = trace(tmp_path / "runs/whole")
    assert trace(tmp_path / "runs/tiny") == whole
    assert len({line["batch"] for line in whole}) == len(whole) == 26
    assert metrics(tmp_path / "runs/tiny") == metrics(tmp_path / "runs/whole")
    looks = [tmp_path / "runs" / name / "experts.jsonl" for name in ("tiny", "whole")]
    # no look comes twice
    assert not looks[0].exists() or looks[0].read_bytes() == looks[1].read_bytes()
    for name in ("model.safetensors", "training/optimizer.safetensors"):
        ours, theirs = (tmp_path / "runs" / run / "checkpoints/step_00000026" / name for run in ("tiny", "whole"))
        assert ours.read_bytes() == theirs.read_bytes(), name


def test_on_another_machine_it_continues_and_says_once_from_where_it_is_not_exact(tmp_path):
    config = write_config(tmp_path, train=STEPS)
    assert run_world(1, pretrain_rank, config, [], 3) == [143]
    change = lambda state: state["resolved"].update(threads=64)  # noqa: E731
    edit_state(tmp_path / "runs/tiny/checkpoints/step_00000004", change)
    assert run_world(1, pretrain_rank, config, [], 8) == [143]
    assert run_world(1, pretrain_rank, config, []) == [0]
    state = json.loads((tmp_path / "runs/tiny/checkpoints/step_00000026/training/trainer_state.json").read_text())
    assert [one["step"] for one in state["breaks"]] == [4]
    said = config.with_name("rank0.txt").read_text().splitlines()
    (line,) = [line for line in said if line.startswith("exact until step 4: from there ")]
    assert "threads 1 (before: 64)" in line
    assert line in (tmp_path / "runs/tiny/report.md").read_text()


# --------------------------------------------------------------------------------------------------
# random runs, each killed four times at random moments: `python -m tests.train.trials` runs
# hundreds


@pytest.mark.parametrize("number", quick_first(list(range(12))))
def test_killed_four_times_at_random_it_ends_as_the_run_that_nobody_killed(tmp_path, number):
    assert attempt(0, number, tmp_path / "trial").startswith("equal after")


@pytest.mark.slow
def test_the_same_under_compile(tmp_path):
    assert attempt(0, 0, tmp_path / "trial", compiled=True).startswith("equal after")
