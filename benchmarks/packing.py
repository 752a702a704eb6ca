"""What does packing save? Real tokens a second in training: rows filled with documents, or one document a row.

Each kind of rows trains the same model; a step is forward, backward and optimizer. Real tokens are tokens without
padding. Time is the median of several rounds in which the kinds take turns, with the same number of rows a step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from benchmarks.timing import alternate
from configs.text import table
from data.batches import Batch, TrainBatches, make_rows
from data.packing import IGNORED, Rows, conversation_starts, labels
from data.prepare import PreparedData, prepare
from model import LanguageModel
from train.config import RunConfig
from train.device import Device, resolve_device
from train.optimizer import build_optimizers
from train.pretrain import with_tokenizer

ALONE = "one document a row"


class OneDocumentRows:
    """Each document alone in a row, cut at the end of the row: what packing is compared with."""

    def __init__(self, filled: Rows, data: PreparedData):
        self.stream, self.length, self.tokenizer = data.stream("train"), filled.length, data.tokenizer
        self._starts = conversation_starts(self.stream, self.tokenizer.bos_id)
        self._sizes = np.diff(self._starts, append=len(self.stream)).clip(max=self.length)
        self.per_epoch, self.offsets = len(self._starts), 1

    def row(self, index: int, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
        size, pad_id = int(self._sizes[index]), self.tokenizer.pad_id
        ids = self.stream.read(int(self._starts[index]), size)
        ids = np.pad(ids, (0, self.length - size), constant_values=pad_id)
        return ids, labels(ids, self.tokenizer.bos_id, pad_id)

    def real_share(self) -> float:
        """Of all positions of an epoch."""
        return float(self._sizes.mean()) / self.length


def compare_packing(config: RunConfig, rounds: int) -> None:
    """Print a table: share of real tokens in an epoch, tokens/s, real tokens/s, and the ratio to one a row."""
    data = prepare(config.data, Path(config.output_dir))
    config, device = with_tokenizer(config, data.tokenizer), resolve_device(config)
    steps, shares = {}, {}
    for name, rows, isolated in kinds_of_rows(config, data):
        steps[name] = _steps(config, device, rows, data, isolated)
        shares[name] = rows.real_share() if isinstance(rows, OneDocumentRows) else _real_share(rows, data)
    seconds = alternate(steps, rounds, device.device, patience_s=300.0)
    positions = config.train.tokens_per_step
    real = {name: positions * shares[name] / seconds[name] for name in steps}
    lines = []
    for name in steps:
        figures = [f"{shares[name]:.1%}", f"{1 - shares[name]:.1%}", f"{positions / seconds[name]:,.0f}"]
        lines.append([name, *figures, f"{real[name]:,.0f}", f"{real[name] / real[ALONE]:.2f}"])
    print(
        f"{positions:,} tokens a step, rows of {config.data.sequence_length}, {config.data.records}, {device.precision}"
    )
    print(table(["", "real tokens", "padding", "positions/s", "real tokens/s", "ratio"], lines))


def kinds_of_rows(config: RunConfig, data: PreparedData) -> list[tuple[str, Rows, bool]]:
    """What is compared: (name, rows, whether documents are isolated)."""

    def made(joined: int | Literal["auto"]) -> Rows:
        changes = {"rows_joined": joined, "isolate_documents": True}
        return make_rows(config.data.model_copy(update=changes), data, "train", config.rows_per_step)

    one, auto = made(1), made("auto")
    alone: list[tuple[str, Rows, bool]] = [(ALONE, OneDocumentRows(one, data), False)]
    if config.data.records == "text":
        return [*alone, ("filled rows", one, False), ("filled rows, documents isolated", one, True)]
    joined = auto.length // one.length
    packed: list[tuple[str, Rows, bool]] = [("packed whole, isolated", one, True)]
    return alone + packed + ([(f"the same, {joined} rows joined into one", auto, True)] if joined > 1 else [])


def _real_share(rows: Rows, data: PreparedData) -> float:
    """Of a whole epoch of rows, counted."""
    real = [np.count_nonzero(rows.row(i)[0] != data.tokenizer.pad_id) for i in range(rows.per_epoch)]
    return float(np.mean(real)) / rows.length


def _steps(config: RunConfig, device: Device, rows: Rows, data: PreparedData, isolated: bool) -> Callable[[], None]:
    """A function that takes the next optimizer step of a model of its own."""
    count, is_joined = config.train.tokens_per_step // rows.length, rows.length > config.data.sequence_length
    batches = TrainBatches(rows, data.tokenizer, count, config.seed, isolated, is_joined)
    torch.manual_seed(config.seed)
    lm = LanguageModel(config.model).to(device.device)
    lm.set_attn_implementation(device.attention)
    optimizers = build_optimizers(lm, config.train.optimizer, precision=device.dtype)
    upcoming = batches.prefetch(0, 1_000_000, pin=device.device.type == "cuda")

    def step() -> None:
        batch: Batch = next(upcoming).to(device.device)
        with device.autocast():
            loss_sum, _ = lm(**batch.tensors)
        (loss_sum / (batch["labels"][:, 1:] != IGNORED).sum().clamp(min=1)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step
