"""The hook of docs/hooks.md, word for word, in a run: its figures are on the terminal, in the log and in the report."""

import json
import re
import shlex

import pytest

from tests.docs.page import ROOT
from tests.train.helpers import metrics, pretrain, write_config
from train.config import load_run_config

GUIDE = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def my_hooks(tmp_path, monkeypatch):
    def save(code: str, name: str = "my_hooks"):
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)  # `python -m` does that with the folder in which you work

    return save


def test_the_hook_of_the_guide_has_six_lines_and_leaves_its_figures_everywhere(tmp_path, my_hooks):
    assert len(CODE.split("\n\n\n")) == 2  # an import and a function
    assert sum(bool(line) for line in CODE.splitlines()) <= 6
    my_hooks(CODE)
    config = write_config(tmp_path, eval={"every": 6, "hooks": ["validation", "my_hooks:how_sure"]})
    done = pretrain(config, "--trust-hooks")
    run = tmp_path / "runs/tiny"
    logged = [line for line in metrics(run) if line["split"] == "hooks/how_sure"]
    assert [line["step"] for line in logged] == [0, 6, 12]
    vocabulary = json.loads((run / "checkpoints/step_00000012/config.json").read_text())["vocab_size"]
    assert vocabulary / 2 < logged[0]["choices"] <= vocabulary + 1  # untrained: all are about equally likely
    assert 1 / vocabulary <= logged[0]["likeliest"] < 0.1
    shown = [line for line in done.stdout.splitlines() if " how_sure: " in line]
    report = (run / "report.md").read_text(encoding="utf-8").partition("## how_sure\n")[2]
    for line, on_terminal in zip(logged, shown, strict=True):
        figures = [f"{line[name]:.4g}" for name in ("likeliest", "choices")]
        assert on_terminal == f"step {line['step']:>6,}   how_sure: likeliest {figures[0]}   choices {figures[1]}"
        assert re.search(rf"^\| {line['step']:<4} +\| +{figures[0]} +\| +{figures[1]} +\|$", report, re.MULTILINE)
    last = json.loads((run / "result.json").read_text())["hooks/how_sure"]
    assert last == {name: logged[-1][name] for name in ("likeliest", "choices")}


def test_the_command_of_the_guide_names_that_hook():
    (command,) = re.findall(r"^python -m train\.pretrain (.*)$", GUIDE, re.MULTILINE)
    config, *overrides = shlex.split(command)
    assert "my_hooks:how_sure" in load_run_config(ROOT / config, overrides).eval.hooks


def test_a_value_that_is_not_a_number_switches_the_hook_off_and_a_hook_that_returns_nothing_reports_nothing(
    tmp_path, my_hooks
):
    hooks = ["other_hooks:words", "other_hooks:nothing", "other_hooks:many", "other_hooks:taken"]
    my_hooks(
        "def words(event):\n    return {'a': 'many'}\n"
        "def nothing(event):\n    assert not event.lm.training\n"
        "def taken(event):\n    return {'step': 3}\n"
        "def many(event):\n    return {'a|b\\x1b[31m': event.step}\n",
        "other_hooks",
    )
    done = pretrain(write_config(tmp_path, eval={"every": 1, "hooks": hooks}), "--trust-hooks")
    assert done.stdout.count("warning: the other_hooks:words hook is off from here: TypeError: ") == 1
    assert done.stdout.count("taken hook is off from here: ValueError: step is in every line of metrics.jsonl") == 1
    assert "nothing hook is off" not in done.stdout
    assert "\x1b" not in done.stdout
    report = (tmp_path / "runs/tiny/report.md").read_text(encoding="utf-8")
    assert "## nothing" not in report
    assert "## words" not in report
    rows = [line for line in report.partition("## many")[2].partition("## Figures")[0].splitlines() if line[:1] == "|"]
    assert len(rows) == 2 + 12  # of thirteen looks, the first and the last among them
    assert "\x1b" not in report
