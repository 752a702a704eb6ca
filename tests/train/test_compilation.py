"""`compile: auto` decides by the work that is left, on clocks that the tests move."""

import os
import signal

import pytest
import torch

from tests.processes import exit_code
from tests.train.grpo_helpers import begun, grpo_config
from tests.train.helpers import metrics, pretrain, refusal, write_config
from tests.train.worlds import trace
from train import grpo
from train.grpo import Rollouts
from train.machine import compilation, device, hardware
from train.optimizer import Muon


class Clock:
    """Moves by `each` at every look, and by hand."""

    def __init__(self, each: float = 0.0):
        self.now, self.each = 0.0, each

    def __call__(self) -> float:
        self.now += self.each
        return self.now


@pytest.fixture(autouse=True)
def twelve_steps_may_be_many(monkeypatch):
    for module in (compilation, device):
        monkeypatch.setattr(module, "FEW_STEPS", 12)


@pytest.fixture
def clocks(monkeypatch):
    def moved_by(wall, cpu):
        monkeypatch.setitem(hardware.CLOCKS, "wall", wall)
        monkeypatch.setitem(hardware.CLOCKS, "cpu", cpu)

    return moved_by


def plain(tmp_path, **train):
    sections = {"train": {"max_steps": 12, "checkpoint_every": 0, **train}, "eval": {"every": 0}}
    return write_config(tmp_path, **sections)


def test_a_busy_machine_does_not_make_it_compile(tmp_path, clocks, monkeypatch):
    monkeypatch.setattr(compilation, "share_of_others", lambda: 0.4)
    clocks(wall=Clock(each=1000), cpu=Clock(each=0.001))
    said = pretrain(plain(tmp_path)).stdout
    assert "compile off (auto: about " in said
    assert "; 0.0 if other programs leave the cores alone (other programs use 40 % of the CPU)" in said
    assert "; compiling pays from about 15 minutes on" in said


def test_threads_that_wait_for_each_other_do_not_count_as_work(tmp_path, clocks, monkeypatch):
    """On a busy machine two threads compute far longer than one, because they spin while they wait."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: threads.__setitem__(0, count))
    threads = [2]

    class Spinning(Clock):
        def __call__(self):
            self.now += 400 if threads[0] > 1 else 0.001
            return self.now

    clocks(wall=Clock(each=1000), cpu=Spinning())
    said = pretrain(plain(tmp_path)).stdout
    assert "compile off (auto: about " in said
    assert "; 0.0 if other programs leave the cores alone" in said
    assert threads == [2]


def test_the_estimate_is_of_whole_steps(tmp_path, clocks, monkeypatch):
    """Here time passes in the optimizer alone: a minute a step, and 12 steps."""
    clock, step = Clock(), Muon.step

    def slow(self, closure=None):
        clock.now += 60
        return step(self, closure)

    monkeypatch.setattr(Muon, "step", slow)
    clocks(wall=clock, cpu=clock)
    said = pretrain(plain(tmp_path)).stdout
    assert "about 12.0 minutes of training steps, evaluations and checkpoints not counted" in said


def test_the_estimate_holds_the_answers_that_a_step_draws(tmp_path, clocks, monkeypatch):
    """Here time passes while the model answers: a minute for every second step, and 12 steps."""
    clock, sample = Clock(), Rollouts.sample

    def slow(self, *arguments):
        clock.now += 60
        return sample(self, *arguments)

    config = grpo_config(begun(tmp_path / "folder"), grpo={"num_iterations": 2}, train={"max_steps": 12})
    monkeypatch.setattr(Rollouts, "sample", slow)
    clocks(wall=clock, cpu=clock)
    assert "about 6.0 minutes of training steps" in pretrain(config, "--trust-hooks", script=grpo.main).stdout


def test_long_work_is_compiled_after_it_says_so_and_trying_changes_nothing(tmp_path, clocks, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: model)
    clocks(wall=Clock(each=1000), cpu=Clock(each=1000))
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


def test_a_compiler_that_fails_is_an_error_only_where_it_was_asked_for(tmp_path, clocks, monkeypatch):
    def broken(model, dynamic):
        def forward(**batch):
            raise RuntimeError("no such instruction")

        return forward

    monkeypatch.setattr(torch, "compile", broken)
    clocks(wall=Clock(each=1000), cpu=Clock(each=1000))
    assert (
        "torch.compile failed (RuntimeError: no such instruction)"
        in pretrain(plain(tmp_path, compile=True), code=2).stderr
    )
    assert "compile is off: it failed here (RuntimeError: no such instruction)" in pretrain(plain(tmp_path)).stdout


def test_a_gpu_that_fails_while_compiling_ends_the_run_because_nothing_works_on_it_any_more(tmp_path, monkeypatch):
    def failed(device):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nand ten lines more")

    monkeypatch.setattr(torch, "compile", lambda model, dynamic: model)
    monkeypatch.setattr("train.machine.compilation.synchronize", failed)
    said = refusal(plain(tmp_path, compile=True))
    assert "failed in a compiled step (CUDA error: an illegal memory access was encountered): train with" in said


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
