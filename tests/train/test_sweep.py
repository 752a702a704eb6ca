"""One key at a time: which runs a sweep is made of, and that it trains them once, resumes, and ends in a comparison."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock
from train.saving.run_lock import LOCK, holder

from model.transformer import on_meta
from tests.train.helpers import REPOSITORY, metrics, pretrain, write_config
from train import sweep
from train.budget import with_vocabulary
from train.config import load_run_config
from train.sweep import plan, split_values

KEY = "model.num_key_value_heads"


def command(*arguments, code: int = 0):
    return pretrain(*arguments, code=code, script=sweep.main)


def names(config: Path, *arguments: str, seeds: int = 1) -> list[str]:
    return [run.config.name for run in plan(str(config), arguments, seeds)]


# The plan


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,4", ["1", "2", "4"]),
        ("mha, gqa,mqa", ["mha", "gqa", "mqa"]),
        ("[0.9, 0.95],[0.8, 0.9]", ["[0.9, 0.95]", "[0.8, 0.9]"]),
        ("{a: [1, 2], b: 3},null", ["{a: [1, 2], b: 3}", "null"]),
        ("'one, two',three", ["'one, two'", "three"]),
        ('["a, b", c],"d,e"', ['["a, b", c]', '"d,e"']),
        ("it's fine,so", ["it's fine", "so"]),
        ("1", ["1"]),
        ("1,", ["1"]),
    ],
)
def test_values_are_parted_at_commas_outside_of_brackets_and_quotes(text, values):
    assert split_values(text) == values


def test_the_baseline_comes_first_and_every_seed_after_the_other(tmp_path):
    config = write_config(tmp_path, seed=5)
    found = names(config, f"{KEY}=1,4", seeds=2)
    assert found == ["tiny-2-seed5", "tiny-1-seed5", "tiny-4-seed5", "tiny-2-seed6", "tiny-1-seed6", "tiny-4-seed6"]
    runs = plan(str(config), [f"{KEY}=1,4", "train.max_steps=3"], 2)
    assert [(run.config.seed, run.config.model.kv_heads) for run in runs[:4]] == [(5, 2), (5, 1), (5, 4), (6, 2)]
    assert {run.config.max_steps for run in runs} == {3}
    for run in runs:  # what is started is what was checked
        assert load_run_config(config, run.overrides) == run.config


def test_a_value_is_trained_once_however_it_is_written(tmp_path):
    config = write_config(tmp_path)
    assert names(config, f"{KEY}=1,2,2,4") == ["tiny-2-seed0", "tiny-1-seed0", "tiny-4-seed0"]
    assert names(config, f"{KEY}=mha,4,1,mqa,gqa") == ["tiny-gqa-seed0", "tiny-mha-seed0", "tiny-1-seed0"]
    again = write_config(tmp_path, model={"num_key_value_heads": 4})
    assert names(again, f"{KEY}=mha,1") == ["tiny-mha-seed0", "tiny-1-seed0"]  # the baseline, as it is written here


def test_several_keys_are_swept_one_at_a_time(tmp_path):
    runs = plan(str(write_config(tmp_path)), [f"{KEY}=1,2", "train.optimizer.lr=0.02,1e-3"], 1)
    assert {run.config.name: (run.config.model.kv_heads, run.config.train.optimizer.lr) for run in runs} == {
        "tiny-baseline-seed0": (2, 0.02),
        "tiny-num_key_value_heads-1-seed0": (1, 0.02),
        "tiny-lr-1e-3-seed0": (2, 0.001),
    }


def test_names_stay_folder_names_and_apart(tmp_path):
    config = write_config(tmp_path, name="my run")
    found = names(config, "train.optimizer.betas=[0.9, 0.95],[0.8, 0.95],[0.8,0.95],[0.80, 0.96]")
    assert found == ["my run-0.9_0.95-seed0", "my run-0.8_0.95-seed0", "my run-0.80_0.96-seed0"]
    found = names(config, "eval.prompts=['a b'],['a/b'],['../..']")
    assert found == ["my run-baseline-seed0", "my run-a_b-seed0", "my run-a_b-2-seed0", "my run-.._..-seed0"]


def test_seeds_alone_and_a_single_value(tmp_path):
    config = write_config(tmp_path)
    assert names(config, seeds=2) == ["tiny-baseline-seed0", "tiny-baseline-seed1"]
    assert names(config, f"{KEY}=1,") == ["tiny-2-seed0", "tiny-1-seed0"]
    assert names(config, f"{KEY}=1", "train.max_steps=2,3") == ["tiny-12-seed0", "tiny-2-seed0", "tiny-3-seed0"]


RUNGS = {
    "learned-positions": {"model.position_embedding": "learned"},
    "gelu": {"model": {"gated_mlp": False, "hidden_act": "gelu_new"}, "train.max_steps": 3},
}


def with_rungs(folder: Path, rungs: dict = RUNGS) -> Path:
    return write_config(folder, rungs=rungs, model={"loadable_elsewhere": False})


def test_a_config_may_bring_its_variants_along(tmp_path):
    config = with_rungs(tmp_path)
    runs = plan(str(config), ["train.optimizer.lr=0.01"], 2)
    assert [run.config.name for run in runs[:3]] == [
        "tiny-baseline-seed0",
        "tiny-learned-positions-seed0",
        "tiny-gelu-seed0",
    ]
    assert [run.config.model.position_embedding for run in runs[:3]] == ["rope", "learned", "rope"]
    gelu = runs[5].config
    assert (gelu.model.gated_mlp, gelu.model.hidden_act, gelu.max_steps, gelu.seed) == (False, "gelu_new", 3, 1)
    assert {run.config.train.optimizer.lr for run in runs} == {0.01}
    for run in runs:  # what is started is what was checked; a single run has no rungs
        assert load_run_config(config, run.overrides) == run.config
        assert run.config.rungs is None
    assert sweep.default_folder(runs) == tmp_path / "runs/tiny-sweep"


def test_a_key_that_is_swept_on_the_command_line_takes_the_place_of_the_rungs(tmp_path):
    runs = plan(str(with_rungs(tmp_path)), [f"{KEY}=1,2"], 1)
    assert [run.config.name for run in runs] == ["tiny-2-seed0", "tiny-1-seed0"]
    assert sweep.default_folder(runs) == tmp_path / "runs/tiny-sweep-num_key_value_heads"


@pytest.mark.parametrize(
    ("rungs", "message"),
    [
        ({"a": {"model.heads": 2}}, "`rungs.a`: command line `model.heads=2`: unknown key `model.heads`, did you mean"),
        ({"a": {KEY: 3}}, "`rungs.a`: command line `model.num_key_value_heads=3`: num_attention_heads (4) must be"),
        ({"a": {KEY: 2}}, "`rungs.a` is the same as baseline"),
        ({"a": {KEY: 1}, "b": {KEY: "mqa"}}, "`rungs.b` is the same as a"),
        ({"a": {"name": "b"}}, "`rungs.a`: name changes nothing that is trained"),
        ({"a b": {KEY: 1}}, "`rungs.a b`: a rung's name is letters"),
        ({"baseline": {KEY: 1}}, "`rungs.baseline`: a rung's name is letters"),
        ({"a": 1}, "`rungs.a` is 1: must be {key: value, …}"),
    ],
)
def test_a_bad_rung_is_one_line_before_anything_is_trained(tmp_path, rungs, message):
    done = command(with_rungs(tmp_path, rungs), code=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


# Bad input: one line, and nothing is trained


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.heads=1,2"], "command line `model.heads=1`: unknown key `model.heads`, did you mean"),
        (["nothing.here=1,2"], "unknown key `nothing`"),
        ([f"{KEY}=1,3"], f"command line `{KEY}=3`: num_attention_heads (4) must be a multiple of"),
        ([f"{KEY}=1,many"], f"command line `{KEY}=many`: `{KEY}` is 'many'"),
        (["train.tokens_per_step=256,100"], "`train.tokens_per_step=100`"),
        ([f"{KEY}=1,2", "--seeds", "0"], "--seeds is '0': it must be a whole number from 1"),
        ([f"{KEY}=1,2", "--jobs", "0"], "--jobs is '0': it must be a whole number from 1"),
        (["num_key_value_heads"], "`num_key_value_heads`: write key=value,value"),
        (["=1,2"], "`=1,2`: write key=value,value"),
        ([f"{KEY}=1,,2"], "not valid YAML"),
        ([f"{KEY}=[1,2"], "not valid YAML"),
        ([f"{KEY}=1,2", f"{KEY}=4,1"], f"`{KEY}` is given twice"),
        (["seed=1,2,3"], "seeds are not swept: --seeds 3"),
        (["name=a,b"], "name changes nothing that is trained"),
        (["tracking.wandb=offline,disabled"], "tracking.wandb changes nothing that is trained"),
        ([], "nothing is swept"),
        ([f"{KEY}=1"], "nothing is swept"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_trained(tmp_path, arguments, message):
    done = command(write_config(tmp_path), *arguments, code=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_runs_of_another_sweep_are_refused_before_anything_is_trained(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 2}, eval={"every": 0})
    pretrain(config, f"{KEY}=1", "name=tiny-1-seed0", "train.optimizer.lr=0.01")
    done = command(config, f"{KEY}=1,2", code=2)
    assert "tiny-1-seed0 belongs to another run; these keys differ: train.optimizer.lr" in done.stderr
    assert not (tmp_path / "runs/tiny-2-seed0").exists()


# Real sweeps


@pytest.mark.slow
def test_a_sweep_trains_each_run_once_and_ends_in_the_comparison(tmp_path, capfd):
    config = write_config(tmp_path)
    command(config, f"{KEY}=1,2", "--seeds", 2, "--skip-decode")
    names = ["tiny-2-seed0", "tiny-1-seed0", "tiny-2-seed1", "tiny-1-seed1"]
    runs = {name: tmp_path / "runs" / name for name in names}
    shown = capfd.readouterr().out
    assert [shown.count(f"{name}: ") > 0 for name in names] == [True] * 4
    pretrain(config, f"{KEY}=1", "seed=1", "name=alone")  # in this process
    assert metrics(runs["tiny-1-seed1"]) == metrics(tmp_path / "runs/alone")
    page = (tmp_path / "runs/tiny-sweep-num_key_value_heads/comparison.md").read_text(encoding="utf-8")
    assert "# Comparison: tiny-2, tiny-1" in page
    assert "| 2 (0, 1) | 2 (0, 1) |" in re.sub(" +", " ", page)
    assert "Warning" not in page

    # once more, with another value: only that one is trained
    before = {name: (run / "report.md").stat().st_mtime_ns for name, run in runs.items()}
    done = command(config, f"{KEY}=1,2,4", "--seeds", 1, "--skip-decode")
    assert "3 runs, 2 of them already trained" in done.stdout
    assert re.search(r"\[2/3\] tiny-4-seed0: training; about [\d.]+ minutes for the 1 that are left", done.stdout)
    assert {name: (run / "report.md").stat().st_mtime_ns for name, run in runs.items()} == before
    assert "tiny-4-seed0: " in capfd.readouterr().out
    done = command(config, f"{KEY}=1,2,4", "--skip-decode")
    assert "3 runs, 3 of them already trained" in done.stdout
    assert capfd.readouterr().out == ""  # no process was started


@pytest.mark.slow
def test_a_run_that_fails_is_reported_at_the_end_and_the_others_continue(tmp_path, monkeypatch):
    """Two at a time, sharing two threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    config = write_config(tmp_path, train={"max_steps": 4, "checkpoint_every": 0}, eval={"every": 0})
    done = command(config, "train.optimizer.adamw_lr=1e38,0.005", "--jobs", 2, "--skip-decode", code=3)
    assert "tiny-1e38-seed0: FAILED, exit code 3 (its loss became non-finite); the others continue" in done.stdout
    assert "tiny-1e38-seed0 is left out: its loss became non-finite" in done.stderr
    page = (tmp_path / "runs/tiny-sweep-adamw_lr/comparison.md").read_text(encoding="utf-8")
    assert "# Comparison: tiny-0.01, tiny-0.005" in page
    assert "> **Warning:** tiny-1e38-seed0 is left out" in page
    assert "tiny-0.005-seed0 | step 0: loss" in done.stdout  # each line says whose it is
    assert "1 threads" in (tmp_path / "runs/tiny-0.005-seed0/report.md").read_text(encoding="utf-8")


def stopped_sweep(tmp_path: Path, stop) -> tuple[Path, str, int]:
    """A sweep of two runs, stopped by `stop` at step 10 of the first: config, what it printed, its exit code."""
    hooks = ["validation", {"name": "tests.train.holding:until_a_signal", "every": 10}]
    sections = {"train": {"max_steps": 100, "checkpoint_every": 0}, "eval": {"every": 50, "hooks": hooks}}
    config, runs = write_config(tmp_path, **sections), tmp_path / "runs"
    runs.mkdir()
    (runs / "hold").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "train.sweep", str(config), f"{KEY}=1,2", "--skip-decode", "--trust-hooks"],
        cwd=REPOSITORY, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until = time.monotonic() + 300
    while not (runs / "held").exists():
        assert time.monotonic() < until, process.communicate(timeout=5)
        time.sleep(0.02)
    stop(process.pid)
    printed, _ = process.communicate(timeout=300)
    assert metrics(runs / "tiny-2-seed0")[-1]["step"] in (9, 10, 11), printed
    assert not holder(runs / "tiny-2-seed0")  # no process of it is left
    return config, printed, process.returncode


@pytest.mark.slow
def test_a_sweep_that_is_stopped_saves_and_resumes_exactly(tmp_path):
    """SIGTERM reaches the sweep alone, which passes it on."""
    config, printed, code = stopped_sweep(tmp_path, lambda pid: os.kill(pid, signal.SIGTERM))
    assert code == 143, printed
    assert "sweep: stopped; the same command continues" in printed
    assert "FAILED" not in printed
    assert not (tmp_path / "runs/tiny-1-seed0").exists()  # nothing was begun after the signal
    done = command(config, f"{KEY}=1,2", "--skip-decode", "--trust-hooks")
    assert "2 runs, 0 of them already trained" in done.stdout
    pretrain(config, "name=uninterrupted", "--trust-hooks")
    assert metrics(tmp_path / "runs/tiny-2-seed0") == metrics(tmp_path / "runs/uninterrupted")


@pytest.mark.slow
def test_control_c_in_a_terminal_stops_the_run_that_trains_once(tmp_path):
    _, printed, code = stopped_sweep(tmp_path, lambda pid: os.killpg(pid, signal.SIGINT))
    assert code == 130, printed
    assert "stopped at step" in printed  # the run saved
    assert "Traceback" not in printed


# Configs of equal size


def parameters(name: str) -> int:
    run, _ = with_vocabulary(load_run_config(f"configs/{name}.yaml"))
    return on_meta(run.model).num_parameters()


def test_the_demo_with_a_latent_has_its_parameters_and_the_cache_of_mqa():
    latent, mqa = (load_run_config(f"configs/{name}.yaml").model for name in ("mla", "demo_mqa_matched"))
    assert latent.attention == "mla"
    assert latent.cache_numbers == mqa.cache_numbers
    assert parameters("mla") == pytest.approx(parameters("demo"), rel=0.005)


@pytest.mark.parametrize(
    ("matched", "kv_heads", "whole"),
    [
        ("gqa_matched", 2, "mha"),
        ("mqa_matched", 1, "mha"),
        ("demo_gqa_matched", 2, "demo"),
        ("demo_mqa_matched", 1, "demo"),
    ],
)
def test_matched_configs_differ_in_heads_and_width_alone_and_have_as_many_parameters(matched, kv_heads, whole):
    config, baseline = load_run_config(f"configs/{matched}.yaml"), load_run_config(f"configs/{whole}.yaml")
    ours, theirs = config.identity(), baseline.identity()
    differing = {key for key in ours if ours[key] != theirs[key]}
    assert differing == {KEY, "model.intermediate_size"}
    assert config.model.kv_heads == kv_heads < baseline.model.kv_heads == baseline.model.num_attention_heads
    assert parameters(matched) == pytest.approx(parameters(whole), rel=0.005)


def test_the_runs_of_a_sweep_are_a_group_in_wandb(monkeypatch):
    started = []
    monkeypatch.setattr(sweep.subprocess, "Popen", lambda command, env, **options: started.append(env))
    monkeypatch.setattr(sweep.threading, "Thread", lambda **options: SimpleNamespace(start=lambda: None))
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    runs = plan("configs/small.yaml", ["model.num_key_value_heads=1,2"], 1)
    sweep._start(runs[0], ["configs/small.yaml"], 1, sweep.default_folder(runs).name)
    assert started[0]["WANDB_RUN_GROUP"] == "small-sweep-num_key_value_heads"
    monkeypatch.setenv("WANDB_RUN_GROUP", "mine")
    sweep._start(runs[0], ["configs/small.yaml"], 1, "another")
    assert started[1]["WANDB_RUN_GROUP"] == "mine"


# Beside other processes


def test_a_second_sweep_is_refused_and_trains_nothing(tmp_path):
    config, folder = write_config(tmp_path), tmp_path / "runs/tiny-sweep-num_key_value_heads"
    folder.mkdir(parents=True)
    with FileLock(folder / LOCK):
        done = command(config, f"{KEY}=1,2", code=2)
    assert done.stderr.startswith(f"error: {folder} is in use by another process")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]


def test_a_sweep_waits_for_a_run_that_another_process_trains(tmp_path, monkeypatch):
    config = write_config(tmp_path, train={"max_steps": 4, "checkpoint_every": 2}, eval={"every": 2})
    for heads in (1, 2):
        pretrain(config, f"{KEY}={heads}", f"name=tiny-{heads}-seed0")
    other = FileLock(tmp_path / "runs/tiny-1-seed0" / LOCK)
    other.acquire()
    monkeypatch.setattr(sweep.time, "sleep", lambda seconds: other.release())
    done = command(config, f"{KEY}=1,2", "--skip-decode")
    assert "2 runs, 1 of them already trained" in done.stdout
    assert "[1/2] tiny-1-seed0: is trained by another process, already: waiting until that ends" in done.stdout
    assert "[2/2] tiny-1-seed0: trained" in done.stdout
    other.acquire()
    monkeypatch.setattr(sweep.time, "sleep", lambda seconds: os.kill(os.getpid(), signal.SIGINT))
    assert "continues from here" in command(config, f"{KEY}=1,2", code=130).stderr
    other.release()
