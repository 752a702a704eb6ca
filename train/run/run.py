"""Run: everything that a training run holds. What changes while it trains is in run.state."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from configs.command import InputError
from configs.files import checkpoint_directory
from data.config import DataConfig
from data.packing import PreparedData, Rows
from data.tokenizer import Tokenizer
from eval.config import EvalConfig
from eval.hooks import Hooks
from model import LanguageModel
from train.config import RunConfig
from train.machine.budget import micro_batch_rows
from train.machine.device import Device, decided_by, differences
from train.machine.distributed import World
from train.objective import BatchSource, Forward, Objective
from train.run.checkpoint import TrainerState, load_checkpoint, load_source_state, read_state
from train.run.metrics import Meter, Tracker
from train.run.run_directory import CONTENTS, TRAIN_HERE, Start, check_contents, refuse

# The choices of a config among what the last bits depend on; the others are the machine's.
CHOSEN = ("precision", "attention", "compile", "micro_batch_size")


@dataclass
class RunState(TrainerState):
    """The changing part of a run: TrainerState, which checkpoints save, and more that they do not.

    forward: what training calls, `LanguageModel.outputs` or DDP. `resume` sets it.
    """

    before: dict[str, Any] = field(default_factory=dict)  # `resolved` of the checkpoint
    micro_rows: int = 1  # rows of one forward pass
    saved_at: int | None = None  # step of the newest checkpoint
    started: float = 0.0  # when the run would have begun if it had never been interrupted
    progress: float = 0.0  # share of the run that is over, 0 … 1
    is_last: bool = False  # training has ended, and the last evaluation runs
    forward: Forward = None  # type: ignore[assignment]
    # Skipped steps, counted on the device. `skipped` is the number that the CPU has read.
    non_finite: Tensor = field(default_factory=lambda: torch.zeros(()))
    stop_signal: Callable[[], int] = lambda: 0  # the signal that came to this process; 0 = none
    until: int | None = None  # the step with which this part of the run ends (RunConfig.changes)


@dataclass(frozen=True)
class Run:
    """One run in one of its processes. script: the module of its command."""

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
    # Here a hook that is a function keeps what it needs for its next call.
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def gates_on_device(self) -> bool:
        """True if bad steps are skipped without the CPU waiting for the GPU."""
        # Fused AdamW and Muon can skip on CUDA. fp16 reads its loss scale at every step anyway.
        on_cuda = self.device.device.type == "cuda"
        return on_cuda and not self.world.shares_model and not self.scaler.is_enabled()

    @property
    def rows_joined(self) -> int:
        """The number of rows of data.sequence_length tokens in a row of this run."""
        return max(1, self.source.row_length // self.config.data.sequence_length)

    # What hooks read: a Run is their event (EvalEvent in eval/hooks/hook.py).

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def tokens(self) -> int:
        return self.state.tokens

    @property
    def seconds(self) -> float:
        return self.state.seconds

    @property
    def total_steps(self) -> int | None:
        return self.config.max_steps

    @property
    def is_last(self) -> bool:
        return self.state.is_last

    @property
    def loss(self) -> float | None:
        last = self.meter.last
        return last.values["loss"] if last and last.counts.trained else None

    @property
    def tokenizer(self) -> Tokenizer:
        return self.data.tokenizer

    @property
    def data_config(self) -> DataConfig:
        return self.config.data

    @property
    def eval_config(self) -> EvalConfig:
        return self.config.eval

    @property
    def rows_per_batch(self) -> int:
        return self.state.micro_rows * self.rows_joined

    @property
    def directory(self) -> Path:
        return self.config.directory

    @property
    def base(self) -> Path | None:
        # resume=… continues another run; init_from starts a new one from its weights.
        from_another = self.config.resume not in ("auto", "never")
        base = self.config.resume if from_another else self.config.init_from
        return Path(base) if base else None

    @property
    def command(self) -> str:
        return shlex.join(["python", "-m", self.script, str(self.directory / "config.yaml")])

    @property
    def writes(self) -> bool:
        return self.world.rank == 0

    def alone(self) -> Run:
        # With size 1, `sum` and `gather` return at once: no other process is waited for.
        return replace(self, world=replace(self.world, size=1))

    def with_memory(self, memory: dict[str, Any]) -> Run:
        return replace(self, memory=memory)

    def any_process(self, here: bool) -> bool:
        return self.world.sum(int(here)) != [0]

    def autocast(self) -> AbstractContextManager:
        return self.device.autocast()

    def log(self, split: str, values: dict[str, Any]) -> None:
        self.tracker.log(split, self.step, self.tokens, self.seconds, values)

    def say(self, text: str) -> None:
        self.tracker.say(f"step {self.step:>6,}   {text}")


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
    """Return the state to start from: a new one, or a checkpoint's, with weights and moments.

    Raises InputError if the checkpoint does not fit, or the run was trained on another text.
    """
    state = RunState()
    rows = micro_batch_rows(config, device, world.size)
    if start.checkpoint is not None:
        state = RunState(**vars(load_checkpoint(start.checkpoint, lm, optimizers, world)))
        source.restore(load_source_state(start.checkpoint, world))
        if start.checkpoint == start.newest:
            state.saved_at = state.step
        else:
            state.wandb_id = None  # another run continues, under its own name
        check_contents(config, state, data)
        saved = state.resolved
        before = (saved.get("device"), saved.get("world_size"))
        if config.train.micro_batch_size == "auto" and before == (device.device.type, world.size):
            # Keep it: it is smaller than the guess if memory ran out.
            rows = min(saved.get("micro_batch_size") or rows, config.rows_per_step // world.size)
    elif config.forked_from is not None:
        # The first steps are repeated: the text, and what computes, must be those of the run.
        origin = TrainerState()  # if that run has no checkpoint any more
        with suppress(InputError):
            origin = read_state(checkpoint_directory(config.forked_from.run))
        check_contents(config, origin, data)
        state.resolved = origin.resolved
    state.identity = config.identity() | {CONTENTS: data.directory.name}
    state.before = state.resolved
    state.resolved = decided_by(device, rows, world.size)
    if config.forked_from is not None and state.step <= config.forked_from.step:
        # Where the fork begins, a change may have chosen another precision or number of rows.
        ours = state.step < config.forked_from.step
        names = [name for name in state.resolved if ours or name not in CHOSEN]
        changed = differences(state.before, {name: state.resolved[name] for name in names})
        if changed:
            problem = f"{config.forked_from.run} cannot be continued exactly here: {changed}"
            refuse(config, problem, TRAIN_HERE)
    joined_rows = rows * config.data.sequence_length // source.row_length
    state.micro_rows = max(1, min(joined_rows, source.rows_per_batch // world.size))
    state.forward = lm.outputs
    state.non_finite = torch.tensor(float(state.skipped), device=device.device)
    return state
