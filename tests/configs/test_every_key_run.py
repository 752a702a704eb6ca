"""The keys that say which run this is, where it lies, and what it resumes from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.configs.every_key import shows
from tests.train.helpers import metrics, pretrain, write_config
from train.sweep import plan


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a finished run, runs/tiny."""
    folder = tmp_path_factory.mktemp("run")
    pretrain(write_config(folder, train={"max_steps": 4, "checkpoint_every": 2}, eval={"every": 0}))
    return folder


@pytest.fixture
def here(trained, tmp_path) -> Path:
    """A copy of it, which a test may change."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return tmp_path


def config_in(folder: Path, trained: Path) -> Path:
    """The config of the finished run, for a folder with a copy of it."""
    shutil.copy(trained / "text.txt", folder)
    return write_config(folder, train={"max_steps": 4, "checkpoint_every": 2}, eval={"every": 0})


@shows("name", "output_dir")
def test_name_and_output_dir_say_where_it_lies(trained, here):
    config = config_in(here, trained)
    pretrain(config, "name=other")
    assert (here / "runs/other/report.md").is_file()
    assert "training" not in pretrain(config).stdout  # runs/tiny is finished and is left as it is
    pretrain(config, f"output_dir={here.as_posix()}/elsewhere")
    assert (here / "elsewhere/tiny/report.md").is_file()
    assert (here / "elsewhere/.prepared").is_dir()


@shows("resume")
def test_resume_says_what_a_second_run_does(trained, here):
    config = config_in(here, trained)
    assert "exists and resume=never" in pretrain(config, "resume=never", code=2).stderr
    first = here / "runs/tiny/checkpoints/step_00000002"
    done = pretrain(config, "name=from2", f"resume={first.as_posix()}")
    assert f"resumed from {first}, step 2" in done.stdout
    assert "resumed from" not in pretrain(config, "name=afresh", "resume=never").stdout


@shows("rungs")
def test_rungs_are_the_runs_of_a_sweep_and_nothing_to_a_single_run(trained, here):
    rungs = {"longer": {"train.max_steps": 6}, "slower": {"train.optimizer.lr": 0.01}}
    config = write_config(here, train={"max_steps": 4, "checkpoint_every": 2}, eval={"every": 0}, rungs=rungs)
    assert [run.variant.label for run in plan(str(config), [], 1)] == ["baseline", "longer", "slower"]
    shutil.copy(trained / "text.txt", here)
    assert "training" not in pretrain(config).stdout  # it is the finished runs/tiny, which had no rungs


@shows("allow_mismatch")
def test_allow_mismatch_continues_with_other_settings(trained, here):
    config = config_in(here, trained)
    changed = ["train.max_steps=6", "train.optimizer.lr=0.01"]
    refused = pretrain(config, *changed, code=2).stderr
    assert "these keys differ: train.optimizer.lr (there 0.02, here 0.01)" in refused
    assert "continuing, because allow_mismatch is set" in pretrain(config, *changed, "allow_mismatch=true").stderr
    assert metrics(here / "runs/tiny")[-1]["step"] == 6


@shows("init_from")
def test_init_from_is_where_the_weights_come_from(trained, here):
    config = config_in(here, trained)
    pretrain(config, "name=again", f"init_from={(here / 'runs/tiny').as_posix()}")
    last = [line["loss"] for line in metrics(here / "runs/tiny") if line["split"] == "train"]
    again = [line["loss"] for line in metrics(here / "runs/again") if line["split"] == "train"]
    assert again[0] < last[1] < last[0]
