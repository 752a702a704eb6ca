"""Whole training steps on random tokens of a config's shape: no text is read, no run directory is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from data.packing import document_starts
from model import LanguageModel
from train.config import RunConfig
from train.fits import micro_batch_rows
from train.machine.device import Device
from train.machine.distributed import ALONE, World, add_up_gradients
from train.optimizer import build_optimizers

DOCUMENT = 150  # tokens; about as long as a story, where documents are isolated
DIFFERENT = 4  # steps, before their tokens come again
Step = Callable[[], object]
Ours = tuple[Step, LanguageModel, list[torch.optim.Optimizer]]


@dataclass(frozen=True)
class Shape:
    """Random tokens of a config's shape, for one process. rows: of a step; at_once: of a forward pass."""

    rows: int
    at_once: int
    length: int
    vocabulary: int
    documents: bool

    def batches(self, device: torch.device, seed: int = 0) -> list[dict[str, Tensor | None]]:
        """The micro-batches of a step; other tokens for another seed."""
        torch.manual_seed(seed)
        ids = torch.randint(0, self.vocabulary, (self.rows, self.length), device=device)
        begins = torch.rand(self.rows, self.length, device=device) < 1 / DOCUMENT
        parts: list[dict[str, Tensor | None]] = []
        for first in range(0, self.rows, self.at_once):
            part = slice(first, first + self.at_once)
            parts.append({"input_ids": ids[part], "labels": ids[part], **_documents(begins[part], self.documents)})
        return parts


class NewTokens:
    """The micro-batches of a step, of other tokens than the step before: a router sends them elsewhere, and groups of
    other sizes can take longer (model.experts). They are made once, because a GPU waits while documents are found."""

    def __init__(self, shape: Shape, device: torch.device):
        self.steps = cycle([shape.batches(device, seed) for seed in range(DIFFERENT)])
        self.parts = shape.rows // shape.at_once

    def __len__(self) -> int:
        return self.parts

    def __iter__(self) -> Iterator[dict[str, Tensor | None]]:
        return iter(next(self.steps))


def _documents(begins: Tensor, isolated: bool) -> dict[str, Tensor | None]:
    """As batches of text have them (data.batches)."""
    ids = begins.cumsum(1)
    starts = torch.from_numpy(document_starts(ids.cpu().numpy())).to(begins.device)
    return {"document_ids": ids, "document_starts": starts} if isolated else {"document_ids": None}


def make_step(
    model: nn.Module,
    loss_of: Callable[..., Tensor],
    optimizers: list[torch.optim.Optimizer],
    batches: list[dict[str, Tensor | None]] | NewTokens,
    autocast: Callable[[], AbstractContextManager],
    grad_clip: float,
    world: World = ALONE,
) -> Step:
    """Forward and backward of every micro-batch, clipping, and the optimizers' step. loss_of returns a mean.

    world: the processes that take the step together, each with its batches; they add up gradients as a run does.
    """

    def step() -> None:
        for batch in batches:
            with autocast():
                loss = loss_of(**batch) / (len(batches) * world.size)
            loss.backward()
        if world.memory is not None:
            add_up_gradients(model, world.memory)
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip or float("inf"))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def our_step(
    run: RunConfig, device: Device, shape: Shape, compiled: bool, adamw: bool = False, world: World = ALONE
) -> Ours:
    """A step as training takes it, the model, its optimizers. adamw: fused AdamW, whatever the config says."""
    torch.manual_seed(run.seed)
    lm = LanguageModel(run.model).to(device.device).train()
    lm.set_attn_implementation(device.attention)
    forward = torch.compile(lm, dynamic=False) if compiled else lm
    optimizers = [fused_adamw(lm)] if adamw else build_optimizers(lm, run.train.optimizer, world, device.dtype)

    batches = NewTokens(shape, device.device)
    step = make_step(lm, our_loss(forward), optimizers, batches, device.autocast, run.train.grad_clip, world)
    return step, lm, optimizers


def our_loss(forward: Callable[..., Any]) -> Callable[..., Tensor]:
    """Mean loss of a batch as LanguageModel gives it."""

    def loss(**batch: Tensor | None) -> Tensor:
        loss_sum, count = forward(**batch)
        return loss_sum / count

    return loss


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW as one kernel for all parameters alike."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def shape_of(run: RunConfig, device: Device, documents: bool, processes: int = 1) -> Shape:
    """One process's share of a step of the config, in micro-batches as training takes them."""
    assert run.model.vocab_size is not None
    rows, at_once = run.rows_per_step // processes, micro_batch_rows(run, device, processes)
    return Shape(rows, at_once, run.data.sequence_length, run.model.vocab_size, documents)
