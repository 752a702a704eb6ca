"""What does the loop draw its batches from? Text that was prepared, or whatever a source of your own makes.

Batch k is a function of (seed, k), or of (seed, k, weights) where the model itself makes it. So a source has nothing
to save, and a run that goes on draws the very batches that it would have drawn.
"""

from __future__ import annotations

from collections.abc import Generator

import torch

from configs.loader import InputError
from data.batches import Batch, TrainBatches, make_rows, too_long
from data.prepare import PreparedData
from model import LanguageModel
from train.config import RunConfig
from train.machine.distributed import World

ALONE, CPU = World(), torch.device("cpu")


class BatchSource:
    """Subclass it and write `batch`. rows_per_batch: rows of a step, over all processes; row_length: in tokens.

    notes: what the run says about it before it starts; "" = nothing.
    """

    rows_per_batch: int
    row_length: int
    notes: str = ""

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        """This process's share of batch k, on the CPU. It may ask lm, whose weights have taken k steps by then.

        Draw random numbers from (seed, k) only, with a generator of your own.
        """
        raise NotImplementedError

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        """Batches first … stop - 1, each made when the loop asks for it."""
        for k in range(first, stop):
            yield self.batch(k, lm)

    def epochs(self, steps: int) -> float | None:
        """How often so many steps read everything there is; None where that means nothing."""
        return None


class TextBatches(BatchSource):
    """Rows of prepared text. Batches do not depend on the weights, so a thread makes them ahead of time."""

    def __init__(self, config: RunConfig, data: PreparedData, world: World = ALONE, device: torch.device = CPU):
        """Raises InputError if an epoch does not fill one step, or the processes cannot share a step's rows."""
        rows = make_rows(config.data, data, "train", config.rows_per_step)
        wanted = config.train.tokens_per_step // rows.length
        if rows.per_epoch < wanted:
            raise InputError(
                f"data.source: the training text has {data.manifest['train']['tokens']:,} tokens, which make "
                f"{rows.per_epoch:,} rows, fewer than the {wanted:,} of a step (train.tokens_per_step): "
                "give more text or lower train.tokens_per_step"
            )
        if wanted % world.size:
            raise InputError(
                f"{world.size} processes cannot share the {wanted} joined rows of a step evenly: set data.rows_joined=1"
            )
        restart = config.data.restart_positions or rows.length > config.data.sequence_length
        self.batches = TrainBatches(rows, data.tokenizer, wanted, config.seed, config.data.isolate_documents, restart)
        self.rows_per_batch, self.row_length = wanted, rows.length
        self._share, self._pin = (world.rank, world.size), device.type == "cuda"
        self.notes = too_long(rows, config.data)

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        return self.batches.batch(k, *self._share)

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        return self.batches.prefetch(first, stop, self._pin, *self._share)

    def epochs(self, steps: int) -> float:
        return steps * self.rows_per_batch / self.batches.rows.per_epoch
