"""Faults while training: non-finite numbers, no memory, signals, files that cannot be written."""

import itertools
import json
import math
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch

import train.loop
import train.run.after_step
import train.run.begin_and_end
from eval.hooks import held_out as validation
from model import LanguageModel
from tests.processes import exit_code
from tests.train.checkpoints import edit_state
from tests.train.helpers import (
    at_each_step,
    at_step,
    bad_gradient,
    bad_loss,
    metrics,
    pretrain,
    pretrain_rank,
    refusal,
    run_world,
    trace,
    write_config,
)

TRACED = {"trace": True}


def tensors_of(run) -> dict[str, torch.Tensor]:
    """Weights, momentum and step counts."""
    tensors = dict(run.lm.named_parameters())
    states = [state for optimizer in run.optimizers for state in optimizer.state.values()]
    tensors |= {f"{number} {name}": tensor for number, state in enumerate(states) for name, tensor in state.items()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("fault", [bad_loss, bad_gradient])
@pytest.mark.parametrize("on_device", [False, True], ids=["", "decided on the device"])
def test_a_non_finite_loss_or_gradient_moves_nothing_and_stops_with_3(tmp_path, monkeypatch, fault, on_device):
    monkeypatch.setattr(train.run.run.Run, "gates_on_device", property(lambda run: on_device))
    before = {}

    def spoil(run):
        before.update(tensors_of(run))
        return fault(run)

    runs = at_step(monkeypatch, [6], spoil)
    done = pretrain(write_config(tmp_path, train={"log_every": 4}), code=3)
    assert "at step 6 (rows 48 to 55); no step was taken" in done.stdout
    after = tensors_of(runs[0])
    assert len(after) == len(before) > 2 * len(list(runs[0].lm.parameters()))
    assert all(torch.equal(before[name], now) for name, now in after.items())
    assert (tmp_path / "runs/tiny/checkpoints/latest").read_text().strip() == "step_00000004"
    skipped = metrics(tmp_path / "runs/tiny", "skipped")
    assert [(m["step"], m["rows"]) for m in skipped] == [(7, [48, 55])]
    assert skipped[0]["loss" if fault is bad_loss else "grad_norm"] is None
    monkeypatch.undo()
    # the fault was not in the files
    assert "finished at step 12" in pretrain(write_config(tmp_path)).stdout


@pytest.mark.parametrize("on_device", [False, True], ids=["", "decided on the device"])
def test_this_many_bad_steps_are_skipped_and_one_more_stops(tmp_path, monkeypatch, on_device):
    """One is allowed, also where another process skipped it, before a stop."""
    monkeypatch.setattr(train.run.run.Run, "gates_on_device", property(lambda run: on_device))
    at_step(monkeypatch, [2, 6], bad_gradient)
    config = write_config(tmp_path, train={"skip_non_finite": 1, "max_steps": 4, "log_every": 2})
    assert pretrain(config).stdout.count("skipped: loss") == 1
    lines = metrics(tmp_path / "runs/tiny")
    assert [m["step"] for m in lines if m["split"] == "skipped"] == [3]
    assert [m["step"] for m in lines if m["split"] == "train"] == [2, 4]
    assert "skip them with train.skip_non_finite=2" in pretrain(config, "train.max_steps=12", code=3).stdout


@pytest.fixture
def low_scale(monkeypatch):
    """In fp16, a scale at which the first gradients do not overflow; PyTorch begins with 65,536."""
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=1024.0))


def test_fp16_clips_the_gradient_of_the_loss_and_not_of_the_scaled_one(tmp_path, monkeypatch, low_scale):
    """Optimizers get a gradient of length grad_clip, as in fp32: half precision is a hundredth off
    at most.
    """
    seen = []

    def watch_optimizer(run):
        parameters = list(run.lm.parameters())
        norm = lambda *_: seen.append(float(torch.nn.utils.get_total_norm([p.grad for p in parameters])))  # noqa: E731
        run.optimizers[0].register_step_pre_hook(norm)

    at_step(monkeypatch, [0], watch_optimizer)
    for name, changes in {"half": {"precision": "fp16"}, "exact": {}}.items():
        pretrain(write_config(tmp_path, name=name, train=TRACED | {"max_steps": 4, "grad_clip": 0.01} | changes))
    assert seen == pytest.approx([0.01] * 8, rel=1e-3)
    half, exact = (trace(tmp_path / "runs" / name) for name in ("half", "exact"))
    assert [line["batch"] for line in half] == [line["batch"] for line in exact]
    for key in ("loss", "grad_norm"):
        ours, theirs = ([float.fromhex(line[key]) for line in lines] for lines in (half, exact))
        assert ours == pytest.approx(theirs, rel=0.02)


def test_an_overflow_in_fp16_skips_the_step_and_halves_the_scale(tmp_path, monkeypatch, low_scale):
    """It costs no step that skip_non_finite allows, until a scale of 1 is reached, which is none at
    all.
    """
    at_step(monkeypatch, [2, *range(5, 99)], bad_gradient)
    config = write_config(tmp_path, train={"precision": "fp16", "max_steps": 5})
    pretrain(config)
    lines = metrics(tmp_path / "runs/tiny", "train")
    assert [line["loss_scale"] for line in lines] == [1024.0] * 3 + [512.0] * 2
    assert [line["grad_norm"] is None for line in lines] == [False, False, True, False, False]
    assert "at step 14 " in pretrain(config, "train.max_steps=30", code=3).stdout
    lines = metrics(tmp_path / "runs/tiny", "train")
    assert [line["loss_scale"] for line in lines[5:]] == [2.0**power for power in range(9, 0, -1)]


def too_large(rows: int):
    """Memory runs out at the end of a forward pass of more rows, when dropout has drawn its random
    numbers.
    """

    def action(run):
        def check(module, inputs, options, output):
            if options.get("labels") is not None and len(options["input_ids"]) > rows:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

        run.lm.register_forward_hook(check, with_kwargs=True)

    return action


def test_out_of_memory_halves_the_rows_of_a_validation_and_of_a_step_and_no_figure_changes(tmp_path, monkeypatch):
    measure = train.run.begin_and_end.report_initial_loss
    config = write_config(tmp_path, model={"hidden_dropout": 0.2}, train=TRACED)
    pretrain(config, "name=small", "train.micro_batch_size=2")
    monkeypatch.setattr(train.run.begin_and_end, "report_initial_loss", lambda run: (measure(run), too_large(2)(run)))
    done = pretrain(config)
    for rows in (8, 4):
        assert f"out of memory with {rows} rows at a time: {rows // 2} from here" in done.stdout
    assert "hook is off" not in done.stdout
    assert trace(tmp_path / "runs/tiny") == trace(tmp_path / "runs/small")
    assert metrics(tmp_path / "runs/tiny") == metrics(tmp_path / "runs/small")


@pytest.mark.parametrize(
    ("rows", "setting", "message"),
    [(4, "8", "try train.micro_batch_size=4 or auto"), (0, "auto", "try train.activation_checkpointing=true")],
)
def test_memory_that_cannot_be_had_is_one_line(tmp_path, monkeypatch, rows, setting, message):
    at_step(monkeypatch, [5], too_large(rows))
    assert message in refusal(write_config(tmp_path), f"train.micro_batch_size={setting}")
    assert (tmp_path / "runs/tiny/checkpoints/latest").read_text().strip() == "step_00000004"


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


PLACES = {
    "in an evaluation": (validation, "loss_sums", 1),
    "in a micro-batch": (LanguageModel, "forward", 30),
    "in a save": (train.run.after_step, "save_checkpoint", 1),
    "while waiting for data": (train.loop, "agree_on_counts", 5),
    "before the first step": (train.run.begin_and_end, "report_initial_loss", 0),
}


@pytest.mark.parametrize(
    "place", ["in an evaluation", *(pytest.param(p, marks=pytest.mark.slow) for p in [*PLACES][1:])]
)
def test_a_signal_at_any_moment_saves_and_the_run_resumes_exactly(tmp_path, monkeypatch, place):
    changes = {"model": {"hidden_dropout": 0.1}, "train": TRACED | {"micro_batch_size": 2}}
    pretrain(write_config(tmp_path, name="whole", **changes))
    owner, name, when = PLACES[place]
    call = getattr(owner, name)
    calls = itertools.count()

    def signalled(*arguments, **options):
        if next(calls) == when:
            send()
        return call(*arguments, **options)

    monkeypatch.setattr(owner, name, signalled)
    config = write_config(tmp_path, **changes)
    pretrain(config, code=143)
    monkeypatch.undo()
    assert "resumed from" in pretrain(config).stdout
    assert trace(tmp_path / "runs/tiny") == trace(tmp_path / "runs/whole")
    assert metrics(tmp_path / "runs/tiny") == metrics(tmp_path / "runs/whole")
    ours, theirs = ((tmp_path / "runs" / run / "samples.jsonl").read_text() for run in ("tiny", "whole"))
    assert ours == theirs  # no hook runs twice


@pytest.mark.slow
def test_figures_that_cannot_be_written_do_not_stop_the_run(tmp_path):
    """The file is a directory, which not even root can write a line to."""
    config = write_config(tmp_path)
    assert run_world(1, pretrain_rank, config, [], 3) == [143]
    (tmp_path / "runs/tiny/metrics.jsonl").unlink()
    (tmp_path / "runs/tiny/metrics.jsonl").mkdir()
    done = pretrain(config)
    assert done.stdout.count("metrics.jsonl cannot be written (Is a directory); training continues") == 1
    assert "finished at step 12" in done.stdout


def two_signals(run):
    if run.state.step == 5:
        send(signal.SIGINT)
        send(signal.SIGINT)


def leave_at_once(config: Path) -> None:
    with at_each_step(two_signals):
        pretrain_rank(config, [])


def test_a_second_ctrl_c_leaves_at_once_and_the_run_resumes_exactly(tmp_path):
    pretrain(write_config(tmp_path, name="whole", train=TRACED))
    config = write_config(tmp_path, train=TRACED)
    assert exit_code(leave_at_once, config) == 130
    assert "SIGINT again: stopped at once" in config.with_name("rank0.txt").read_text()
    assert (tmp_path / "runs/tiny/checkpoints/latest").read_text().strip() == "step_00000004"
    pretrain(config)
    assert trace(tmp_path / "runs/tiny") == trace(tmp_path / "runs/whole")


def test_a_validation_that_is_non_finite_never_is_the_best(tmp_path, monkeypatch):
    """Every later loss compares false with nan, so the first one would stay the best for ever."""
    loss_sums = validation.loss_sums
    calls = itertools.count(1)

    def spoilt(*arguments, **options):
        results = loss_sums(*arguments, **options)
        return [[(float("nan"), 1)]] if next(calls) == 2 else results

    monkeypatch.setattr(validation, "loss_sums", spoilt)
    pretrain(write_config(tmp_path, eval={"hooks": ["validation"]}))
    checkpoints = tmp_path / "runs/tiny/checkpoints"
    assert (checkpoints / "best").read_text().strip() in ("step_00000008", "step_00000012")
    state = json.loads((checkpoints / "step_00000012/training/trainer_state.json").read_text())
    assert state["best_step"] > 4
    assert math.isfinite(state["best_loss"])


def test_the_best_is_not_compared_with_one_of_other_tokens(tmp_path):
    """A loss on 64 tokens may be lower than any on 1,024, and the last evaluation reads others
    again.
    """
    config = write_config(tmp_path, train={"max_steps": 4}, eval={"every": 2, "max_tokens": 64})
    pretrain(config)
    checkpoints = tmp_path / "runs/tiny/checkpoints"
    edit_state(checkpoints / "step_00000004", lambda state: state.update(best_loss=0.001))
    pretrain(config, "train.max_steps=6", "eval.max_tokens=1024", "eval.final_max_tokens=32")
    state = json.loads((checkpoints / "step_00000006/training/trainer_state.json").read_text())
    last = metrics(tmp_path / "runs/tiny", "val")[-1]
    assert (state["best_step"], state["best_tokens"], state["best_loss"]) == (6, 1024, last["loss_comparable"])
    assert last["loss"] != last["loss_comparable"]
