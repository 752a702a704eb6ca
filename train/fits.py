"""Does a run fit this machine? Asked before anything is built, with the figures of `python -m train.budget`.

A run is refused for what can never fit: against all memory that this process may ever have (not what is free now), and
all free disk (not a share of it). What is measured leaves out what PyTorch needs itself, so no margin is taken off.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from configs.command import InputError
from data.config import StoryworldSource
from train.config import RunConfig
from train.machine.hardware import all_memory

if TYPE_CHECKING:
    from train.machine.device import Device

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
    from train.budget import size_in_words
    from train.run import micro_batch_rows
    from train.step_memory import step_memory

    model = config.model.model_copy(update={"vocab_size": config.model.vocab_size or SMALL_VOCABULARY})
    run, (total, whose) = config.model_copy(update={"model": model}), found
    if kind == "cpu":
        rows, total = micro_batch_rows(run, device, processes), total / processes
    else:  # `auto` halves what does not fit; under fsdp2 each process holds a share
        rows = 1 if config.train.micro_batch_size == "auto" else micro_batch_rows(run, device, processes)
        total *= processes if config.train.parallel == "fsdp2" else 1
    if rough_bytes(run, rows) < total:
        return
    try:
        needed = step_memory(run, rows, half=device.dtype.itemsize == 2, device=kind)
    except (RuntimeError, OverflowError):  # more bytes than 64 bits can count
        raise InputError(f"model: a training step needs more memory than any machine has: {REMEDY}") from None
    if needed.fullest > total:
        parts = f"weights {size_in_words(needed.weights)}, gradients {size_in_words(needed.gradients)}, optimizer "
        parts += (
            f"{size_in_words(needed.optimizer_state)}, kept for the backward pass {size_in_words(needed.activations)}"
        )
        raise InputError(
            f"model: a training step of {rows:,} rows x {config.data.sequence_length:,} tokens at a time needs "
            f"{size_in_words(needed.fullest)} ({parts}), and the memory is {size_in_words(total)} ({whose}): {REMEDY}"
        )


def rough_bytes(run: RunConfig, rows: int) -> float:
    """More than a step needs, in a microsecond: a small run is not measured."""
    model, tokens = run.model, rows * run.data.sequence_length
    inner, heads = model.intermediate_size or 0, model.num_attention_heads * max(model.head_size, model.value_size)
    experts, expert = model.num_experts or 0, model.moe_intermediate_size or 0
    inner = max(inner, min(experts, model.num_experts_per_tok) * expert)  # of what a token meets
    latents = (model.kv_lora_rank or 0) + (model.q_lora_rank or 0)
    wide = model.hidden_size + heads + inner + latents
    weights = model.num_hidden_layers * (
        model.hidden_size * (4 * heads + 3 * max(inner, experts * expert)) + latents * (model.hidden_size + 2 * heads)
    ) + 2 * ((model.vocab_size or 0) * model.hidden_size)
    activations = tokens * (
        model.num_hidden_layers * (20 * wide + 4 * model.num_attention_heads * run.data.sequence_length)
    )
    return 4 * (7 * weights + activations + 4 * tokens * (model.vocab_size or 0))


REMEDY = (
    "lower model.hidden_size, model.num_hidden_layers, data.sequence_length or train.micro_batch_size "
    "(python -m train.budget shows each part)"
)


def check_disk(config: RunConfig) -> None:
    """Refuse a corpus of the built-in world that does not fit on the disk. Raises InputError with the figures."""
    source = config.data.source
    if not isinstance(source, StoryworldSource):
        return
    from train.budget import size_in_words

    there = next(folder for folder in Path(config.output_dir, "x").absolute().parents if folder.is_dir())
    free, needed = shutil.disk_usage(there).free, STORY_BYTES * (source.documents + source.validation_documents)
    if needed > free:
        raise InputError(
            f"data.source.documents ({source.documents:,}): their tokens need {size_in_words(needed)} or more, and the "
            f"disk of {there} has {size_in_words(free)} free: lower it, or give another output_dir"
        )
