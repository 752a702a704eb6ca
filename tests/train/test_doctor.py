"""The doctor on this machine, and on one whose backends raise, compute something else or are not there."""

import re
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch
from packaging.requirements import Requirement

from configs.command import InputError
from model.backends.choice import BACKENDS, Backend
from model.masks import boolean_mask
from tests.processes import run_module
from tests.train.helpers import REPOSITORY, write_config
from train.config import load_run_config
from train.doctor import checks, speed
from train.doctor.checks import Unwell
from train.doctor.speed import Timing, recommendation
from train.machine.device import Device, resolve_device
from train.machine.machine_cache import Findings, recall, remember

SDPA = BACKENDS["sdpa"].compute


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine that is quick in bf16, of which nothing else is known. Compiling takes long and has its own test."""
    monkeypatch.setenv("HEADLIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("train.machine.machine_cache._measured_speed", lambda: 2.0)
    monkeypatch.setattr(checks, "compiler_problem", lambda kind: "left out here")
    monkeypatch.setattr(speed, "STEPS_S", 1.0)


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path, train={"precision": "auto", "device": "auto"})


def examined(config, *overrides, code=0) -> str:
    done = run_module("train.doctor", config, *overrides)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def line(said: str, what: str) -> str:
    """The verdict on `what`, with what goes on below it."""
    (found,) = re.findall(rf"^(\S+ +{re.escape(what)} .*(?:\n {{32}}.*)*)", said, re.MULTILINE)
    return " ".join(found.split())


def of_heads(compute, mask=boolean_mask, limits=None):
    return Backend(compute, mask, limits)


def raises(q, k, v, mask, dropout):
    raise RuntimeError("no kernel image is available for execution on the device\nand more")


def differs(q, k, v, mask, dropout):
    return SDPA(q, k.flip(1), v, mask, dropout)


def packed_differ(q, k, v, mask, dropout):
    return SDPA(q, k, v, None, dropout)


def gives_nan(q, k, v, mask, dropout):
    return SDPA(q, k, v, mask, dropout) * float("nan")


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *grads):
        return 2 * grads[0]


def wrong_backward(q, k, v, mask, dropout):
    return _WrongBackward.apply(SDPA(q, k, v, mask, dropout))


# ---------------------------------------------------------------------------------------------------------
# a machine that is well


@pytest.mark.slow
def test_here_training_works_and_nothing_is_left_behind(config, tmp_path):
    before = sorted(tmp_path.iterdir())
    remember(Findings(bf16_speed=0.1, faults={"attention cpu blocked bf16": "differed"}, checked="2026-01-01"))
    said = examined(config)
    for what in ("Python and packages", "device cpu", "precision fp32", "attention sdpa", "save and resume"):
        assert line(said, what).startswith("ok "), said
    assert line(said, "torch.compile") == "-- torch.compile left out here; training works without it"
    assert line(said, "attention varlen").startswith("-- ")
    assert re.search(r"recommended: train.device=cpu train.precision=\w+ model.attn_implementation=\w+", said)
    assert [path for path in sorted(tmp_path.iterdir()) if path not in before] == [tmp_path / "cache"]
    assert (recall().faults, recall().bf16_speed) == ({}, 2.0)  # what was wrong before is right again


@pytest.mark.slow
def test_the_real_command_compiles(config):
    command = [sys.executable, "-m", "train.doctor", str(config)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert line(done.stdout, "torch.compile").split()[0] in ("ok", "note", "--")
    assert done.stderr == ""


# ---------------------------------------------------------------------------------------------------------
# one whose backends fail


@pytest.mark.parametrize("broken", [raises, differs, gives_nan, packed_differ, wrong_backward])
def test_a_backend_that_fails_is_found(config, monkeypatch, broken):
    monkeypatch.setitem(BACKENDS, "blocked", of_heads(broken, limits=BACKENDS["blocked"].limits))
    with pytest.raises(Unwell) as verdict:
        checks.attention("blocked", "cpu", load_run_config(config).model)
    assert verdict.value.state == "FAIL"
    assert list(verdict.value.faults) == ["attention cpu blocked bf16"]


def test_a_backend_that_is_not_there_is_no_fault(config, monkeypatch):
    monkeypatch.setitem(BACKENDS, "flash", of_heads(raises, limits=lambda here: "needs a package"))
    with pytest.raises(Unwell, match="needs a package") as verdict:
        checks.attention("flash", "cpu", load_run_config(config).model)
    assert (verdict.value.state, verdict.value.faults) == ("--", {})


def test_auto_leaves_out_what_failed_and_what_you_ask_for_is_refused(config, monkeypatch):
    """Every kernel raises: the formula trains."""
    for name in set(BACKENDS) - {"eager"}:
        monkeypatch.setitem(BACKENDS, name, of_heads(raises))
    said = examined(config)
    assert "not blocked: " in line(said, "this config")
    assert "model.attn_implementation=eager" in said
    assert resolve_device(load_run_config(config)).attention == "eager"
    said = examined(config, "model.attn_implementation=flash", code=2)
    assert "model.attn_implementation is flash: RuntimeError" in line(said, "this config")
    assert "training will not work here: this config" in said


def test_a_precision_that_computes_something_else_is_left_out(config, monkeypatch):
    """bf16's products are wrong; then fp32's too."""
    exact = checks._model_error
    monkeypatch.setattr(checks, "_model_error", lambda name, *rest: 0.5 if name == "bf16" else exact(name, *rest))
    assert "precision fp32 (auto: the last that is left; not bf16" in line(examined(config), "this config")
    monkeypatch.setattr(checks, "_model_error", lambda *of: 0.5)
    said = examined(config, code=2)
    assert "training will not work here: precision fp32" in said
    assert "recommended" not in said


@pytest.mark.parametrize("name", checks.ALLOWED)
def test_a_wrong_model_is_seen_in_every_precision(monkeypatch, name):
    from model.norm import RMSNorm

    monkeypatch.setattr(checks, "lacks", lambda *of: None)
    assert checks.precision(name, "cpu")
    forward = RMSNorm.forward
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: forward(self, x) * (1.3 if x.dtype != torch.float64 else 1))
    with pytest.raises(Unwell, match="differs from float64"):
        checks.precision(name, "cpu")


@pytest.mark.slow
def test_a_gpu_that_is_there_and_does_not_compute_is_left_alone(config, monkeypatch):
    """PyTorch says that there is one, and every call to it fails: this build has no CUDA."""
    if torch.version.cuda:
        pytest.skip("this PyTorch has CUDA")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    said = examined(config)
    assert line(said, "device cuda").startswith("FAIL device cuda AssertionError")
    assert line(said, "device cpu").startswith("ok ")
    assert "train.device=cpu" in said
    assert resolve_device(load_run_config(config)).device.type == "cpu"
    said = examined(config, "train.device=cuda", code=2)
    assert "training will not work here: device cuda" in said


# ---------------------------------------------------------------------------------------------------------
# what training does besides


def test_a_resume_that_gives_other_weights_is_seen(tmp_path, monkeypatch):
    import train.run

    load = train.run.load_checkpoint

    def forgetful(checkpoint, lm, optimizers, world):
        state = load(checkpoint, lm, optimizers, world)
        for optimizer in optimizers:
            optimizer.state.clear()
        return state

    monkeypatch.setattr(train.run, "load_checkpoint", forgetful)
    with pytest.raises(Unwell, match="other weights") as verdict:
        checks.save_and_resume("cpu", "fp32", tmp_path)
    assert verdict.value.state == "FAIL"


@pytest.mark.parametrize(
    ("body", "state", "words"),
    [
        ("raise RuntimeError('bad instruction')", "FAIL", "RuntimeError: bad instruction"),
        ("import time; time.sleep(60)", "note", "not done within"),
    ],
)
def test_a_compiler_that_fails_or_hangs(monkeypatch, tmp_path, body, state, words):
    monkeypatch.setattr(checks, "compiler_problem", lambda kind: "")
    monkeypatch.setattr(checks, "COMPILE_S", 20.0 if state == "FAIL" else 0.5)
    run = subprocess.run
    monkeypatch.setattr(checks.subprocess, "run", lambda command, **rest: run([sys.executable, "-c", body], **rest))
    with pytest.raises(Unwell, match=words) as verdict:
        checks.compiling("cpu", tmp_path)
    assert verdict.value.state == state


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("nothing-is-called-so>=1", "nothing-is-called-so is missing"),
        ("torch<1", f"torch {version('torch')} is not <1: python -m pip install -r requirements.txt"),
        ("python<3", "is not <3"),
    ],
)
def test_a_package_that_is_missing_or_old_is_named(monkeypatch, requirement, words):
    assert "torch" in [wanted.name for wanted in checks.requirements()]
    monkeypatch.setattr(checks, "requirements", lambda: [Requirement("pyyaml"), Requirement(requirement)])
    with pytest.raises(Unwell, match=re.escape(words)):
        checks.packages()


def test_room_is_there_or_not(config, tmp_path, monkeypatch):
    run = load_run_config(config, ["data.source={kind: storyworld, documents: 1000000000}"])
    assert "free beside" in checks.room(load_run_config(config), "cpu", tmp_path, 0.0)
    with pytest.raises(Unwell, match="other programs use 40 % of the CPU: end them") as verdict:
        checks.room(load_run_config(config), "cpu", tmp_path, 0.4)
    assert verdict.value.state == "note"
    monkeypatch.setattr("train.fits.shutil.disk_usage", lambda folder: type("Usage", (), {"free": 10**9}))
    with pytest.raises(InputError, match="lower it, or give another output_dir"):
        checks.room(run, "cpu", tmp_path, 0.0)


# ---------------------------------------------------------------------------------------------------------
# what it recommends


def timing(precision: str, seconds: float, is_whole: bool = True) -> Timing:
    attention = "blocked" if precision == "bf16" else "sdpa"
    return Timing(Device(torch.device("cpu"), precision, "auto", attention, ()), seconds, is_whole)


@pytest.mark.parametrize(
    ("auto", "other", "chosen", "words"),
    [
        (1.05, 1.0, "bf16", "auto takes these by itself"),  # not clearly slower
        (2.0, 1.0, "fp32", "auto does not: name them on the command line"),
    ],
)
def test_the_quicker_is_recommended_with_its_minutes(config, auto, other, chosen, words):
    run = load_run_config(config, ["train.max_steps=600"])
    said = recommendation(run, [timing("bf16", auto), timing("fp32", other)], True, 0.0)
    minutes = 600 * (auto if chosen == "bf16" else other) / 60
    assert f"train.precision={chosen} " in said
    assert words in said
    assert f"about {minutes:,.1f} minutes of training" in said
    assert "compile=false" in said
    assert "other programs" not in said


def test_it_says_what_the_minutes_do_not_cover(config):
    run = load_run_config(config, ["train.max_steps=6000"])
    said = recommendation(run, [timing("bf16", 1.0, is_whole=False)], True, 0.4)
    assert "train.compile=true" in said
    assert "other programs use 40 % of the CPU" in said
    assert "extended from fewer rows" in said
    assert "train.compile=false" in recommendation(run, [timing("bf16", 1.0)], False, 0.0)
    by_clock = load_run_config(config, ["train.max_minutes=3", "train.max_steps=null"])
    assert "| 90 |" in re.sub(" +", " ", recommendation(by_clock, [timing("bf16", 2.0)], True, 0.0))
    assert "use a GPU" in recommendation(run, [], True, 0.0)


@pytest.fixture
def a_second_a_row(monkeypatch):
    """A clock on which a row takes a second, and a step one second besides."""
    make = speed.our_step

    def counted(run, device, rows, **rest):
        step, *others = make(run, device, rows, **rest)
        step.rows = rows
        return step, *others

    monkeypatch.setattr(speed, "our_step", counted)
    monkeypatch.setattr(speed, "timed", lambda step, device: (step.rows + 1.0, step.rows + 1.0))


OF_32_ROWS = ["train.tokens_per_step=1024", "train.precision=fp32", "model.vocab_size=320"]


@pytest.mark.parametrize(("limit", "seconds"), [(1000.0, 33.0), (30.0, 33.0), (0.0, 64.0)])
def test_a_step_is_timed_whole_or_extended_from_fewer_rows(config, monkeypatch, a_second_a_row, limit, seconds):
    """32 rows take 33 seconds. From one row alone: 64."""
    run = load_run_config(config, OF_32_ROWS)
    monkeypatch.setattr(speed, "STEPS_S", limit)
    found = speed.time_step(run, resolve_device(run))
    assert (found.seconds, found.is_whole) == (seconds, limit == 1000.0)


def test_the_minutes_are_those_of_the_processes_of_a_run(config, monkeypatch, a_second_a_row):
    """Two of them share the 32 rows: 17 seconds."""
    run = load_run_config(config, [*OF_32_ROWS, "train.processes=2", "train.max_steps=60"])
    monkeypatch.setattr(speed, "STEPS_S", 1000.0)
    found = speed.time_step(run, resolve_device(run))
    assert (found.seconds, found.is_whole, found.processes) == (17.0, True, 2)
    said = recommendation(run, [found], False, 0.0)
    assert "about 17.0 minutes of training" in said
    assert "2 processes of 1 thread each" in said
    uneven = load_run_config(config, [*OF_32_ROWS, "train.processes=3"])
    with pytest.raises(InputError, match="3 processes cannot share the 32 rows"):
        speed.time_step(uneven, resolve_device(uneven))


def test_where_memory_runs_out_a_step_is_extended_from_one_row(config, monkeypatch, a_second_a_row):
    run = load_run_config(config, OF_32_ROWS)
    monkeypatch.setattr(speed, "STEPS_S", 1000.0)
    make = speed.our_step

    def short_of_memory(run, device, rows, **rest):
        if rows > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return make(run, device, rows, **rest)

    monkeypatch.setattr(speed, "our_step", short_of_memory)
    found = speed.time_step(run, resolve_device(run))
    assert (found.seconds, found.is_whole) == (64.0, False)


def test_a_model_for_which_this_cpu_is_far_too_slow_is_not_tried(config):
    run = load_run_config(config, ["model.hidden_size=8192", "model.vocab_size=320"])
    run = run.model_copy(update={"data": run.data.model_copy(update={"sequence_length": 2048})})
    assert speed.time_step(run, resolve_device(run)) is None
