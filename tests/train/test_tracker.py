"""wandb beside a run: one that works, one that raises, the real one. And what a run says without a terminal."""

import sys
import types

import pytest

import train.metrics
from tests.train.helpers import metrics, pretrain, write_config


class Broken(types.ModuleType):
    """A wandb that fails where it is told to."""

    def __init__(self, where: str, action):
        super().__init__("wandb")
        self.where, self.action, self.logged = where, action, []
        self.Settings, self.Image = (lambda **options: None), (lambda path: path)
        self.Html, self.Table = (lambda text, inject: text), (lambda columns, data: [columns, *data])

    def init(self, **options):
        self.reach("init")
        return self

    def define_metric(self, *names, **options): ...

    def log(self, values):
        self.reach("log")
        self.logged.append(values)

    def finish(self, exit_code):
        self.reach("finish")

    def reach(self, where):
        if where == self.where:
            self.action()


def fails():
    raise ConnectionError("no route to host")


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_tracker_that_raises_is_switched_off(tmp_path, monkeypatch, where):
    pretrain(write_config(tmp_path, name="without"))
    monkeypatch.setitem(sys.modules, "wandb", Broken(where, fails))
    done = pretrain(write_config(tmp_path, tracking={"wandb": "online"}))
    assert done.stdout.count("warning: wandb is off from here: ConnectionError: no route to host") == 1
    assert metrics(tmp_path / "runs/tiny") == metrics(tmp_path / "runs/without")


def test_a_tracker_gets_a_few_figures_of_the_heads_and_the_viewer_not_hundreds(tmp_path, monkeypatch, no_pictures):
    wandb = Broken("nowhere", fails)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    heads = {"every": 6, "early": [1], "max_tokens": 8}
    pretrain(write_config(tmp_path, tracking={"wandb": "online"}, eval={"every": 6, "attention": heads}))
    assert [line["step"] for line in wandb.logged if "train/loss" in line] == list(range(1, 13))
    logged: dict = {}
    for line in wandb.logged:
        for key, value in line.items():
            if key.startswith("attention/"):
                logged.setdefault(key, []).append((line["step"], value))
    numbers = {key for key, values in logged.items() if values[0][1] is None or isinstance(values[0][1], float)}
    assert 12 <= len(numbers) <= 20
    assert {key for key in logged if key not in numbers} >= {"attention/heads", "attention/viewer", "attention/scores"}
    assert [step for step, _ in logged["attention/copy_gain"]] == [0, 1, 6, 12]
    (step, page), (_, table) = logged["attention/viewer"][0], logged["attention/scores"][0]
    assert step == 12
    assert page.lower().startswith("<!doctype html>")
    assert table[0][:3] == ["layer", "head", "kv_group"]
    assert [row[:3] for row in table[1:]] == [[i, j, j // 2] for i in range(2) for j in range(4)]


def test_without_a_terminal_a_long_silence_ends_with_a_line(tmp_path, monkeypatch):
    config = write_config(tmp_path, eval={"every": 0}, tracking={"wandb": "disabled"})
    assert "tok_s" not in pretrain(config, "name=quick").stdout
    monkeypatch.setattr(train.metrics, "SILENCE_S", 0.0)
    monkeypatch.setattr(train.metrics, "SILENCE", 0.0)
    lines = [line.split() for line in pretrain(config, "name=slow").stdout.splitlines() if "tok_s" in line]
    assert [line[:3:2] for line in lines] == [["step", "loss"]] * 12
    assert [int(line[1]) for line in lines] == list(range(1, 13))
