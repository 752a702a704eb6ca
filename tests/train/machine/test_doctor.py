"""The doctor on this machine, and on one whose backends raise, compute something else or are not
there.
"""

import re
import subprocess
import sys
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import train.run.run
from model.backends.choice import BACKENDS, Backend
from model.masks import boolean_mask
from tests.processes import run_module
from tests.train.helpers import REPOSITORY, write_config
from train.config import load_run_config
from train.machine import device as hardware
from train.machine import doctor
from train.machine.device import Device
from train.machine.doctor import recommendation

SDPA = BACKENDS["sdpa"].compute


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine that is quick in bf16. Compiling takes long and has its own test."""
    monkeypatch.setattr("train.machine.device.CPU", {"amx_bf16": True})
    monkeypatch.setattr(hardware, "compiler_problem", lambda kind: "left out here")


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path, train={"precision": "auto", "device": "auto"})


def examined(config, *overrides, code=0) -> str:
    done = run_module("train.doctor", config, *overrides)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def line(output: str, what: str) -> str:
    """The verdict on `what`, with what goes on below it."""
    (verdict,) = re.findall(rf"^(\S+ +{re.escape(what)} .*(?:\n {{32}}.*)*)", output, re.MULTILINE)
    return " ".join(verdict.split())


@pytest.mark.slow
def test_here_training_works_and_nothing_is_left_behind(config, tmp_path, monkeypatch):
    monkeypatch.undo()  # the command sees the machine as it is
    before = sorted(tmp_path.iterdir())
    command = [sys.executable, "-m", "train.doctor", str(config)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, encoding="utf-8", timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    for what in ("attention eager fp32", "attention sdpa fp32", "save and resume"):
        assert line(done.stdout, what).startswith("ok "), done.stdout
    assert line(done.stdout, "device cpu").startswith(("ok ", "note "))  # other programs may run
    assert re.search(r"recommended: train.device=cpu train.precision=\w+ model.attn_implementation=\w+", done.stdout)
    assert sorted(tmp_path.iterdir()) == before


# --------------------------------------------------------------------------------------------------
# a machine that computes something else


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *grads):
        return 2 * grads[0]


BROKEN = {
    "it differs": lambda q, k, v, mask, dropout: SDPA(q, k.flip(1), v, mask, dropout),
    "it gives NaN": lambda q, k, v, mask, dropout: SDPA(q, k, v, mask, dropout) * float("nan"),
    "it differs on packed rows": lambda q, k, v, mask, dropout: SDPA(q, k, v, None, dropout),
    "its backward pass differs": lambda *inputs: _WrongBackward.apply(SDPA(*inputs)),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_backend_that_computes_something_else_is_found(config, monkeypatch, broken):
    monkeypatch.setitem(BACKENDS, "blocked", Backend(broken, boolean_mask, BACKENDS["blocked"].limits))
    model = load_run_config(config).model
    assert doctor.attention("blocked", "bf16", "cpu", model)[0] == "FAIL"
    assert doctor.attention("blocked", "fp16", "cpu", model)[0] == "--"  # which is no fault


def test_what_failed_is_not_recommended(config, monkeypatch):
    """Every kernel raises: the formula trains."""
    raises = mock.Mock(side_effect=RuntimeError("no kernel image is available for execution on the device\nand more"))
    for name in set(BACKENDS) - {"eager"}:
        monkeypatch.setitem(BACKENDS, name, Backend(raises, boolean_mask))
    output = examined(config)
    assert line(output, "attention sdpa fp32").startswith("FAIL ")
    assert "model.attn_implementation=eager train.compile=false\n  auto may not" in output
    assert "model.attn_implementation=eager" in examined(config, "model.attn_implementation=flash")


@pytest.fixture
def wrong(monkeypatch):
    """Number formats in which the weights of attention are too large by a third."""
    formats = set()
    dropout = F.dropout

    def larger(weights, *arguments, **options):
        return dropout(weights, *arguments, **options) * (1.3 if weights.dtype in formats else 1)

    monkeypatch.setattr(F, "dropout", larger)
    return formats


def test_a_precision_that_computes_something_else_is_left_out(config, wrong):
    wrong.add(torch.bfloat16)
    assert "precision fp32 " in line(examined(config), "this config")
    wrong.add(torch.float32)
    assert "recommended" not in examined(config, code=2)


@pytest.mark.parametrize("name", doctor.ALLOWED)
def test_a_wrong_number_is_seen_in_every_precision(config, name, wrong):
    model = load_run_config(config).model
    assert doctor.attention("eager", name, "cpu", model)[0] == "ok"
    wrong |= {torch.float32, torch.bfloat16, torch.float16}
    assert doctor.attention("eager", name, "cpu", model)[0] == "FAIL"


@pytest.mark.slow
def test_a_gpu_that_is_there_and_does_not_compute_is_left_alone(config, monkeypatch):
    """PyTorch says that there is one, and every call to it fails: this build has no CUDA."""
    if torch.version.cuda:
        pytest.skip("this PyTorch has CUDA")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    output = examined(config)
    assert line(output, "device cuda").startswith("FAIL device cuda AssertionError")
    assert "recommended: train.device=cpu" in output
    assert "training will not work here: device cuda" in examined(config, "train.device=cuda", code=2)


def test_a_resume_that_gives_other_weights_is_seen(config, monkeypatch):
    load = train.run.run.load_checkpoint

    def forgetful(checkpoint, lm, optimizers, world):
        state = load(checkpoint, lm, optimizers, world)
        for optimizer in optimizers:
            optimizer.state.clear()
        return state

    monkeypatch.setattr(train.run.run, "load_checkpoint", forgetful)
    assert doctor.save_and_resume(load_run_config(config), timing("fp32", 1.0)[0])[0] == "FAIL"


def test_a_compiler_that_computes_something_else_is_seen(config, monkeypatch):
    model = load_run_config(config).model
    monkeypatch.setattr(hardware, "compiler_problem", lambda kind: "")
    monkeypatch.setattr(torch, "compile", lambda work, dynamic: work)
    assert doctor.compiling("cpu", model)[0] == "ok"

    def without_gradient_of_v(work, dynamic):
        return lambda q, k, v, *others: work(q, k, v.detach(), *others) + 0 * v.sum()

    monkeypatch.setattr(torch, "compile", without_gradient_of_v)
    assert doctor.compiling("cpu", model)[0] == "FAIL"


# --------------------------------------------------------------------------------------------------
# what it recommends


def timing(precision: str, seconds: float) -> tuple[Device, float]:
    attention = "blocked" if precision == "bf16" else "sdpa"
    return Device(torch.device("cpu"), precision, False, attention, ()), seconds


@pytest.mark.parametrize(("auto", "chosen"), [(1.05, "bf16"), (2.0, "fp32")], ids=["not clearly slower", "slower"])
def test_the_quicker_is_recommended_with_its_minutes(config, auto, chosen):
    run = load_run_config(config, ["train.max_steps=600"])
    output = recommendation(run, [timing("bf16", auto), timing("fp32", 1.0)], True)
    minutes = 600 * (auto if chosen == "bf16" else 1.0) / 60
    assert f"train.precision={chosen} " in output
    assert f"about {minutes:,.1f} minutes of training" in output
