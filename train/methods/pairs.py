"""Batches of pairs: in each, the chosen and the rejected answers to as many prompts, with these prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from data.batches import IGNORED, Batch, TrainBatches
from data.packing import Pairs
from data.prepare import PreparedData
from train.config import RunConfig
from train.objective import TextBatches

MULTIPLE = 64  # rows are padded to a multiple of it, so that few shapes occur


class PairBatches(TrainBatches):
    """Batches of `Pairs`, padded at their ends: (B, T) each, T the longest conversation of the batch, rounded up."""

    def collate(self, rows: Sequence[dict[str, np.ndarray]], row_ids: list[int]) -> Batch:
        wide = -(-max(len(array) for pair in rows for array in pair.values()) // MULTIPLE) * MULTIPLE
        tensors = {}
        for name in rows[0]:
            filling = self.tokenizer.pad_id if name.endswith("input_ids") else IGNORED
            padded = [np.pad(pair[name], (0, wide - len(pair[name])), constant_values=filling) for pair in rows]
            tensors[name] = torch.from_numpy(np.stack(padded))
        return Batch(tensors, row_ids)


class PairSource(TextBatches):
    """Pairs of the training part. One takes the place of two rows of data.sequence_length; longer ones are left out."""

    Batches = PairBatches
    joined, name_of_rows = "to a pair", "pair"

    def rows(self, config: RunConfig, data: PreparedData) -> Pairs:
        pairs = Pairs(data.stream("train"), config.data.sequence_length, data.tokenizer.bos_id)
        if pairs.left_out:
            self.notes = (
                f"{pairs.left_out:,} of {pairs.left_out + pairs.per_epoch:,} pairs are left out, because a prompt with "
                f"an answer is longer than data.sequence_length ({config.data.sequence_length}), or an answer has "
                "weight 0: raise it to keep the long ones"
            )
        return pairs
