"""Does a run fit this machine? Asked before anything is built, with the figures of `python -m train.budget`.

A run is refused for what can never fit: against all memory that this process may ever have (not what is free now), and
all free disk (not a share of it). The figures are the least that a step needs, so no margin is taken off.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from configs.command import InputError
from data.config import StoryworldSource
from model import LanguageModel
from model.loss import CHUNK, CHUNK_ELSEWHERE
from train.config import RunConfig
from train.machine.hardware import all_memory, device_memory
from train.optimizer import build_optimizers

if TYPE_CHECKING:
    from train.machine.device import Device

USABLE_SHARE = 0.6  # of the memory: the formula counts the least that a step needs, and kernels need room as well
AUTO_MICRO_TOKENS = {"cpu": 8192, "cuda": 65536, "mps": 16384}
SMALL_VOCABULARY = 64
STORY_BYTES = 20  # of a story's tokens on disk; the shortest take 40


def check_memory(config: RunConfig, device: Device, processes: int) -> None:
    """Refuse a model whose training step does not fit. Raises InputError with the figures.

    Before the vocabulary is known, it counts as small. processes: on a CPU they share the memory, and each holds all.
    """
    kind = device.device.type
    found = all_memory(kind)
    if found is None:
        return
    model = config.model.model_copy(update={"vocab_size": config.model.vocab_size or SMALL_VOCABULARY})
    run, (total, whose) = config.model_copy(update={"model": model}), found
    if kind == "cpu":
        rows, total = micro_batch_rows(run, device, processes), total / processes
    else:  # `auto` halves what does not fit; under fsdp2 each process holds a share
        rows = 1 if config.train.micro_batch_size == "auto" else micro_batch_rows(run, device, processes)
        total *= processes if config.train.parallel == "fsdp2" else 1
    try:
        needed = step_memory(run, rows, half=device.dtype.itemsize == 2, device=kind)
    except (RuntimeError, OverflowError):  # more bytes than 64 bits can count
        raise InputError(f"model: a training step needs more memory than any machine has: {REMEDY}") from None
    if needed.total > total:
        parts = f"weights {size_in_words(needed.weights)}, gradients {size_in_words(needed.gradients)}, optimizer "
        parts += (
            f"{size_in_words(needed.optimizer_state)}, kept for the backward pass {size_in_words(needed.activations)}"
        )
        raise InputError(
            f"model: a training step of {rows:,} rows x {config.data.sequence_length:,} tokens at a time needs "
            f"{size_in_words(needed.total)} ({parts}), and the memory is {size_in_words(total)} ({whose}): {REMEDY}"
        )


def micro_batch_rows(config: RunConfig, device: Device, world_size: int = 1) -> int:
    """Rows of data.sequence_length in one forward pass of one process.

    auto: the largest divisor of its rows of a step within a fixed number of tokens and, on a GPU, what fits.
    """
    rows, wanted = config.rows_per_step // world_size, config.train.micro_batch_size
    if isinstance(wanted, int):
        return min(wanted, rows)
    kind = device.device.type
    limit = max(1, AUTO_MICRO_TOKENS[kind] // config.data.sequence_length)
    memory = device_memory(kind) if kind == "cuda" and config.model.vocab_size else None
    if memory is not None:
        limit = min(limit, max(1, largest_micro_batch(config, memory[0], half=device.dtype.itemsize == 2, device=kind)))
    return largest_divisor(rows, limit)


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is `most` or less; 0 if there is none."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return max((n for n in (*small, *(number // n for n in small)) if n <= most), default=0)


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a training step holds at its fullest moment, when the backward pass begins.

    activations: what the layers keep for the backward pass. logits: of one chunk of the loss, with their gradient.
    """

    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer_state + self.activations + self.logits


def step_memory(run: RunConfig, rows: int, *, half: bool, device: str) -> StepMemory:
    """The least that a step of micro-batches of `rows` rows needs. run.model has a vocabulary.

    Weights, gradients and optimizer state are exact. Of the activations it counts what must be kept: without
    torch.compile PyTorch keeps up to half as much again, mostly copies in another number format. half: 16-bit autocast
    over float32 weights, else float32.
    """
    model, tokens = run.model, rows * run.data.sequence_length
    with torch.device("meta"):  # shapes without numbers
        lm = LanguageModel(model)
    if run.lora is not None:
        from model.lora import add_adapters

        add_adapters(lm, run.lora)
    state = 0
    for optimizer in build_optimizers(lm, run.train.optimizer):
        moments = 2 if isinstance(optimizer, torch.optim.AdamW) else 1  # Muon has its momentum alone
        state += moments * sum(x.nbytes for group in optimizer.param_groups for x in group["params"])
    width, heads, number = model.hidden_size, model.num_attention_heads, 2 if half else 4  # bytes of a number
    key_heads = heads if model.attention == "mla" else model.kv_heads  # a latent is unfolded for every head
    queries_and_keys, values = (heads + key_heads) * model.head_size, (heads + key_heads) * model.value_size
    layers = []
    for has_experts in model.has_experts:
        inner = model.intermediate_size or 0
        if has_experts:
            inner = model.num_experts_per_tok * (model.moe_intermediate_size or 0)
        kept = 2 * (4 + number) * width  # the float32 stream before each norm, and what the norm makes of it
        kept += (4 + number) * queries_and_keys + number * values  # before and after RoPE; values and output
        kept += (4 if model.gated_mlp else 2) * number * inner
        if model.attn_implementation == "eager":  # which keeps every weight
            kept += (4 + number) * heads * run.data.sequence_length
        layers.append(kept)
    a_token = sum(layers)
    if run.train.activation_checkpointing:  # the input of every layer, and one layer at a time
        a_token = 4 * width * len(layers) + max(layers)
    chunk = min(tokens, CHUNK.get(device, CHUNK_ELSEWHERE))
    return StepMemory(
        weights=sum(x.nbytes for x in lm.parameters()),
        gradients=sum(x.nbytes for x in lm.parameters() if x.requires_grad),
        optimizer_state=state,
        activations=tokens * (a_token + 4 * width),
        logits=chunk * (model.vocab_size or 0) * (4 + number),
    )


def largest_micro_batch(run: RunConfig, memory: float, *, half: bool, device: str) -> int:
    """The most rows whose micro-batch takes USABLE_SHARE of `memory` bytes; 0 if not even one does."""
    most = step_memory(run, run.rows_per_step, half=half, device=device)
    a_row, lasting = most.activations / run.rows_per_step, most.total - most.activations
    return max(0, int((USABLE_SHARE * memory - lasting) / a_row))


def size_in_words(number: float) -> str:
    """Bytes in decimal units: 1 kB = 1000 B."""
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next((f"{number / size:,.2f} {unit}" for unit, size in units if number >= size), f"{number:,.0f} B")


REMEDY = (
    "lower model.hidden_size, model.num_hidden_layers, data.sequence_length or train.micro_batch_size "
    "(python -m train.budget shows each part)"
)


def check_disk(config: RunConfig) -> None:
    """Refuse a corpus of the built-in world that does not fit on the disk. Raises InputError with the figures."""
    source = config.data.source
    if not isinstance(source, StoryworldSource):
        return
    there = next(folder for folder in Path(config.output_dir, "x").absolute().parents if folder.is_dir())
    free, needed = shutil.disk_usage(there).free, STORY_BYTES * (source.documents + source.validation_documents)
    if needed > free:
        raise InputError(
            f"data.source.documents ({source.documents:,}): their tokens need {size_in_words(needed)} or more, and the "
            f"disk of {there} has {size_in_words(free)} free: lower it, or give another output_dir"
        )
