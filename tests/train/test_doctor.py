"""The doctor on this machine, and on one whose backends raise, compute something else or are not there."""

import re
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version

import pytest
import torch
from packaging.specifiers import SpecifierSet

from configs.command import InputError
from model.backends.choice import BACKENDS, Backend
from model.masks import boolean_mask
from tests.processes import run_module
from tests.train.helpers import REPOSITORY, write_config
from train.config import load_run_config
from train.doctor import __main__ as doctor
from train.doctor import numbers, rehearsal, speed, surroundings
from train.doctor.speed import Timing, recommendation
from train.machine.device import Device, resolve_device
from train.machine.findings import Findings, recall, remember

SDPA = BACKENDS["sdpa"].compute


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine that is quick in bf16, of which nothing else is known. Compiling takes long and has its own test."""
    monkeypatch.setenv("HEADLIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("train.machine.precision._measured_speed", lambda: 2.0)
    monkeypatch.setattr("train.machine.compilation.compiler_problem", lambda kind: "left out here")
    monkeypatch.setattr(doctor, "STEPS_S", 1.0)


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
    said = examined(config, "tracking.wandb=offline")
    for what in ("Python", "packages", "device cpu", "disk", "precision fp32", "fp16 loss scaling", "attention sdpa"):
        assert line(said, what).startswith("ok "), said
    assert "equal to the last bit" in line(said, "save and resume")
    assert "a run started and ended" in line(said, "wandb")
    assert line(said, "torch.compile") == "-- torch.compile left out here; training works without it"
    assert line(said, "attention varlen").startswith("-- ")
    assert "tiny: 12 steps of 256 tokens" in said
    assert re.search(r"recommended: train.device=cpu train.precision=\w+ model.attn_implementation=\w+", said)
    assert [path for path in sorted(tmp_path.iterdir()) if path not in before] == [tmp_path / "cache"]
    assert recall().faults == {}


@pytest.mark.slow
def test_the_real_command_compiles_and_ends_in_a_minute_of_work(config):
    """In a process of its own, which has all its time: nothing here is cut short but by the command itself."""
    command = [sys.executable, "-m", "train.doctor", str(config)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert line(done.stdout, "torch.compile").split()[0] in ("ok", "note", "--")
    assert done.stderr == ""


def test_bad_input_is_one_line(config):
    done = run_module("train.doctor", config, "model.hiden_size=3")
    assert done.returncode == 2
    assert "did you mean `model.hidden_size`" in done.stderr


# ---------------------------------------------------------------------------------------------------------
# one whose backends fail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (raises, "RuntimeError: no kernel image is available for execution on the device"),
        (differs, "differs from float64 by"),
        (gives_nan, "differs from float64 by nan"),
        (packed_differ, "differs from float64 by"),
        (wrong_backward, "differs from float64 by"),
    ],
)
def test_a_backend_that_fails_is_found_and_auto_leaves_it_out(config, monkeypatch, broken, words):
    monkeypatch.setitem(BACKENDS, "blocked", of_heads(broken, limits=BACKENDS["blocked"].limits))
    found = numbers.attention("blocked", "cpu", load_run_config(config).model)
    assert found.state == "FAIL"
    assert words in found.said
    assert list(found.faults) == ["attention cpu blocked bf16"]
    said = examined(config)
    assert "not blocked: " in line(said, "this config")
    assert resolve_device(load_run_config(config)).attention == "sdpa"


def test_a_backend_that_is_not_there_is_no_fault(config, monkeypatch):
    monkeypatch.setitem(BACKENDS, "flash", of_heads(raises, limits=lambda here: "needs a package"))
    found = numbers.attention("flash", "cpu", load_run_config(config).model)
    assert (found.state, found.said, found.faults) == ("--", "needs a package", {})


@pytest.mark.slow
def test_where_every_kernel_fails_the_formula_trains(config, monkeypatch):
    for name in set(BACKENDS) - {"eager"}:
        monkeypatch.setitem(BACKENDS, name, of_heads(raises))
    said = examined(config)
    assert resolve_device(load_run_config(config)).attention == "eager"
    assert "model.attn_implementation=eager" in said


def test_where_nothing_is_right_it_says_so_and_the_exit_code_is_2(config, monkeypatch):
    for name in BACKENDS:
        monkeypatch.setitem(BACKENDS, name, of_heads(gives_nan))
    monkeypatch.setattr(numbers, "worst_error", lambda name, here: float("nan"))
    said = examined(config, code=2)
    assert "training will not work here" in said
    assert "recommended" not in said


@pytest.mark.slow
def test_what_you_ask_for_is_refused_where_it_computes_something_else(config, monkeypatch):
    monkeypatch.setitem(BACKENDS, "flash", of_heads(differs))
    said = examined(config, "model.attn_implementation=flash", code=2)
    assert "model.attn_implementation is flash: differs" in line(said, "this config")
    assert examined(config)


@pytest.mark.slow
def test_a_precision_that_computes_something_else_is_left_out(config, monkeypatch):
    """bf16's products are wrong; then fp32's too."""
    exact = numbers._model_error
    monkeypatch.setattr(numbers, "_model_error", lambda name, *rest: 0.5 if name == "bf16" else exact(name, *rest))
    said = examined(config)
    assert "the gradient differs from float64 by 5e-01; auto leaves it out" in line(said, "precision bf16")
    assert "precision fp32 (auto: the last that is left; not bf16" in line(said, "this config")
    monkeypatch.setattr(numbers, "_model_error", lambda *of: 0.5)
    assert "training will not work here: precision fp32" in examined(config, code=2)


@pytest.mark.parametrize("name", numbers.PRECISIONS)
def test_a_wrong_model_is_seen_in_every_precision(monkeypatch, name):
    from model.norm import RMSNorm

    monkeypatch.setattr(numbers, "lacks", lambda *of: None)
    assert numbers.precision(name, "cpu").state == "ok"
    forward = RMSNorm.forward
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: forward(self, x) * (1.3 if x.dtype != torch.float64 else 1))
    assert numbers.precision(name, "cpu").state == "FAIL"


def test_a_loss_scale_that_lets_an_overflow_through_is_seen(monkeypatch):
    class Careless(torch.amp.GradScaler):
        def step(self, optimizer):
            self.unscale_(optimizer)
            optimizer.step()

    monkeypatch.setattr(torch.amp, "GradScaler", Careless)
    found = numbers.loss_scaling("cpu")
    assert found.faults == {"precision cpu fp16": "an overflow moved the weights, or no step did"}


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


@pytest.mark.slow
def test_the_next_examination_forgets_what_is_right_again(config):
    remember(Findings(bf16_speed=0.1, faults={"attention cpu blocked bf16": "differed"}, checked="2026-01-01"))
    examined(config)
    assert recall().faults == {}
    assert recall().bf16_speed == 2.0


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
    found = rehearsal.save_and_resume("cpu", "fp32", tmp_path)
    assert (found.state, found.is_fatal) == ("FAIL", True)
    assert "other weights" in found.said


def test_a_run_that_raises_is_a_verdict(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(rehearsal, "_train", full)
    found = rehearsal.save_and_resume("cpu", "fp32", tmp_path)
    assert (found.said, found.is_fatal) == ("OSError: No space left on device", True)


def child(monkeypatch, tmp_path, body: str) -> rehearsal.Child:
    """A process that runs this code instead of a function of rehearsal.py."""
    monkeypatch.setattr(rehearsal.sys, "executable", sys.executable)
    popen = subprocess.Popen
    monkeypatch.setattr(
        rehearsal.subprocess, "Popen", lambda command, **options: popen([sys.executable, "-c", body], **options)
    )
    return rehearsal.Child("compile_something", "cpu", tmp_path)


@pytest.mark.parametrize(
    ("body", "state", "words", "faults"),
    [
        ("", "ok", "was compiled", {}),
        ("raise RuntimeError('bad instruction')", "FAIL", "RuntimeError: bad instruction; auto leaves it off", None),
        ("import time; time.sleep(60)", "note", "not done within", {}),
    ],
)
def test_a_compiler_that_works_fails_or_hangs(monkeypatch, tmp_path, body, state, words, faults):
    began = time.monotonic()
    with child(monkeypatch, tmp_path, body) as process:
        patience = 0.2 if "sleep" in body else 60.0
        found = rehearsal.compile_verdict("cpu", process, "", patience)
    assert (found.state, words in found.said) == (state, True)
    assert found.faults == ({"compile cpu": "RuntimeError: bad instruction"} if faults is None else faults)
    assert not found.is_fatal
    assert time.monotonic() - began < 50  # the hanging one was killed


def test_wandb_that_fails_is_no_reason_not_to_train(monkeypatch, tmp_path):
    with child(monkeypatch, tmp_path, "raise ImportError('no wandb')") as process:
        found = rehearsal.wandb_verdict("offline", process, 60.0)
    assert (found.state, found.is_fatal) == ("note", False)
    assert rehearsal.wandb_verdict("disabled", None, 0.0).state == "--"


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("nothing-is-called-so>=1", "nothing-is-called-so is missing"),
        ("torch<1", f"torch {version('torch')} is not <1: python -m pip install -r requirements.txt"),
    ],
)
def test_a_package_that_is_missing_or_old_is_named(monkeypatch, requirement, words):
    monkeypatch.setattr(surroundings, "_requirements", lambda: ["pyyaml", requirement])
    found = surroundings.packages()
    assert words in found.said
    assert found.is_fatal
    assert (
        SpecifierSet(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["requires-python"])
        == surroundings.PYTHON
    )


def test_a_disk_without_room_is_fatal(config, tmp_path, monkeypatch):
    run = load_run_config(config, ["data.source={kind: storyworld, documents: 1000000000}"])
    monkeypatch.setattr("train.fits.shutil.disk_usage", lambda folder: type("Usage", (), {"free": 10**9}))
    assert surroundings.disk(run, tmp_path).is_fatal
    assert "cannot be written" in surroundings.disk(load_run_config(config), tmp_path / "gone").said


# ---------------------------------------------------------------------------------------------------------
# what it recommends


def timing(precision: str, seconds: float, is_whole: bool = True) -> Timing:
    attention = "blocked" if precision == "bf16" else "sdpa"
    return Timing(Device(torch.device("cpu"), precision, "auto", attention, ()), seconds, is_whole)


@pytest.mark.parametrize(
    ("auto", "other", "chosen", "words"),
    [
        (1.0, 2.0, "bf16", "auto takes these by itself"),
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


def a_second_a_row(monkeypatch) -> None:
    """A clock on which a row takes a second, and a step one second besides."""
    clock = [0.0]
    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock[0])
    make = speed.make_step

    def counted(lm, loss_of, optimizers, batches, *rest):
        step = make(lm, loss_of, optimizers, batches, *rest)
        step.rows = sum(len(batch["input_ids"]) for batch in batches)
        return step

    def timed(step, device):
        clock[0] += step.rows + 1.0
        return step.rows + 1.0, step.rows + 1.0

    monkeypatch.setattr(speed, "make_step", counted)
    monkeypatch.setattr(speed, "timed", timed)


@pytest.mark.parametrize(("limit", "seconds"), [(1000.0, 33.0), (30.0, 33.0), (0.0, 64.0)])
def test_a_step_is_timed_whole_or_extended_from_fewer_rows(config, monkeypatch, limit, seconds):
    """32 rows take 33 seconds. From one row alone: 64."""
    run = load_run_config(config, ["train.tokens_per_step=1024", "train.precision=fp32", "model.vocab_size=320"])
    a_second_a_row(monkeypatch)
    found = speed.time_step(run, resolve_device(run), limit, 0.0)
    assert (found.seconds, found.is_whole) == (seconds, limit == 1000.0)
    halved = speed.time_step(run, resolve_device(run), limit, 0.5)  # beside other programs: one thread
    assert halved.seconds == seconds / torch.get_num_threads()


def test_the_minutes_are_those_of_the_processes_of_a_run(config, monkeypatch):
    """Two of them share the 32 rows: 17 seconds. Beside other programs the work of one thread, 33, is shared out."""
    settings = ["train.tokens_per_step=1024", "train.precision=fp32", "model.vocab_size=320", "train.processes=2"]
    run = load_run_config(config, [*settings, "train.max_steps=60"])
    a_second_a_row(monkeypatch)
    alone, beside = (speed.time_step(run, resolve_device(run), 1000.0, others) for others in (0.0, 0.5))
    assert (alone.seconds, alone.is_whole, alone.processes) == (17.0, True, 2)
    assert (beside.seconds, beside.processes) == (33.0 / 2, 2)
    said = recommendation(run, [alone], False, 0.0)
    assert "about 17.0 minutes of training" in said
    assert "2 processes of 1 thread each" in said
    uneven = load_run_config(config, [*settings, "train.processes=3"])
    with pytest.raises(InputError, match="3 processes cannot share the 32 rows"):
        speed.time_step(uneven, resolve_device(uneven), 1.0, 0.0)


@pytest.mark.parametrize("most", [1, 4])
def test_where_memory_runs_out_a_step_is_extended_from_fewer_rows(config, monkeypatch, most):
    run = load_run_config(config, ["train.tokens_per_step=1024", "train.precision=fp32", "model.vocab_size=320"])
    tried = iter([1, 4, 16])

    def time_or_raise(*arguments):
        rows = next(tried)
        if rows > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return float(rows)

    monkeypatch.setattr(speed, "_time", time_or_raise)
    found = speed.time_step(run, resolve_device(run), 1000.0, 0.0)
    assert (found.seconds, found.is_whole) == (32.0, False)
    monkeypatch.setattr(speed, "_time", lambda *of: time_or_raise())
    tried = iter([16])
    with pytest.raises(torch.OutOfMemoryError):
        speed.time_step(run, resolve_device(run), 1000.0, 0.0)


def test_a_model_for_which_this_cpu_is_far_too_slow_is_not_tried(config):
    run = load_run_config(config, ["model.hidden_size=8192", "model.vocab_size=320"])
    run = run.model_copy(update={"data": run.data.model_copy(update={"sequence_length": 2048})})
    assert speed.time_step(run, resolve_device(run), 1.0, 0.0) is None
