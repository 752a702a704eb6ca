"""Run: everything that a training run holds. What changes while it trains is in run.state, and nowhere else."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from data.batches import Batch
from data.packing import Rows
from data.prepare import PreparedData
from eval.hooks import EvalEvent
from eval.hooks.registry import Hooks
from model import LanguageModel
from train.budget import micro_batch_rows
from train.config import RunConfig
from train.machine.device import Device, decided_by
from train.machine.distributed import World
from train.meters import Meter
from train.objective import BatchSource, Objective
from train.optimizer import build_optimizers
from train.saving import run_directory
from train.saving.checkpoint import TrainerState, load_checkpoint, load_kept
from train.saving.run_directory import Owner, Start
from train.tracking import Tracker


@dataclass
class RunState(TrainerState):
    """What changes: what checkpoints save (TrainerState), and what belongs to this process alone.

    before: `resolved` of the checkpoint. micro_rows: rows of one forward pass. saved_at: step of the newest checkpoint.
    started: when the run would have begun if it had never been interrupted. forward: what training calls: the model, or
    the model compiled or wrapped. non_finite: steps skipped so far, counted on the device; `skipped` is the part of it
    that has been read.
    """

    before: dict[str, Any] = field(default_factory=dict)
    micro_rows: int = 1
    saved_at: int | None = None
    started: float = 0.0
    forward: nn.Module = field(default_factory=nn.Identity)
    non_finite: Tensor = field(default_factory=lambda: torch.zeros(()))


@dataclass(frozen=True)
class Run:
    """One run, as one of its processes sees it. script: whose command it is."""

    config: RunConfig
    script: str
    owner: Owner
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
        """Whether a bad step is skipped without the CPU looking at it: fused AdamW and Muon can, on CUDA."""
        return self.device.device.type == "cuda" and not self.world.shares_model

    @property
    def rows_joined(self) -> int:
        """How many rows of data.sequence_length a row of this run is made of."""
        return max(1, self.source.row_length // self.config.data.sequence_length)

    def first_batch(self) -> Batch:
        """Batch 0. As in training, a source that lets the model write does it in the precision of the run."""
        with self.device.autocast():
            return self.source.batch(0, self.lm)

    def forget_gradients(self) -> None:
        """Free them: the next backward pass makes new ones."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def check_owner(self) -> None:
        """Raises InputError in every process if the run directory is no longer this run's: it was moved or deleted."""
        self.world.first(self.owner.check)

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
            loss=self.meter.last.loss if self.meter.last and self.meter.last.figures.trained else None,
            command=typed(self.script),
            base=Path(base) if base else None,
        )


def open_run(
    config: RunConfig,
    script: str,
    start: Start,
    owner: Owner,
    device: Device,
    world: World,
    data: PreparedData,
    source: BatchSource,
    held_out: Rows,
    objective: Objective,
    lm: LanguageModel,
    hooks: Hooks,
) -> Run:
    """Optimizers, and the state to resume from, with weights and random state as they were; then the directory opens.

    Raises InputError if the checkpoint does not fit, or the text is not the one that the run was trained on.
    """
    optimizers = build_optimizers(lm, config.train.optimizer, world, device.dtype)
    state = RunState(identity=config.identity())
    if start.checkpoint is not None:
        state = RunState(**vars(load_checkpoint(start.checkpoint, lm, optimizers, world)))
        source.restore(load_kept(start.checkpoint, world))
        if start.is_own:
            state.saved_at = state.step
        else:
            state.wandb_id = None  # another run continues, under its own name
        state.spikes = state.spikes or {"losses": []}
    run_directory.check_contents(config, state, data)
    world.first(owner.check)
    world.first(lambda: run_directory.open_for(config, start))
    scaler = torch.amp.GradScaler(device.device.type, enabled=device.precision == "fp16")
    if state.scaler and scaler.is_enabled():
        scaler.load_state_dict(state.scaler)
    rows = micro_batch_rows(config, device, world.size)
    as_it_began = (state.resolved.get("device"), state.resolved.get("world_size")) == (device.device.type, world.size)
    if config.train.micro_batch_size == "auto" and as_it_began:  # memory may have run out since
        rows = min(state.resolved.get("micro_batch_size") or rows, config.rows_per_step // world.size)
    state.before, state.resolved = state.resolved, decided_by(device, rows, world.size)
    state.micro_rows = max(1, rows * config.data.sequence_length // source.row_length)
    state.micro_rows = min(state.micro_rows, max(1, source.rows_per_batch // world.size))
    state.forward = lm
    state.non_finite = torch.tensor(float(state.skipped), device=device.device)
    tracker = Tracker(config, state.step, state.seconds, state.wandb_id, world.is_first, owner)
    meter = Meter(config, lm, device, world.size)
    return Run(
        config,
        script,
        owner,
        device,
        world,
        data,
        source,
        held_out,
        objective,
        lm,
        optimizers,
        scaler,
        hooks,
        tracker,
        meter,
        state,
    )


def typed(script: str) -> str:
    """The command of this process, as somebody typed it; it continues the run after a stop."""
    if sys.argv[0] != f"python -m {script}":  # as `exit_on_bad_input` sets it; here a program calls train.pretrain
        return f"python -m {script}"
    launcher = ["python"]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        launcher = ["torchrun", f"--nproc_per_node={os.environ['LOCAL_WORLD_SIZE']}"]
    return shlex.join([*launcher, "-m", script, *sys.argv[1:]])
