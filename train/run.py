"""Run: everything that a training run holds, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from data.batches import TrainBatches
from data.packing import Rows
from data.prepare import PreparedData
from eval.hooks import Hook
from model import LanguageModel
from train.config import RunConfig
from train.machine.device import Device
from train.machine.distributed import World
from train.meters import SpikeDetector
from train.saving.checkpoint import TrainerState
from train.tracking import Tracker


@dataclass
class Run:
    """One run, as one of its processes sees it.

    forward: what training calls, the model itself or wrapped and compiled. micro_rows: rows of one forward pass.
    non_finite: steps passed over so far, counted on the device; state.skipped is the same as far as it has been read.
    saved_at: step of the newest checkpoint. started: when the run would have begun if it had never been interrupted.
    unlogged_s: seconds that evaluating and saving took after the last line of metrics.jsonl.
    hooks, switched_off, kept: what runs at evaluations, which of it failed, and what it keeps for itself.
    """

    config: RunConfig
    device: Device
    world: World
    data: PreparedData
    batches: TrainBatches
    held_out: Rows
    lm: LanguageModel
    optimizers: list[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler
    state: TrainerState
    tracker: Tracker
    spikes: SpikeDetector
    forward: nn.Module
    micro_rows: int
    non_finite: Tensor
    script: str = "train.pretrain"
    saved_at: int | None = None
    started: float = 0.0
    unlogged_s: float = 0.0
    hooks: dict[str, Hook] = field(default_factory=dict)
    switched_off: set[str] = field(default_factory=set)
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def gates_on_device(self) -> bool:
        """Whether a bad step is passed over without the CPU looking at it: fused AdamW and Muon can, on CUDA."""
        return self.device.device.type == "cuda" and self.world.parallel != "fsdp2"

    def forget_gradients(self) -> None:
        """Free them: the next backward pass makes new ones."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
