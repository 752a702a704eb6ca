"""One key at a time: which runs a sweep is made of, and that it trains them once, resumes, and ends
in a comparison.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from configs.command import InputError
from eval.hooks import EvalEvent
from tests.train.helpers import REPOSITORY, metrics, pretrain, write_config
from train.config import load_run_config
from train.run import sweep
from train.run.run_directory import LOCK, own
from train.run.sweep import plan

KEY = "model.num_key_value_heads"


def command(*arguments, code: int = 0):
    return pretrain(*arguments, code=code, script=sweep.main)


# The plan


@pytest.mark.parametrize(
    ("arguments", "seeds", "names"),
    [
        # the baseline first, seed by seed
        ([f"{KEY}=1,4"], 2, "2-seed5 1-seed5 4-seed5 2-seed6 1-seed6 4-seed6"),
        # a value is trained once, however it is written
        ([f"{KEY}=mqa,2,gqa,4"], 1, "2-seed5 mqa-seed5 4-seed5"),
        (
            [f"{KEY}=1,2", "train.optimizer.lr=0.02,1e-3"],
            1,
            "baseline-seed5 num_key_value_heads-1-seed5 lr-0.001-seed5",
        ),
        ([f"{KEY}=1", "train.max_steps=2,3"], 1, "12-seed5 2-seed5 3-seed5"),
        ([f"{KEY}=1,"], 1, "2-seed5 1-seed5"),
        (["output_dir=[old] #2", f"{KEY}=1,"], 1, "2-seed5 1-seed5"),  # no YAML, but a path
        (["eval.prompts=['a, b', c],['d']"], 1, "baseline-seed5 a_b_c-seed5 d-seed5"),
        (["eval.prompts=['a b'],['a/b'],['../..']"], 1, "baseline-seed5 a_b-seed5 a_b-2-seed5 .._..-seed5"),
    ],
)
def test_one_key_changes_at_a_time_and_what_is_started_is_what_was_checked(arguments, seeds, names, tmp_path):
    config = write_config(tmp_path, seed=5)
    runs = plan(str(config), arguments, seeds)
    assert [run.config.name.removeprefix("tiny-") for run in runs] == names.split()
    for run in runs:
        script, file, *overrides = run.command
        assert (script, file) == ("train.pretrain", str(config))
        assert load_run_config(config, overrides) == run.config


RUNGS = {
    "learned-positions": {"model.position_embedding": "learned"},
    "gelu": {"model": {"gated_mlp": False, "hidden_act": "gelu_new"}, "train.max_steps": 3},
}


def test_a_config_may_bring_its_variants_along(tmp_path):
    config = write_config(tmp_path, rungs=RUNGS, model={"loadable_elsewhere": False})
    runs = plan(str(config), ["train.optimizer.lr=0.01"], 2)
    assert [run.label for run in runs] == ["baseline", "learned-positions", "gelu"] * 2
    assert [run.config.model.position_embedding for run in runs[:3]] == ["rope", "learned", "rope"]
    gelu = runs[5].config
    assert (gelu.model.gated_mlp, gelu.model.hidden_act, gelu.max_steps, gelu.seed) == (False, "gelu_new", 3, 1)
    assert all(run.config.rungs is None and run.config.train.optimizer.lr == 0.01 for run in runs)
    assert runs[0].folder == tmp_path / "runs/tiny-sweep"
    runs = plan(str(config), [f"{KEY}=1,2"], 1)  # swept on the command line: instead of the rungs
    assert [run.config.name for run in runs] == ["tiny-2-seed0", "tiny-1-seed0"]


def test_a_rung_may_be_a_fork_of_the_baseline(tmp_path):
    rungs = {"a b": {"fork": "--at 2 --without L0H1"}, "slow": {"train.optimizer.adamw_lr": 0.001}}
    config = write_config(tmp_path, rungs=rungs, train={"max_steps": 4}, eval={"every": 0})
    runs = plan(str(config), ["train.optimizer.lr=0.01"], 2)
    assert [run.label for run in runs] == ["baseline", "slow", "a_b"] * 2
    baseline = str(tmp_path / "runs/tiny-baseline-seed1")
    change = ["--at", "2", "--without", "L0H1"]
    assert runs[5].command == ["train.fork", baseline, *change, 'name="tiny-a_b-seed1"']
    done = command(config)
    assert "3 runs, 0 of them already trained" in done.stdout
    fork = load_run_config(tmp_path / "runs/tiny-a_b-seed0/config.yaml")
    assert (fork.forked_from.step, fork.changes[0].without) == (2, ["L0H1"])
    assert "3 runs, 3 of them already trained" in command(config).stdout

    wrong = write_config(tmp_path, rungs={"both": {"fork": "--at 2", "seed": 3}})
    with pytest.raises(InputError, match="rungs.both`: a fork has no other keys"):
        plan(str(wrong), [], 1)


def test_runs_of_another_sweep_are_refused_before_anything_is_trained(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 2}, eval={"every": 0})
    pretrain(config, f"{KEY}=1", "name=tiny-1-seed0", "train.optimizer.lr=0.01")
    done = command(config, f"{KEY}=1,2", code=2)
    assert "belongs to another run; these keys differ: train.optimizer.lr" in done.stderr
    assert not (tmp_path / "runs/tiny-2-seed0").exists()


# Real sweeps


@pytest.mark.slow
def test_a_sweep_trains_each_run_once_and_ends_in_the_comparison(tmp_path):
    config = write_config(tmp_path)
    command(config, f"{KEY}=1,2", "--seeds", 2)
    names = ["tiny-2-seed0", "tiny-1-seed0", "tiny-2-seed1", "tiny-1-seed1"]
    runs = {name: tmp_path / "runs" / name for name in names}
    pretrain(config, f"{KEY}=1", "seed=1", "name=alone")  # in this process
    assert metrics(runs["tiny-1-seed1"]) == metrics(tmp_path / "runs/alone")
    page = (tmp_path / "runs/tiny-sweep-num_key_value_heads/comparison.md").read_text(encoding="utf-8")
    assert "# Comparison: tiny-2, tiny-1" in page
    assert "Warning" not in page

    # once more, with another value: only that one is trained
    before = {name: (run / "report.md").stat().st_mtime_ns for name, run in runs.items()}
    done = command(config, f"{KEY}=1,2,4", "--seeds", 1)
    assert "3 runs, 2 of them already trained" in done.stdout
    assert {name: (run / "report.md").stat().st_mtime_ns for name, run in runs.items()} == before


@pytest.mark.slow
def test_a_run_that_fails_is_reported_at_the_end_and_the_others_continue(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 4, "checkpoint_every": 0}, eval={"every": 0})
    done = command(config, "train.optimizer.adamw_lr=1e38,0.003", code=3)
    assert "tiny-1e+38-seed0: FAILED, exit code 3" in done.stdout
    page = (tmp_path / "runs/tiny-sweep-adamw_lr/comparison.md").read_text(encoding="utf-8")
    assert "# Comparison: tiny-0.005, tiny-0.003" in page
    assert "> **Warning:** tiny-1e+38-seed0 is left out" in page


def until_a_signal(event: EvalEvent) -> None:
    """From step 10 on, if the runs' folder has a file `hold`: `held` is written, and the run waits
    for a signal.
    """
    hold = event.directory.parent / "hold"
    if event.step < 10 or not hold.exists():
        return
    hold.unlink()
    came = threading.Event()
    handlers = {}

    def note(number, frame) -> None:
        handlers[number](number, frame)  # the run's own
        came.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, note)
    (event.directory.parent / "held").touch()
    while not came.wait(0.01):
        pass
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.parametrize(("send", "number"), [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGINT)])
def test_a_sweep_that_is_stopped_saves_and_resumes_exactly(send, number, tmp_path):
    """SIGTERM reaches the sweep alone, which passes it on; Ctrl-C in a terminal must reach the run
    once as well.
    """
    hooks = ["validation", {"name": "tests.train.run.test_sweep:until_a_signal", "every": 10}]
    sections = {"train": {"max_steps": 100, "checkpoint_every": 0}, "eval": {"every": 50, "hooks": hooks}}
    config = write_config(tmp_path, **sections)
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "hold").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "train.sweep", str(config), f"{KEY}=1,2", "--trust-hooks"],
        cwd=REPOSITORY, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until = time.monotonic() + 300
    while not (runs / "held").exists():  # step 10 of the first run
        assert time.monotonic() < until, process.communicate(timeout=5)
        time.sleep(0.02)
    send(process.pid, number)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + number, printed
    assert "sweep: stopped; the same command continues" in printed
    assert "FAILED" not in printed
    assert metrics(runs / "tiny-2-seed0")[-1]["step"] in (9, 10, 11), printed
    assert not (runs / "tiny-2-seed0" / LOCK).exists()  # no process of it is left
    assert not (runs / "tiny-1-seed0").exists()  # nothing was begun after the signal
    done = command(config, f"{KEY}=1,2", "--trust-hooks")
    assert "2 runs, 0 of them already trained" in done.stdout
    pretrain(config, "name=uninterrupted", "--trust-hooks")
    assert metrics(runs / "tiny-2-seed0") == metrics(runs / "uninterrupted")


def test_a_second_sweep_is_refused_and_trains_nothing(tmp_path):
    config = write_config(tmp_path)
    folder = tmp_path / "runs/tiny-sweep-num_key_value_heads"
    with own(folder):
        done = command(config, f"{KEY}=1,2", code=2)
    assert "is in use by another process" in done.stderr
    assert not (tmp_path / "runs").exists()
