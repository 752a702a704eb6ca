"""Sources of batches: prepared text, pairs of answers, or rows that a student writes itself."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from configs import IGNORED
from configs.command import InputError
from data.batches import Batch, TrainBatches, make_rows, prefetched, too_long
from data.packing import ConversationRows, Pairs, PreparedData
from eval.tools import write_answers
from model import LanguageModel
from train.config import RunConfig
from train.machine.distributed import ALONE, World
from train.objective import BatchSource

CPU = torch.device("cpu")
MULTIPLE = 64  # Pairs are padded to a multiple of it, so that few shapes occur.


class TextBatches(BatchSource):
    """Rows of prepared text. Batches do not depend on the weights, so a thread makes them ahead of
    time.

    A subclass may have other `rows`, and another way to make a batch of them. Where an epoch does
    not fill a step, the step goes on with the next one: it has the rows that train.tokens_per_step
    asks for.
    """

    Batches = TrainBatches
    name_of_rows = "row"

    def __init__(
        self,
        config: RunConfig,
        data: PreparedData,
        world: World = ALONE,
        device: torch.device = CPU,
    ):
        """Raises InputError if the processes cannot share a step's rows."""
        rows = self.rows(config, data)
        wanted = config.train.tokens_per_step // rows.length
        if wanted % world.size:
            enough = -(-wanted // world.size) * world.size * rows.length
            joined = " or data.rows_joined=1" if isinstance(rows, ConversationRows) else ""
            problem = (
                f"{world.size} processes cannot share the {wanted} {self.name_of_rows}s "
                "of a step evenly"
            )
            raise InputError(f"{problem}: set train.tokens_per_step={enough}{joined}")
        restart = config.data.restart_positions or rows.length > config.data.sequence_length
        packed_as = (config.data.isolate_documents, restart)
        self.batches = self.Batches(
            rows, data.tokenizer, wanted, config.seed, *packed_as, config.data.shuffle
        )
        self.rows_per_batch = wanted
        self.row_length = rows.length
        self._share = (world.rank, world.size)
        self._pin = device.type == "cuda"
        notes = [too_long(rows, config.data, "train"), self.notes]
        if rows.per_epoch < wanted:
            name = (
                f"{rows.per_epoch:,} {self.name_of_rows}{'s' * (rows.per_epoch != 1)} of "
                f"{rows.length:,} tokens"
            )
            problem = (
                f"the training text makes {name}, and a step has {wanted:,}, so it reads "
                "some of them again"
            )
            notes += [f"{problem}: a smaller train.tokens_per_step makes quicker steps"]
        self.notes = "\n".join(filter(None, notes))

    def rows(self, config: RunConfig, data: PreparedData) -> Any:
        """Return the rows of an epoch (data.packing.Rows)."""
        return make_rows(config.data, data, "train", config.rows_per_step)

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        return self.batches.batch(k, *self._share)

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        batches = (self.batch(k, lm) for k in range(first, stop))
        # from page-locked memory a GPU copies while it computes
        return prefetched(batch.pinned() if self._pin else batch for batch in batches)

    def epochs(self, steps: int) -> float:
        return steps * self.rows_per_batch / self.batches.rows.per_epoch


class PairBatches(TrainBatches):
    """Batches of `Pairs`, padded at their ends: (B, T) each, T the longest conversation of the
    batch, rounded up.
    """

    def collate(self, rows: Sequence[dict[str, np.ndarray]], row_ids: list[int]) -> Batch:
        wide = (
            -(-max(len(array) for pair in rows for array in pair.values()) // MULTIPLE) * MULTIPLE
        )
        wide = min(
            wide, self.rows.length // 2
        )  # a pair has two rows of data.sequence_length, and the model no more
        tensors = {}
        for name in rows[0]:
            filling = self.tokenizer.pad_id if name.endswith("input_ids") else IGNORED
            padded = [
                np.pad(pair[name], (0, wide - len(pair[name])), constant_values=filling)
                for pair in rows
            ]
            tensors[name] = torch.from_numpy(np.stack(padded))
        return Batch(tensors, row_ids)


class PairSource(TextBatches):
    """Pairs of the training part.

    One takes the place of two rows of data.sequence_length; longer ones are left out.
    """

    Batches = PairBatches
    joined = "to a pair"
    name_of_rows = "pair"

    def rows(self, config: RunConfig, data: PreparedData) -> Pairs:
        pairs = Pairs(data.stream("train"), config.data.sequence_length, data.tokenizer.bos_id)
        if pairs.left_out:
            number = f"{pairs.left_out:,} of {pairs.left_out + pairs.per_epoch:,} pairs"
            self.notes = (
                f"{number} are left out: longer than data.sequence_length, or with an "
                "answer of weight 0"
            )
        return pairs


class OwnText(TextBatches):
    """On-policy batches: rows of the text, or what the student writes where such a row has its
    first trained token.

    Of stories that is a whole document; of conversations, the answer to a question. Its rows are
    right-padded, and have `is_own` (B,) besides input_ids and labels. Which steps are its own comes
    from (seed, k), and the random numbers of what it writes from (seed, k, row); the text comes
    from the weights. So nothing is saved, and a stopped run resumes exactly.
    """

    def __init__(
        self,
        config: RunConfig,
        data: PreparedData,
        world: World = ALONE,
        device: torch.device = CPU,
    ):
        super().__init__(config, data, world, device)
        assert config.distill is not None
        self.settings = config.distill
        self.seed = config.seed
        self.tokenizer = data.tokenizer
        self.length = config.data.sequence_length

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        return BatchSource.upcoming(
            self, first, stop, lm
        )  # none ahead of time: the next weights write it

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        rows = super().batch(k, lm)
        if Random(f"whose text {self.seed} {k}").random() >= self.settings.on_policy:
            return rows
        prompts = [
            self.prompt(ids, labels)
            for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True)
        ]
        rngs = [Random(f"own text {self.seed} {k} {row}") for row in rows.row_ids]
        longest = self.settings.max_new_tokens
        answers = write_answers(
            lm, self.tokenizer, prompts, max_new_tokens=longest, temperature=1.0, rngs=rngs
        )
        ids = []
        labels = []
        for prompt, answer in zip(prompts, answers, strict=True):
            new = answer.ids[: self.length - len(prompt)]  # the teacher may read no more
            ids.append(torch.tensor(prompt + new))
            labels.append(torch.tensor([IGNORED] * len(prompt) + new))
        tensors = {
            "input_ids": pad_sequence(ids, True, self.tokenizer.pad_id),
            "labels": pad_sequence(labels, True, IGNORED),
            "is_own": torch.ones(len(prompts), dtype=torch.bool),
        }
        return Batch(tensors, rows.row_ids)

    def prompt(self, ids: Tensor, labels: Tensor) -> list[int]:
        """Cut a row (T,): from its first document's begin to the first token that is trained on."""
        starts = (ids == self.tokenizer.bos_id).nonzero()[:, 0].tolist()
        start = starts[0] if starts else 0
        trained = (labels[start + 1 :] != IGNORED).nonzero()[:, 0].tolist()
        return ids[start : start + 1 + (trained[0] if trained else 0)].tolist()
