"""Hooks: cadences from YAML, the reader's own hooks, wandb, and their failures."""

import inspect
import json
import random
import sys
from unittest import mock

import numpy as np
import pytest
import torch

from eval.hooks import Hook
from tests.train.helpers import metrics, pretrain, trace, write_config

SEEN: list[tuple] = []


def noticing(event):
    """A hook as a user writes one."""
    SEEN.append((event.step, event.is_last, event.tokens))
    event.memory["calls"] = event.memory.get("calls", 0) + 1
    event.log("mine", {"calls": event.memory["calls"], "layers": event.lm.config.num_hidden_layers})


def failing(event):
    raise RuntimeError(f"at step {event.step}")


class Unreported(Hook):
    """Looks at nothing and cannot say anything at the end."""

    def evaluate(self, event):
        return None

    def outcome(self, directory, metrics):
        raise RuntimeError("nothing was kept")


def test_every_hook_has_its_own_cadence(tmp_path):
    SEEN.clear()
    mine = {"name": "tests.train.test_hooks:noticing", "every": 5, "early": [0, 1, 3]}
    hooks = ["validation", {"name": "samples", "every": 0}, mine]
    pretrain(write_config(tmp_path, eval={"every": 6, "hooks": hooks}), "--trust-hooks")
    run = tmp_path / "runs/tiny"
    assert [line["step"] for line in metrics(run, "val")] == [0, 6, 12]
    assert [step for step, _, _ in SEEN] == [0, 1, 3, 5, 10, 12]
    assert [is_last for _, is_last, _ in SEEN] == [False] * 5 + [True]
    assert SEEN[3][2] == 5 * 256
    assert [line["calls"] for line in metrics(run, "mine")] == [1, 2, 3, 4, 5, 6]
    prompts = [json.loads(line)["step"] for line in (run / "samples.jsonl").read_text().splitlines()]
    assert prompts == [12]


def test_a_hook_that_raises_is_reported_once_and_the_run_continues(tmp_path):
    hooks = [f"{__name__}:failing", f"{__name__}:Unreported", "validation"]
    done = pretrain(write_config(tmp_path, eval={"every": 4, "hooks": hooks}), "--trust-hooks")
    warning = "warning: the tests.train.test_hooks:failing hook is off from here: RuntimeError: at step 0"
    line = inspect.getsourcelines(failing)[1] + 1
    assert done.stdout.count(f"{warning} ({__file__}, line {line})") == 1
    # in the report, which is written all the same
    assert "RuntimeError: nothing was kept" in done.stdout
    assert json.loads((tmp_path / "runs/tiny/result.json").read_text())["val"]["loss"] > 0
    pretrain(write_config(tmp_path, name="without", eval={"every": 4, "hooks": ["validation"]}))
    assert metrics(tmp_path / "runs/tiny") == metrics(tmp_path / "runs/without")


def drawing(event):
    """A hook that draws from every random state there is."""
    event.log("drawn", {"numbers": [random.random(), float(np.random.rand()), float(torch.rand(()))]})  # noqa: NPY002


def test_a_hook_that_draws_random_numbers_changes_nothing_in_training(tmp_path):
    changes = {"train": {"trace": True, "max_steps": 6}, "model": {"hidden_dropout": 0.2}}
    pretrain(write_config(tmp_path, name="without", eval={"hooks": []}, **changes))
    mine = {"name": f"{__name__}:drawing", "every": 1}
    pretrain(write_config(tmp_path, name="with", eval={"hooks": [mine]}, **changes), "--trust-hooks")
    assert [line["step"] for line in metrics(tmp_path / "runs/with", "drawn")] == list(range(7))
    assert trace(tmp_path / "runs/with") == trace(tmp_path / "runs/without")


# --------------------------------------------------------------------------------------------------
# wandb: one that works, one that raises; and what a run says without a terminal


def wandb_that_fails_in(where: str | None) -> mock.MagicMock:
    wandb = mock.MagicMock()
    wandb.init.return_value = wandb
    wandb.Html.side_effect = lambda text, inject: text
    if where:
        getattr(wandb, where).side_effect = ConnectionError("no route to host")
    return wandb


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_tracker_that_raises_is_switched_off(tmp_path, monkeypatch, where):
    pretrain(write_config(tmp_path, name="without"))
    monkeypatch.setitem(sys.modules, "wandb", wandb_that_fails_in(where))
    done = pretrain(write_config(tmp_path, tracking={"wandb": "online"}))
    assert done.stdout.count("warning: wandb is off from here: ConnectionError: no route to host") == 1
    assert metrics(tmp_path / "runs/tiny") == metrics(tmp_path / "runs/without")


def test_a_tracker_gets_a_few_figures_of_the_heads_and_the_viewer_not_hundreds(tmp_path, monkeypatch, no_pictures):
    wandb = wandb_that_fails_in(None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    heads = {"every": 6, "early": [1], "max_tokens": 8}
    pretrain(write_config(tmp_path, tracking={"wandb": "online"}, eval={"every": 6, "attention": heads}))
    lines = [call.args[0] for call in wandb.log.call_args_list]
    assert [line["step"] for line in lines if "train/loss" in line] == list(range(1, 13))
    logged = {}
    for line in lines:
        logged |= {key: (line["step"], value) for key, value in line.items() if key.startswith("attention/")}
    assert sum(isinstance(value, float | None) for _, value in logged.values()) <= 20
    step, page = logged["attention/viewer"]
    assert step == 12
    assert page.lower().startswith("<!doctype html>")
