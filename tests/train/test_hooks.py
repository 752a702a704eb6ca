"""What runs during training, and when: cadences from YAML, hooks of one's own, and hooks that fail."""

import inspect
import json
import random

import numpy as np
import pytest
import torch

from eval.config import EvalConfig
from eval.hooks import Hook
from tests.train.helpers import metrics, pretrain, refusal, write_config
from tests.train.worlds import trace

SEEN: list[tuple] = []


def noticing(event):
    """A hook as a user writes one."""
    SEEN.append((event.step, event.is_last, event.tokens))
    event.kept["calls"] = event.kept.get("calls", 0) + 1
    event.log("mine", {"calls": event.kept["calls"], "layers": event.lm.config.num_hidden_layers})


def failing(event):
    raise RuntimeError(f"at step {event.step}")


def steps(run, split):
    return [line["step"] for line in metrics(run) if line["split"] == split]


def test_every_hook_has_its_own_cadence(tmp_path):
    SEEN.clear()
    mine = {"name": "tests.train.test_hooks:noticing", "every": 5, "early": [0, 1, 3]}
    hooks = ["validation", {"name": "samples", "every": 0}, mine]
    pretrain(write_config(tmp_path, eval={"every": 6, "hooks": hooks}), "--trust-hooks")
    run = tmp_path / "runs/tiny"
    assert steps(run, "val") == [0, 6, 12]
    assert [step for step, _, _ in SEEN] == [0, 1, 3, 5, 10, 12]
    assert [is_last for _, is_last, _ in SEEN] == [False] * 5 + [True]
    assert SEEN[3][2] == 5 * 256
    assert [line["calls"] for line in metrics(run) if line["split"] == "mine"] == [1, 2, 3, 4, 5, 6]
    prompts = [json.loads(line)["step"] for line in (run / "samples.jsonl").read_text().splitlines()]
    assert prompts == [12]


def test_a_hook_that_raises_is_reported_once_and_the_run_continues(tmp_path):
    hooks = ["tests.train.test_hooks:failing", "validation"]
    done = pretrain(write_config(tmp_path, eval={"every": 4, "hooks": hooks}), "--trust-hooks")
    warning = "warning: the tests.train.test_hooks:failing hook is off from here: RuntimeError: at step 0"
    line = inspect.getsourcelines(failing)[1] + 1
    assert done.stdout.count(f"{warning} ({__file__}, line {line})") == 1
    pretrain(write_config(tmp_path, name="without", eval={"every": 4, "hooks": ["validation"]}))
    assert metrics(tmp_path / "runs/tiny") == metrics(tmp_path / "runs/without")


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ("validations", "no hook is called 'validations': use validation, questions, samples, attention"),
        ("nowhere.at.all:f", "nowhere.at.all:f cannot be imported: ModuleNotFoundError"),
        ("tests.train.test_hooks:missing", "cannot be imported: AttributeError"),
    ],
)
def test_a_hook_that_does_not_exist_is_reported_before_anything_is_read(tmp_path, hook, problem):
    said = refusal(write_config(tmp_path, eval={"hooks": [hook]}), "--trust-hooks")
    assert problem in said
    assert not (tmp_path / "runs").exists()


def test_cadences_that_the_yaml_leaves_open():
    found = EvalConfig(every=100, attention={"every": 50, "early": [0, 3]}).cadences()
    assert list(found) == ["validation", "questions", "samples", "attention"]
    assert (found["validation"].every, found["questions"].early) == (100, (0,))
    assert (found["attention"].every, found["attention"].early) == (50, (0, 3))
    chosen = EvalConfig(hooks=[{"name": "questions", "early": []}, {"name": "attention", "every": 0, "early": [3]}])
    assert chosen.cadences()["questions"].early == ()
    assert [step for step in range(9) if chosen.cadences()["attention"].is_due(step, step == 8)] == [3, 8]
    with pytest.raises(ValueError, match="samples is named twice"):
        EvalConfig(hooks=["samples", {"name": "samples", "every": 3}])
    off = EvalConfig(attention={"every": 0}).cadences()["attention"]
    assert not any(off.is_due(step, is_last) for step in range(3) for is_last in (False, True))


class Unreported(Hook):
    """Looks at nothing and cannot say anything at the end."""

    def look(self, event):
        return None

    def outcome(self, directory, metrics):
        raise RuntimeError("nothing was kept")


def test_a_hook_that_cannot_report_does_not_take_the_report_away(tmp_path):
    hooks = ["validation", "tests.train.test_hooks:Unreported"]
    done = pretrain(write_config(tmp_path, eval={"every": 0, "hooks": hooks}), "--trust-hooks")
    assert "Unreported hook adds nothing to the report: RuntimeError: nothing was kept (" in done.stdout
    assert json.loads((tmp_path / "runs/tiny/result.json").read_text())["val"]["loss"] > 0


def drawing(event):
    """A hook that draws from every random state there is."""
    event.log("drawn", {"numbers": [random.random(), float(np.random.rand()), float(torch.rand(()))]})  # noqa: NPY002


def test_a_hook_that_draws_random_numbers_changes_nothing_in_training(tmp_path):
    changes = {"train": {"trace": True, "max_steps": 6}, "model": {"hidden_dropout": 0.2}}
    pretrain(write_config(tmp_path, name="without", eval={"hooks": []}, **changes))
    mine = {"name": f"{__name__}:drawing", "every": 1}
    pretrain(write_config(tmp_path, name="with", eval={"hooks": [mine]}, **changes), "--trust-hooks")
    assert steps(tmp_path / "runs/with", "drawn") == list(range(7))
    assert trace(tmp_path / "runs/with") == trace(tmp_path / "runs/without")
