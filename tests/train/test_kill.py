"""SIGKILL at every point of a save, and at random times: what is restarted equals what was never killed."""

import json
import random
import shutil
import signal
from pathlib import Path

import pytest

from tests.processes import exit_code
from tests.train.helpers import metrics, write_config
from tests.train.killing import pretrain_child, pretrain_signalled, pretrain_until_killed, watch_operations
from train.saving.commit import commit, damage, newest_intact, settle

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")

KILLED = -9
# every operation of the save at step 6 that changes what the next start finds: before it, or with half a write done
POINTS = [
    "write_text config.json",
    "save_file model.safetensors",
    "write_text tokenizer.json",
    "write_text README.md",
    "save_file optimizer.safetensors",
    "write_text trainer_state.json",
    "fsync model.safetensors",
    "write_text manifest.json",
    "fsync manifest.json",
    "fsync training",
    "fsync step_00000006.tmp",
    "rename step_00000006.tmp",
    "fsync checkpoints",
    "write_text latest.tmp",
    "replace latest.tmp",
    "write_text best.tmp",
    "replace best.tmp",
    "rename step_00000004",
    "unlink model.safetensors",
    "unlink manifest.json",
    "rmdir training",
    "rmdir step_00000004.tmp",
]
QUICK = ("save_file model.safetensors", "rename step_00000006.tmp", "replace latest.tmp", "rename step_00000004")
SECTIONS = {
    "model": {"hidden_dropout": 0.1},  # so that the random state matters
    "train": {"max_steps": 8, "checkpoint_every": 2, "keep_last": 1},
    "eval": {"every": 2, "sample_tokens": 2},
}


def start(folder: Path, **sections) -> Path:
    folder.mkdir()
    return write_config(folder, **(sections or SECTIONS))


def figures(folder: Path) -> list[dict]:
    return metrics(folder / "runs/tiny")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The figures of the run that is never killed, and the operations on disk of its save at step 6."""
    config, trace = start(tmp_path_factory.mktemp("whole") / "run"), tmp_path_factory.mktemp("trace") / "trace"
    assert exit_code(pretrain_child, config, None, trace) == 0
    operations = trace.read_text().splitlines()
    begin = operations.index("rmdir step_00000002.tmp") + 1
    return figures(config.parent), operations[begin : operations.index("rmdir step_00000004.tmp") + 1]


@pytest.fixture(scope="module")
def half_way(tmp_path_factory):
    """A run that was killed between its checkpoints of step 4 and step 6."""
    config = start(tmp_path_factory.mktemp("half") / "run")
    assert exit_code(pretrain_child, config, "rename step_00000006.tmp") == KILLED
    shutil.rmtree(config.parent / "runs/tiny/checkpoints/step_00000006.tmp")
    return config.parent


@pytest.fixture
def copy(half_way, tmp_path):
    shutil.copytree(half_way, tmp_path / "run")
    return write_config(tmp_path / "run", **SECTIONS)


def test_the_points_below_are_those_of_a_save(whole):
    _, operations = whole
    assert set(POINTS) <= set(operations)
    flushed = {operation.removeprefix("fsync ") for operation in operations if operation.startswith("fsync ")}
    files = "config.json generation_config.json model.safetensors optimizer.safetensors tokenizer.json "
    files += "tokenizer_config.json trainer_state.json manifest.json README.md latest.tmp best.tmp"
    assert flushed == {*files.split(), "training", "step_00000006.tmp", "checkpoints"}
    # nothing is named before it is on the disk, nothing is removed before the new one is named
    assert operations.index("fsync manifest.json") < operations.index("fsync training")
    assert operations.index("fsync training") < operations.index("fsync step_00000006.tmp")
    assert operations.index("fsync step_00000006.tmp") < operations.index("rename step_00000006.tmp")
    assert operations.index("rename step_00000006.tmp") < operations.index("replace latest.tmp")
    assert operations.index("replace latest.tmp") < operations.index("rename step_00000004")


@pytest.mark.parametrize(
    "point", [point if point in QUICK else pytest.param(point, marks=pytest.mark.slow) for point in POINTS]
)
def test_killed_in_a_save_it_resumes_from_a_whole_checkpoint(point, copy, whole):
    checkpoints = copy.parent / "runs/tiny/checkpoints"
    assert exit_code(pretrain_child, copy, point) == KILLED
    survived = newest_intact(checkpoints)
    assert survived is not None
    is_in_place = POINTS.index(point) > POINTS.index("rename step_00000006.tmp")
    assert survived.name == ("step_00000006" if is_in_place else "step_00000004")
    assert (checkpoints / (checkpoints / "latest").read_text().strip()).is_dir()
    assert exit_code(pretrain_child, copy) == 0
    assert f"{survived}, step {survived.name[-1]}" in copy.with_name("child.txt").read_text()
    assert figures(copy.parent) == whole[0]
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best", "latest", "step_00000008"]
    assert (checkpoints / "best").read_text() == (checkpoints / "latest").read_text() == "step_00000008\n"


def test_killed_again_while_it_tidies_up(copy, whole):
    for point in ("rename step_00000006.tmp", "unlink manifest.json", "rmdir step_00000006.tmp"):
        assert exit_code(pretrain_child, copy, point) == KILLED
    assert exit_code(pretrain_child, copy) == 0
    assert figures(copy.parent) == whole[0]


def pretrain_on_a_full_disk(config: Path) -> None:
    """No file may grow beyond 60 kB: the figures have room, the weights (140 kB) do not."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    pretrain_child(config)


def test_on_a_full_disk_it_trains_on_says_so_and_what_was_saved_is_whole(copy, whole):
    checkpoints, told = copy.parent / "runs/tiny/checkpoints", copy.with_name("child.txt")
    assert exit_code(pretrain_on_a_full_disk, copy) == 2
    lines = told.read_text().splitlines()
    warning = [line for line in lines if line.startswith("warning: the checkpoint of step 6 could not be written")]
    assert len(warning) == 1
    assert "File too large" in warning[0]
    assert lines[-1].startswith("error: the checkpoint of step 8 could not be written")
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best", "latest", "step_00000004"]
    assert newest_intact(checkpoints) == checkpoints / "step_00000004"
    assert exit_code(pretrain_child, copy) == 0
    assert figures(copy.parent) == whole[0]


@pytest.mark.slow
def test_killed_at_twenty_random_times_it_ends_where_it_would_have(tmp_path):
    """Every life of the run ends some steps and milliseconds of work after it began, some before the first step.

    At the latest it ends seven steps after it began, so that 160 are enough for twenty lives on any machine.
    """
    sections = SECTIONS | {
        "train": {"max_steps": 160, "checkpoint_every": 3},
        "eval": {"every": 40, "sample_tokens": 2},
    }
    undisturbed, killed = start(tmp_path / "whole", **sections), start(tmp_path / "killed", **sections)
    assert exit_code(pretrain_child, undisturbed) == 0
    dice, went_on_from = random.Random(0), set()
    for life in range(20):
        survived = newest_intact(killed.parent / "runs/tiny/checkpoints")
        begins_at = int(survived.name[5:]) if survived else 0
        went_on_from.add(begins_at)
        from_the_start, step = life % 4 == 3, begins_at + dice.randint(1, 7)
        seconds = dice.uniform(0, 0.4 if from_the_start else 0.015)
        code = exit_code(pretrain_until_killed, killed, None if from_the_start else step, seconds, begins_at + 7)
        assert code in (KILLED, -signal.SIGPROF), f"life {life} was over before it was killed"
    assert len(went_on_from) > 5
    assert exit_code(pretrain_child, killed) == 0
    assert figures(killed.parent) == figures(undisturbed.parent)
    assert [m["step"] for m in figures(killed.parent) if m["split"] == "train"] == list(range(1, 161))


def write_checkpoint(checkpoints: Path, step: int, content: str) -> None:
    """A checkpoint as far as the protocol is concerned."""

    def fill(directory: Path) -> None:
        (directory / "training/trainer_state.json").write_text(json.dumps({"step": step}))
        (directory / "model.safetensors").write_text(content)

    commit(checkpoints, step, fill, 100)


def replace_in_child(checkpoints: Path, kill_at: int | None, trace: Path | None = None) -> None:
    watch_operations(kill_at, trace)
    write_checkpoint(checkpoints, 4, "new")


def settle_in_child(checkpoints: Path, kill_at: int | None) -> None:
    watch_operations(kill_at)
    settle(checkpoints, newest_intact(checkpoints))


def content(checkpoints: Path) -> str:
    survived = newest_intact(checkpoints)
    assert survived is not None
    return (survived / "model.safetensors").read_text()


def test_saving_the_same_step_again_never_leaves_a_moment_without_it(tmp_path):
    """Killed before every single operation of it, one after the other."""
    write_checkpoint(tmp_path / "first", 4, "old")
    shutil.copytree(tmp_path / "first", tmp_path / "traced")
    trace, contents = tmp_path / "trace", []
    assert exit_code(replace_in_child, tmp_path / "traced", None, trace) == 0
    operations = trace.read_text().splitlines()
    assert {"rename step_00000004", "rename step_00000004.tmp", "rename step_00000004.old"} <= set(operations)
    for number in range(len(operations)):
        checkpoints = tmp_path / f"at_{number}"
        shutil.copytree(tmp_path / "first", checkpoints)
        assert exit_code(replace_in_child, checkpoints, number) == KILLED
        contents.append(content(checkpoints))
        settle(checkpoints, newest_intact(checkpoints))
        assert damage(checkpoints / "step_00000004") is None
        assert content(checkpoints) == contents[-1]
        assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_00000004"]
    assert contents == sorted(contents, reverse=True)  # first always the old one, from some moment on the new one
    assert set(contents) == {"old", "new"}


@pytest.mark.slow
@pytest.mark.parametrize("new_one", ["is not there yet", "is there"])
def test_tidying_up_after_a_replacement_may_be_killed_as_well(new_one, tmp_path):
    first = tmp_path / "first"
    write_checkpoint(first, 4, "old")
    if new_one == "is there":
        write_checkpoint(tmp_path / "second", 4, "new")
        shutil.copytree(first / "step_00000004", first / "step_00000004.old")
        shutil.rmtree(first / "step_00000004")
        shutil.copytree(tmp_path / "second/step_00000004", first / "step_00000004")
    else:
        (first / "step_00000004").rename(first / "step_00000004.old")
    shutil.copytree(first / newest_intact(first).name, first / "step_00000006.tmp")
    before, kills, code = content(first), 0, KILLED
    while code == KILLED:
        checkpoints = tmp_path / f"at_{kills}"
        shutil.copytree(first, checkpoints)
        code = exit_code(settle_in_child, checkpoints, kills)
        assert content(checkpoints) == before == ("new" if new_one == "is there" else "old")
        kills += 1
    assert code == 0
    assert kills > 5
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_00000004"]


def ending(folder: Path) -> tuple:
    checkpoints = folder / "runs/tiny/checkpoints"
    states = [json.loads((path / "training/trainer_state.json").read_text()) for path in checkpoints.glob("step_*")]
    assert not [state for state in states if state["at_stop"]]
    names = sorted(path.name for path in checkpoints.iterdir())
    return names, (checkpoints / "best").read_text(), figures(folder)


@pytest.mark.parametrize("trial", [0, 1, *(pytest.param(trial, marks=pytest.mark.slow) for trial in range(2, 12))])
def test_however_often_it_is_killed_and_stopped_it_ends_with_the_same_checkpoints(trial, tmp_path):
    """Any step may be the best one; a signal saves between two regular checkpoints, or cuts an evaluation short."""
    dice = random.Random(trial)
    hooks = [{"name": "tests.train.holding:Dice", "every": dice.choice([2, 4, 6])}]
    train = {"max_steps": 24, "checkpoint_every": dice.choice([3, 4, 5]), "keep_last": dice.choice([1, 2, 3, 3])}
    sections = {"model": SECTIONS["model"], "train": train, "eval": {"every": 0, "hooks": hooks}}
    undisturbed, killed = start(tmp_path / "whole", **sections), start(tmp_path / "killed", **sections)
    assert exit_code(pretrain_child, undisturbed) == 0
    for step in sorted([dice.randint(1, 15), dice.randint(1, 15), *dice.sample(range(16, 24), 2)]):
        kind = dice.choice(["KILL", "TERM", "TERM in an evaluation"])
        code = exit_code(pretrain_signalled, killed, step, kind)
        assert code in (KILLED, 128 + signal.SIGTERM, 0), killed.with_name("child.txt").read_text()
    assert exit_code(pretrain_child, killed) == 0
    assert ending(killed.parent) == ending(undisturbed.parent)
