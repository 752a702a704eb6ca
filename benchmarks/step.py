"""A training step on random tokens, as it is timed: no text is read, and no run directory made."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from data.packing import document_starts
from model import LanguageModel
from train.budget import micro_batch_rows
from train.config import RunConfig
from train.device import Device
from train.optimizer import build_optimizers
from train.processes import ALONE, World, add_up_gradients

DOCUMENT = 150  # tokens; about as long as a story, where documents are isolated
DIFFERENT = 4  # steps, before their tokens come again: a router of experts sends other tokens elsewhere
Step = Callable[[], object]


def random_batches(run: RunConfig, rows: int, rows_at_once: int, device: torch.device) -> list[dict[str, Tensor]]:
    """The micro-batches of one step, rows (rows_at_once, data.sequence_length)."""
    ids = torch.randint(0, run.model.vocab_size or 0, (rows, run.data.sequence_length))
    tensors = {"input_ids": ids, "labels": ids}
    if run.data.isolate_documents:
        tensors["document_ids"] = (torch.rand(ids.shape) < 1 / DOCUMENT).cumsum(1)
        tensors["document_starts"] = torch.from_numpy(document_starts(tensors["document_ids"].numpy()))
    parts = range(0, rows, rows_at_once)
    return [{name: x[i : i + rows_at_once].to(device) for name, x in tensors.items()} for i in parts]


def our_step(
    run: RunConfig,
    device: Device,
    rows: int,
    compiled: bool = False,
    adamw: bool = False,
    world: World = ALONE,
    other: nn.Module | None = None,
) -> tuple[Step, Any, list[torch.optim.Optimizer]]:
    """A step of this many rows as training takes it, the model, its optimizers.

    adamw: fused AdamW, whatever the config says. world: the processes that take it together, with these rows each.
    other: a model of transformers, which is trained instead.
    """
    torch.manual_seed(run.seed)
    model: Any = (LanguageModel(run.model) if other is None else other).to(device.device).train()
    if other is None:
        model.set_attn_implementation(device.attention)
        model.model.activation_checkpointing = run.train.activation_checkpointing
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)]
    if not adamw:
        optimizers = build_optimizers(model, run.train.optimizer, world, device.dtype)
    rows_at_once = min(rows, micro_batch_rows(run, device, world.size))
    steps = cycle([random_batches(run, rows, rows_at_once, device.device) for _ in range(DIFFERENT)])
    forward = torch.compile(model, dynamic=False) if compiled else model

    def step() -> None:
        batches = next(steps)
        for batch in batches:
            with device.autocast():
                loss = mean_loss(forward(**batch)) / (len(batches) * world.size)
            loss.backward()
        if world.memory is not None:
            add_up_gradients(model, world.memory)
        nn.utils.clip_grad_norm_(model.parameters(), run.train.grad_clip or math.inf)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step, model, optimizers


def mean_loss(output: Any) -> Tensor:
    """Of a batch, from what LanguageModel returns, its sum and count, or a model of transformers."""
    return output[0] / output[1] if isinstance(output, tuple) else output.loss
