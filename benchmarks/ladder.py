"""What is each speed-up worth? A beginner's loop, then one improvement at a time, each trained for equally long.

A rung keeps everything from the rungs below. Each one starts from the same seed and trains on the config's data for the
same number of seconds, after a first step (with compiling) that does not count. The learning rate is constant. All are
validated on the same held-out rows, so the losses say what the speed is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.packing import OneDocumentRows
from benchmarks.timing import Clock, peak_bytes, synchronize
from configs.command import InputError
from configs.text import table
from data.batches import Batch, TrainBatches, make_rows, validation_batches
from data.packing import IGNORED
from data.prepare import PreparedData, prepare
from eval.language_modeling import mean_loss
from model import LanguageModel
from train.budget import micro_batch_rows
from train.config import RunConfig
from train.device import Device, resolve_device
from train.optimizer import build_optimizers
from train.pretrain import with_tokenizer

ADAMW_LR = 2e-3
VALIDATION_TOKENS = 32768


@dataclass(frozen=True)
class Rung:
    """What is switched on. packed: documents fill the rows. padded: the vocabulary is a multiple of 64."""

    name: str
    precision: str = "fp32"
    compiled: bool = False
    attention: str = "eager"
    optimizer: Literal["plain", "fused", "muon"] = "plain"
    packed: bool = False
    padded: bool = False
    chunked: bool = False


@dataclass(frozen=True)
class Climbed:
    """What a rung reached. tokens: without padding. seconds: of the steps that count."""

    tokens: int
    seconds: float
    steps: int
    first_s: float
    peak_mb: float
    loss: float


def rungs(device: Device, skip: list[str]) -> list[Rung]:
    """From the bottom up. Raises InputError for an unknown name in `skip`."""
    on_cuda = device.device.type == "cuda"
    changes: dict[str, dict[str, Any]] = {
        **({"tf32": {"precision": "tf32"}} if on_cuda else {}),
        "bf16": {"precision": "bf16"},
        "compile": {"compiled": True},
        "sdpa": {"attention": "sdpa"},
        "fused": {"optimizer": "fused"},
        "packing": {"packed": True},
        **({"auto": {"attention": device.attention}} if device.attention not in ("sdpa", "eager") else {}),
        "vocabulary": {"padded": True},
        "chunks": {"chunked": True},
        "muon": {"optimizer": "muon"},
    }
    if unknown := [name for name in skip if name not in changes]:
        raise InputError(f"--skip {unknown[0]}: unknown rung: use {', '.join(changes)}")
    words = {
        "sdpa": "attention sdpa",
        "fused": "fused AdamW",
        "auto": f"attention {device.attention}, as auto",
        "vocabulary": "vocabulary a multiple of 64",
        "chunks": "loss in chunks",
    }
    ladder = [Rung("fp32, eager attention, one document a row, AdamW in a loop, all logits")]
    for name, change in changes.items():
        if name not in skip:
            ladder.append(replace(ladder[-1], name=f"+ {words.get(name, name)}", **change))
    return ladder


def climb(config: RunConfig, seconds: float, skip: list[str], clock: Clock) -> None:
    """Print the ladder: real tokens a second, memory, validation loss after the same time, time of the first step."""
    data = prepare(config.data, Path(config.output_dir))
    config, device = with_tokenizer(config, data.tokenizer), resolve_device(config)
    lines: list[list[str]] = []
    bottom: Climbed | None = None
    print(
        f"{config.train.tokens_per_step:,} positions a step, rows of {config.data.sequence_length}, {seconds:g} s a "
        f"rung, AdamW {ADAMW_LR:g}, validated on {VALIDATION_TOKENS:,} tokens"
    )
    for rung in rungs(device, skip):
        found = train_rung(rung, config, device, data, seconds, clock)
        bottom = bottom or found
        speed, from_bottom = found.tokens / found.seconds, bottom.tokens / bottom.seconds
        figures = [f"{speed:,.0f}", f"{speed / from_bottom:.2f}", f"{found.peak_mb:,.0f}", f"{found.loss:.3f}"]
        lines.append([rung.name, *figures, f"{found.steps:,}", f"{found.first_s:.1f}"])
        print(f"  {rung.name}: {speed:,.0f} tokens/s, loss {found.loss:.3f}", flush=True)
    header = ["", "tokens/s", "ratio", "peak MB", f"loss after {seconds:g} s", "steps", "first step, s"]
    print("\n" + table(header, lines))


def train_rung(
    rung: Rung, config: RunConfig, device: Device, data: PreparedData, seconds: float, clock: Clock
) -> Climbed:
    """Train a new model for this many seconds, then validate it."""
    torch.compiler.reset()
    torch.backends.cuda.matmul.allow_tf32 = rung.precision != "fp32"
    device = replace(device, precision=rung.precision)
    lm = rung_model(rung, config, device)
    step = rung_step(rung, config, device, lm)
    upcoming = rung_batches(rung, config, data, device)
    before = clock()
    step(next(upcoming))
    synchronize(device.device)
    began = clock()
    first_s, tokens, steps = began - before, 0, 0
    while clock() - began < seconds:
        batch = next(upcoming)
        step(batch)
        tokens, steps = tokens + int((batch["input_ids"] != data.tokenizer.pad_id).sum()), steps + 1
        synchronize(device.device)
    spent, last = clock() - began, next(upcoming)
    peak = peak_bytes(lambda: step(last), device.device) / 1e6
    return Climbed(tokens, spent, steps, first_s, peak, validation_loss(lm, config, device, data))


def rung_model(rung: Rung, config: RunConfig, device: Device) -> LanguageModel:
    """The model of a rung. An unpadded vocabulary is odd: one id more than the tokenizer has, which never occurs."""
    torch.manual_seed(config.seed)
    assert config.model.vocab_size is not None
    size = config.model.vocab_size + (0 if rung.padded else 1)
    lm = LanguageModel(config.model.model_copy(update={"vocab_size": size})).to(device.device)
    lm.set_attn_implementation(rung.attention)
    return lm.train()


def rung_step(rung: Rung, config: RunConfig, device: Device, lm: LanguageModel) -> Callable[[Batch], None]:
    """A function that takes one optimizer step on a batch, as this rung does it."""
    loss_of: Any = lm if rung.chunked else WithAllLogits(lm)
    forward = torch.compile(loss_of, dynamic=False) if rung.compiled else loss_of
    rows, optimizers = micro_batch_rows(config, device), rung_optimizers(rung, config, lm, device)

    def step(batch: Batch) -> None:
        batch = batch.to(device.device)
        trained = (batch["labels"][:, 1:] != IGNORED).sum().clamp(min=1)
        for part in batch.split(rows):
            with device.autocast():
                loss_sum, _ = forward(**part.tensors)
            (loss_sum / trained).backward()
        nn.utils.clip_grad_norm_(lm.parameters(), config.train.grad_clip or float("inf"))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


class WithAllLogits(nn.Module):
    """The loss as it is mostly written: the logits of all positions, then F.cross_entropy."""

    def __init__(self, lm: LanguageModel):
        super().__init__()
        self.lm = lm

    def forward(self, labels: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:
        logits, wanted = self.lm(**inputs)[:, :-1], labels[:, 1:]
        loss_sum = F.cross_entropy(
            logits.float().flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return loss_sum, (wanted != IGNORED).sum()


def rung_optimizers(rung: Rung, config: RunConfig, lm: LanguageModel, device: Device) -> list[torch.optim.Optimizer]:
    """AdamW in a loop over the parameters or as one kernel, or the config's Muon."""
    if rung.optimizer == "muon":
        with_muon = config.train.optimizer.model_copy(update={"name": "muon"})
        return build_optimizers(lm, with_muon, precision=device.dtype)
    how = {"fused": True} if rung.optimizer == "fused" else {"foreach": False, "fused": False}
    return [torch.optim.AdamW(lm.parameters(), lr=ADAMW_LR, betas=(0.9, 0.95), **how)]


def rung_batches(rung: Rung, config: RunConfig, data: PreparedData, device: Device) -> Iterator[Batch]:
    """The batches of a step each: one document a row, or rows that documents fill."""
    one = make_rows(config.data.model_copy(update={"rows_joined": 1}), data, "train", config.rows_per_step)
    rows = one if rung.packed else OneDocumentRows(one, data)
    isolated = rung.packed and config.data.isolate_documents
    batches = TrainBatches(rows, data.tokenizer, config.rows_per_step, config.seed, isolated)
    return batches.prefetch(0, 10_000_000, pin=device.device.type == "cuda")


def validation_loss(lm: LanguageModel, config: RunConfig, device: Device, data: PreparedData) -> float:
    """Nats a token on the same held-out rows for every rung."""
    lm.set_attn_implementation("sdpa")
    held_out = make_rows(config.data.model_copy(update={"rows_joined": 1}), data, "validation", config.rows_per_step)
    documents, most = config.data.isolate_documents, VALIDATION_TOKENS
    batches = validation_batches(held_out, data.tokenizer, 8, documents, max_tokens=most)
    return mean_loss(lm, batches, device.autocast)
