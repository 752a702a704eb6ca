"""How long a run is: by steps, by tokens, by the clock."""

import json
from types import SimpleNamespace

import pytest

import train.loop
from tests.train.helpers import at_each_step, metrics, pretrain, write_config
from train.config import load_run_config

MINUTES = {"max_steps": None, "max_minutes": 0.05, "checkpoint_every": 0}


def test_tokens_are_rounded_up_to_whole_steps(tmp_path):
    config = write_config(tmp_path, train={"max_steps": None, "max_tokens": 256 * 3 + 1})
    assert load_run_config(config).max_steps == 4
    assert "finished at step 4" in pretrain(config).stdout
    assert "train.max_tokens makes 2 steps" in pretrain(config, "train.max_tokens=512", code=2).stderr


def test_without_a_limit_it_is_a_thousand_steps(tmp_path):
    assert load_run_config(write_config(tmp_path, train={"max_steps": None})).max_steps == 1000


@pytest.mark.parametrize("steps", [1, 2, 12])
@pytest.mark.parametrize("schedule", ["wsd", "cosine"])
def test_the_last_step_has_the_last_rate(tmp_path, schedule, steps):
    train = {"schedule": schedule, "final_lr_fraction": 0.25, "max_steps": steps, "optimizer": {"lr": 0.02}}
    pretrain(write_config(tmp_path, train=train, eval={"hooks": []}))
    rates = [line["lr"] for line in metrics(tmp_path / "runs/tiny") if line["split"] == "train"]
    assert len(rates) == steps
    assert rates[-1] == 0.25 * 0.02
    assert rates[0] == (0.02 if steps > 1 else rates[-1])


@pytest.fixture
def clock(monkeypatch):
    """The run's clock, as [seconds]: a step takes an eighth of a second, and all else no time."""
    now = [1000.0]

    def pass_time(run):
        now[0] += 0.125

    monkeypatch.setattr(train.loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    with at_each_step(pass_time):
        yield now


def test_under_the_clock_the_cooldown_ends_with_the_time(tmp_path, clock):
    config = write_config(tmp_path, train=MINUTES, eval={"every": 0})
    done = pretrain(config)
    assert "0.05 minutes by the clock (so never twice exactly the same)" in done.stdout
    lines = [m for m in metrics(tmp_path / "runs/tiny", without_clocks=False) if m["split"] == "train"]
    assert [m["time_s"] for m in lines] == [0.125 * step for step in range(1, 25)]  # 3 seconds
    left = [1 - step / 24 for step in range(24)]  # share of the time, when a step begins
    assert [m["lr"] for m in lines] == pytest.approx([0.02 * (0.05 + 0.95 * min(1, share / 0.7)) for share in left])
    again = pretrain(config)
    assert again.stdout.strip() in done.stdout  # finished: it shows its result again


def test_a_stop_does_not_stop_the_run_s_clock_from_where_it_was(tmp_path, clock):
    """What was spent is stored with the checkpoint; time between two starts is not training's."""
    config = write_config(tmp_path, train=MINUTES | {"max_minutes": 0.02}, eval={"every": 0})
    pretrain(config)
    clock[0] += 3600
    pretrain(config, "train.max_minutes=0.04")
    files = sorted((tmp_path / "runs/tiny/checkpoints").glob("step_*/training/trainer_state.json"))
    states = [json.loads(file.read_text()) for file in files]
    assert [(state["step"], state["seconds"]) for state in states] == [(10, 1.25), (20, 2.5)]  # not less than 1.2, 2.4


def test_time_that_is_over_before_the_first_step_still_gives_a_whole_run(tmp_path):
    config = write_config(tmp_path, train=MINUTES | {"max_minutes": 0.0001})
    assert "finished at step 1" in pretrain(config).stdout
    assert metrics(tmp_path / "runs/tiny")[-1]["split"] == "val"
