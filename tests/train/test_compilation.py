"""`compile: auto` decides by the work of a run; a compiler that fails, is interrupted or adds up in another order."""

import os
import signal

import pytest
import torch

from tests.processes import exit_code
from tests.train.helpers import metrics, pretrain, write_config
from tests.train.worlds import trace
from train import device
from train.config import load_run_config


@pytest.fixture
def pays(monkeypatch):
    """A machine on which compiling twelve steps pays."""
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/c++")
    monkeypatch.setattr(device, "FEW_STEPS", 12)
    monkeypatch.setattr(device, "PAYS_AFTER_MINUTES", {"cpu": 0.0, "cuda": 0.0})


def plain(tmp_path, **train):
    sections = {"train": {"max_steps": 12, "checkpoint_every": 0, **train}, "eval": {"every": 0}}
    return write_config(tmp_path, **sections)


@pytest.mark.parametrize(
    ("kind", "changes", "chosen"),
    [
        ("cpu", ["train.max_steps=99"], False),
        ("cpu", ["train.max_steps=2000"], False),  # a minute
        ("cpu", ["train.max_steps=200000"], True),
        ("cpu", ["train.max_steps=null", "train.max_minutes=14"], False),
        ("cpu", ["train.max_steps=null", "train.max_minutes=16"], True),
        ("cuda", ["train.max_steps=2000"], False),
        ("cuda", ["train.max_steps=20000"], True),
        ("mps", ["train.max_steps=200000"], False),
    ],
)
def test_auto_compiles_what_is_long_enough_to_pay_for_it(tmp_path, monkeypatch, kind, changes, chosen):
    monkeypatch.setenv("HEADLIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/c++")
    monkeypatch.setattr("train.device.find_spec", lambda name: name)
    config = load_run_config(plain(tmp_path), changes)
    assert device.resolve_compile(config, kind, "fp32")[0] == chosen
    assert device.resolve_compile(config, kind, "fp32", not chosen)[0] != chosen  # as this run began
    device.remember_faults({f"compile {kind}": "no such instruction"})
    assert device.resolve_compile(config, kind, "fp32")[0] is False
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert kind != "cpu" or device.resolve_compile(config, kind, "fp32")[0] is False


def test_it_is_compiled_after_it_says_so_and_trying_changes_nothing(tmp_path, pays, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: model)
    said = pretrain(plain(tmp_path, trace=True), "name=tried").stdout
    assert "compile on (auto" in said
    assert said.index("compiling") < said.index("compiled in")
    pretrain(plain(tmp_path, trace=True), "name=plain", "train.compile=false")
    tried, untried = (tmp_path / "runs" / name for name in ("tried", "plain"))
    assert (tried / "trace.jsonl").read_text() == (untried / "trace.jsonl").read_text()
    assert metrics(tried) == metrics(untried)


def test_control_c_while_compiling_stops_the_run_and_is_not_a_failure(tmp_path, monkeypatch):
    def interrupted(model, dynamic):
        def forward(**batch):
            os.kill(os.getpid(), signal.SIGINT)
            raise RuntimeError("the compiler's process has ended")

        return forward

    monkeypatch.setattr(torch, "compile", interrupted)
    done = pretrain(plain(tmp_path, compile=True), code=130)
    assert "stopped at step 0" in done.stdout
    assert "failed" not in done.stdout + done.stderr


def test_a_compiler_that_fails_is_an_error_only_where_it_was_asked_for(tmp_path, pays, monkeypatch):
    def broken(model, dynamic):
        def forward(**batch):
            raise RuntimeError("no such instruction")

        return forward

    monkeypatch.setattr(torch, "compile", broken)
    assert "RuntimeError: no such instruction" in pretrain(plain(tmp_path, compile=True), code=1).stderr
    assert "compile is off: it failed here (RuntimeError: no such instruction)" in pretrain(plain(tmp_path)).stdout


def compiled_on_two_threads(config, name):
    import sys

    from configs.command import exit_on_bad_input
    from tests.processes import print_to
    from train.pretrain import main

    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(2)
    print_to(config.with_name("said.txt"))
    sys.argv = ["pretrain", str(config), f"name={name}", "train.compile=true", "train.processes=1"]
    exit_on_bad_input(main)


@pytest.mark.slow
def test_two_threads_add_up_in_the_same_order_in_compiled_runs_too(tmp_path):
    config = plain(tmp_path, trace=True, tokens_per_step=2048, max_steps=30)
    for name in ("one", "two"):
        assert exit_code(compiled_on_two_threads, config, name) == 0, config.with_name("said.txt").read_text()
    assert "compiled in" in config.with_name("said.txt").read_text()
    assert trace(tmp_path / "runs/one") == trace(tmp_path / "runs/two")
