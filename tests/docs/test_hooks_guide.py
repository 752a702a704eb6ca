"""The hook of docs/measure.md, word for word, in a run: its figures are on the terminal, in log and
report.
"""

import json
import re
import shlex

import pytest

from tests.docs.checks import ROOT
from tests.train.helpers import metrics, pretrain, write_config
from train.config import load_run_config

GUIDE = (ROOT / "docs/measure.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def with_hooks(tmp_path, monkeypatch):
    def train(module: str, code: str, every: int, *names: str):
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
        # `python -m` does that with the folder in which you work
        monkeypatch.syspath_prepend(tmp_path)
        hooks = [f"{module}:{name}" for name in names]
        done = pretrain(write_config(tmp_path, eval={"every": every, "hooks": hooks}), "--trust-hooks")
        run = tmp_path / "runs/tiny"
        return done.stdout, run, (run / "report.md").read_text(encoding="utf-8")

    return train


def test_the_hook_of_the_guide_leaves_its_figures_everywhere(with_hooks):
    (command,) = re.findall(r"^python -m train\.pretrain (.*)$", GUIDE, re.MULTILINE)
    config, *overrides = shlex.split(command)
    assert "my_hooks:how_sure" in load_run_config(ROOT / config, overrides).eval.hooks
    terminal, run, report = with_hooks("my_hooks", CODE, 6, "how_sure")
    logged = [line for line in metrics(run) if line["split"] == "hooks/how_sure"]
    assert [line["step"] for line in logged] == [0, 6, 12]
    vocabulary = json.loads((run / "checkpoints/step_00000012/config.json").read_text())["vocab_size"]
    # untrained: all are about equally likely
    assert vocabulary / 2 < logged[0]["choices"] <= vocabulary + 1
    for line in logged:
        likeliest, choices = (f"{line[name]:.4g}" for name in ("likeliest", "choices"))
        assert f"step {line['step']:>6,}   how_sure: likeliest {likeliest}   choices {choices}\n" in terminal
        assert re.search(rf"^\| {line['step']:<4} +\| +{likeliest} +\| +{choices} +\|$", report, re.MULTILINE)
    last = json.loads((run / "result.json").read_text())["hooks/how_sure"]
    assert last == {name: logged[-1][name] for name in ("likeliest", "choices")}


def test_a_hook_that_returns_no_figures_is_switched_off_and_one_that_returns_nothing_reports_nothing(with_hooks):
    code = (
        "def words(event):\n    return {'a': 'many'}\ndef nothing(event):\n    assert not event.lm.training\n"
        "def taken(event):\n    return {'step': 3}\ndef many(event):\n    return {'a|b\\x1b[31m': event.step}\n"
    )
    terminal, _, report = with_hooks("other_hooks", code, 1, "words", "nothing", "many", "taken")
    assert terminal.count("hook is off from here") == 2
    assert [f"## {name}\n" in report for name in ("words", "nothing", "many", "taken")] == [False, False, True, False]
    assert "\x1b" not in terminal + report
