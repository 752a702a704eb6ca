"""Run: everything that a training run holds. What changes while it trains is in run.state, and nowhere else."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from configs.command import InputError, is_out_of_memory
from data.batches import Batch
from data.packing import PreparedData, Rows
from eval.hooks import EvalEvent, Hooks
from model import LanguageModel
from train.config import RunConfig
from train.machine.budget import micro_batch_rows
from train.machine.device import Device, decided_by
from train.machine.processes import World
from train.objective import BatchSource, Figures, Forward, Objective
from train.run.checkpoint import TrainerState, load_checkpoint, load_source_state
from train.run.metrics import Meter, Tracker
from train.run.run_directory import CONTENTS, Start, check_contents

Result = TypeVar("Result")


@dataclass
class RunState(TrainerState):
    """What changes: what checkpoints save (TrainerState), and what belongs to this process alone.

    before: `resolved` of the checkpoint. micro_rows: rows of one forward pass. saved_at: step of the newest checkpoint.
    started: when the run would have begun if it had never been interrupted. forward: what training calls: the model, or
    the model compiled or wrapped. non_finite: steps skipped so far, counted on the device; `skipped` is the part of it
    that has been read. stop_signal: the signal that asked this process to stop, 0 = none.
    """

    before: dict[str, Any] = field(default_factory=dict)
    micro_rows: int = 1
    saved_at: int | None = None
    started: float = 0.0
    forward: nn.Module = field(default_factory=nn.Identity)
    non_finite: Tensor = field(default_factory=lambda: torch.zeros(()))
    stop_signal: Callable[[], int] = lambda: 0


@dataclass(frozen=True)
class Run:
    """One run, as one of its processes sees it. script: whose command it is."""

    config: RunConfig
    script: str
    device: Device
    world: World
    data: PreparedData
    source: BatchSource
    held_out: Rows
    objective: Objective
    lm: LanguageModel
    optimizers: list[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler
    hooks: Hooks
    tracker: Tracker
    meter: Meter
    state: RunState

    @property
    def gates_on_device(self) -> bool:
        """Whether a bad step is skipped without the CPU looking at it: fused AdamW and Muon can, on CUDA. In fp16 the
        loss scale is read at every step anyway."""
        return self.device.device.type == "cuda" and not self.world.shares_model and not self.scaler.is_enabled()

    @property
    def rows_joined(self) -> int:
        """How many rows of data.sequence_length a row of this run is made of."""
        return max(1, self.source.row_length // self.config.data.sequence_length)

    def event(self, is_last: bool) -> EvalEvent:
        """This moment, for the hooks."""
        resume, init_from = self.config.resume, self.config.init_from
        base = init_from if resume in ("auto", "never") else resume
        return EvalEvent(
            step=self.state.step,
            tokens=self.state.tokens,
            seconds=self.state.seconds,
            is_last=is_last,
            lm=self.lm,
            data=self.data,
            held_out=self.held_out,
            data_config=self.config.data,
            config=self.config.eval,
            rows_per_batch=self.state.micro_rows * self.rows_joined,
            directory=self.config.directory,
            autocast=self.device.autocast,
            tracker=self.tracker,
            world=self.world,
            total_steps=self.config.max_steps,
            loss=self.meter.last.values["loss"] if self.meter.last and self.meter.last.counts.trained else None,
            command=shlex.join(["python", "-m", self.script, str(self.config.directory / "config.yaml")]),
            base=Path(base) if base else None,
        )


def resume(
    config: RunConfig,
    start: Start,
    lm: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    source: BatchSource,
    data: PreparedData,
    device: Device,
    world: World,
) -> RunState:
    """The state to start from: a new one, or that of a checkpoint, with weights, moments and random state as they were.

    Raises InputError if the checkpoint does not fit, or the text is not the one that the run was trained on.
    """
    state, rows = RunState(), micro_batch_rows(config, device, world.size)
    if start.checkpoint is not None:
        state = RunState(**vars(load_checkpoint(start.checkpoint, lm, optimizers, world)))
        source.restore(load_source_state(start.checkpoint, world))
        if start.checkpoint == start.newest:
            state.saved_at = state.step
        else:
            state.wandb_id = None  # another run continues, under its own name
        check_contents(config, state, data)
        before = (state.resolved.get("device"), state.resolved.get("world_size"))
        if config.train.micro_batch_size == "auto" and before == (device.device.type, world.size):
            # memory may have run out since
            rows = min(state.resolved.get("micro_batch_size") or rows, config.rows_per_step // world.size)
    state.identity = config.identity() | {CONTENTS: data.directory.name}  # from here on it is the continued run's
    state.before, state.resolved = state.resolved, decided_by(device, rows, world.size)
    joined_rows = rows * config.data.sequence_length // source.row_length
    state.micro_rows = max(1, min(joined_rows, source.rows_per_batch // world.size))
    state.forward, state.non_finite = lm, torch.tensor(float(state.skipped), device=device.device)
    return state


# ---------------------------------------------------------------------------------------------------------
# what every forward pass of training has around it


def losses(run: Run, forward: Forward, batch: Batch, share: float = 1.0) -> tuple[Tensor, Figures]:
    """-> what is minimised, and its parts by name: the objective's `loss`, the auxiliary losses of the model's own
    layers, times share, and the objective's figures. All are sums.

    Whatever an objective asks the model for, the model is asked for its auxiliary losses too: no objective can forget
    them, and `loss` is comparable with that of an evaluation.
    """
    auxiliary: Figures = {}

    def with_auxiliary(*inputs: Tensor, **options: Any) -> Any:
        result, more = forward(*inputs, **options, with_auxiliary=True)
        for name, loss in more.items():
            auxiliary[name] = auxiliary.get(name, 0) + share * loss
        return result

    with run.device.autocast():
        loss_sum, figures = run.objective.loss(with_auxiliary, batch)
    return sum(auxiliary.values(), loss_sum), {"loss": loss_sum, **figures, **auxiliary}


def within_memory(run: Run, attempt: Callable[[], Result], agree: bool = False) -> Result:
    """What `attempt` returns; where memory runs out in it, run.state.micro_rows is halved and it is called again, from
    the same random state.

    agree: all processes call this, and if memory runs out in one of them, all try again. Raises InputError where that
    is not to be decided here: train.micro_batch_size was given, one row is too much, or processes cannot agree.
    """
    on_cuda = run.device.device.type == "cuda"
    while True:
        random, random_on_gpu = torch.get_rng_state(), torch.cuda.get_rng_state() if on_cuda else None
        results: list[Result] = []
        try:
            results.append(attempt())
        except RuntimeError as error:  # torch.OutOfMemoryError is one; on a CPU it is a plain one
            if not is_out_of_memory(error):
                raise
        failed = int(not results)
        if not (run.world.sum(failed)[0] if agree else failed):
            return results[0]
        run.lm.zero_grad()
        if on_cuda:
            torch.cuda.empty_cache()
        rows, is_apart = run.state.micro_rows, run.world.size > 1 and not agree
        if rows == 1 or is_apart or run.config.train.micro_batch_size != "auto":
            fewer = f"train.micro_batch_size={rows // 2} or auto, " if rows > 1 else ""
            message = (
                f"out of memory with {rows} rows of {run.source.row_length} tokens at a time: try {fewer}"
                "train.activation_checkpointing=true, a shorter data.sequence_length or a smaller model"
            )
            if run.world.rank and is_apart:  # the others do not know, and only the first process prints its errors
                print(f"error in process {run.world.rank}: {message}", file=sys.stderr)
            raise InputError(message)
        run.state.micro_rows = rows // 2
        run.state.resolved["micro_batch_size"] = run.state.micro_rows * run.rows_joined
        run.tracker.say(f"out of memory with {rows} rows at a time: {rows // 2} from here, in more passes")
        torch.set_rng_state(random)
        if random_on_gpu is not None:
            torch.cuda.set_rng_state(random_on_gpu)
