"""Sources of batches: prepared text, pairs of answers, or rows that a student writes itself."""

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
# Pairs are padded to a multiple of it. Each new shape may compile kernels again.
MULTIPLE = 64


class TextBatches(BatchSource):
    """Rows of prepared text. A subclass may have other `rows`, and make other batches of them.

    If an epoch ends within a step, the step goes on with the next epoch.
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
        """Raise InputError if the processes cannot share the rows of a step."""
        rows = self.rows(config, data)
        number = config.train.tokens_per_step // rows.length
        if number % world.size:
            enough = -(-number // world.size) * world.size * rows.length  # rounded up
            joined = " or data.rows_joined=1" if isinstance(rows, ConversationRows) else ""
            raise InputError(
                f"{world.size} processes cannot share the {number} {self.name_of_rows}s of a step "
                f"evenly: set train.tokens_per_step={enough}{joined}"
            )
        # A joined row holds several conversations, so positions begin anew in it.
        restart = config.data.restart_positions or rows.length > config.data.sequence_length
        packed_as = (config.data.isolate_documents, restart)
        self.batches = self.Batches(
            rows, data.tokenizer, number, config.seed, *packed_as, config.data.shuffle
        )
        self.config = config
        self.tokenizer = data.tokenizer
        self.rows_per_batch = number
        self.row_length = rows.length
        self._share = (world.rank, world.size)
        self._pin = device.type == "cuda"
        notes = [too_long(rows, config.data, "train"), self.notes]
        if rows.per_epoch < number:
            name = self.name_of_rows + "s" * (rows.per_epoch != 1)
            notes.append(
                f"the training text makes {rows.per_epoch:,} {name} of {rows.length:,} tokens, and "
                f"a step has {number:,}, so it reads some of them again: a smaller "
                "train.tokens_per_step makes quicker steps"
            )
        self.notes = "\n".join(filter(None, notes))

    def rows(self, config: RunConfig, data: PreparedData) -> Any:
        """Return the rows of an epoch (data.packing.Rows)."""
        return make_rows(config.data, data, "train", config.rows_per_step)

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        return self.batches.batch(k, *self._share)

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        # Batches do not depend on the weights, so a thread makes them ahead of time. From
        # page-locked memory a GPU copies while it computes.
        batches = (self.batch(k, lm) for k in range(first, stop))
        return prefetched(batch.pinned() if self._pin else batch for batch in batches)

    def epochs(self, steps: int) -> float:
        return steps * self.rows_per_batch / self.batches.rows.per_epoch


class PairBatches(TrainBatches):
    """Batches of `Pairs`: chosen and rejected answers as tensors (B, T), padded at their ends."""

    def collate(self, rows: Sequence[dict[str, np.ndarray]], row_ids: list[int]) -> Batch:
        # T: the longest conversation, rounded up, but no more than a row: a pair counts as two rows
        longest = max(len(array) for pair in rows for array in pair.values())
        width = min(-(-longest // MULTIPLE) * MULTIPLE, self.rows.length // 2)
        tensors = {}
        for name in rows[0]:
            filling = self.tokenizer.pad_id if name.endswith("input_ids") else IGNORED
            padded = []
            for pair in rows:
                end = (0, width - len(pair[name]))
                padded.append(np.pad(pair[name], end, constant_values=filling))
            tensors[name] = torch.from_numpy(np.stack(padded))
        return Batch(tensors, row_ids)


class PairSource(TextBatches):
    """Pairs of the training part. A pair counts as two rows; longer ones are left out."""

    Batches = PairBatches
    joined = "to a pair"
    name_of_rows = "pair"

    def rows(self, config: RunConfig, data: PreparedData) -> Pairs:
        pairs = Pairs(data.stream("train"), config.data.sequence_length, data.tokenizer.bos_id)
        if pairs.left_out:
            self.notes = (
                f"{pairs.left_out:,} of {pairs.left_out + pairs.per_epoch:,} pairs are left out: "
                "longer than data.sequence_length, or with an answer of weight 0"
            )
        return pairs


class OwnText(TextBatches):
    """On-policy batches: in a share of the steps the student writes the rows itself.

    It writes from the first trained token of a row on: a whole story, or the answer to a question.
    Such a batch has right-padded input_ids and labels (B, T), and is_own (B,).
    """

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        # None ahead of time, because the next weights write it. Undo what TextBatches does.
        return BatchSource.upcoming(self, first, stop, lm)

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        # A function of (seed, k, row, weights): nothing is saved, and a resume is exact.
        rows = super().batch(k, lm)
        settings = self.config.distill
        seed = self.config.seed
        assert settings is not None  # check_script
        if Random(f"whose text {seed} {k}").random() >= settings.on_policy:
            return rows
        prompts = [
            self.prompt(ids, labels)
            for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True)
        ]
        rngs = [Random(f"own text {seed} {k} {row}") for row in rows.row_ids]
        longest = settings.max_new_tokens
        answers = write_answers(
            lm, self.tokenizer, prompts, max_new_tokens=longest, temperature=1.0, rngs=rngs
        )
        ids = []
        labels = []
        for prompt, answer in zip(prompts, answers, strict=True):
            # the teacher may read no longer rows
            new = answer.ids[: self.config.data.sequence_length - len(prompt)]
            ids.append(torch.tensor(prompt + new))
            labels.append(torch.tensor([IGNORED] * len(prompt) + new))
        tensors = {
            "input_ids": pad_sequence(ids, True, self.tokenizer.pad_id),
            "labels": pad_sequence(labels, True, IGNORED),
            "is_own": torch.ones(len(prompts), dtype=torch.bool),
        }
        return Batch(tensors, rows.row_ids)

    def prompt(self, ids: Tensor, labels: Tensor) -> list[int]:
        """Cut a row (T,): from the start of its first document to its first trained token."""
        starts = (ids == self.tokenizer.bos_id).nonzero()[:, 0].tolist()
        start = starts[0] if starts else 0
        # + 1: a prompt has at least one token, because a model can only continue something
        trained = (labels[start + 1 :] != IGNORED).nonzero()[:, 0].tolist()
        return ids[start : start + 1 + (trained[0] if trained else 0)].tolist()
