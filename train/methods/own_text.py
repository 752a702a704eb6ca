"""On-policy distillation: the student writes its own rows."""

from __future__ import annotations

from collections.abc import Generator
from random import Random

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from configs import IGNORED
from data.batches import Batch
from data.packing import PreparedData
from eval.tools import write_answers
from model import LanguageModel
from train.config import RunConfig
from train.machine.processes import ALONE, World
from train.objective import CPU, BatchSource, TextBatches


class OwnText(TextBatches):
    """On-policy batches: rows of the text, or what the student writes where such a row has its first trained token.

    Of stories that is a whole document; of conversations, the answer to a question. Its rows are right-padded, and have
    `is_own` (B,) besides input_ids and labels. Which steps are its own comes from (seed, k), and the random numbers of
    what it writes from (seed, k, row); the text comes from the weights. So nothing is saved, and a stopped run resumes
    exactly.
    """

    def __init__(self, config: RunConfig, data: PreparedData, world: World = ALONE, device: torch.device = CPU):
        super().__init__(config, data, world, device)
        assert config.distill is not None
        self.settings, self.seed = config.distill, config.seed
        self.tokenizer, self.length = data.tokenizer, config.data.sequence_length

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        return BatchSource.upcoming(self, first, stop, lm)  # none ahead of time: the next weights write it

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        rows = super().batch(k, lm)
        if Random(f"whose text {self.seed} {k}").random() >= self.settings.on_policy:
            return rows
        prompts = [self.prompt(ids, labels) for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True)]
        rngs = [Random(f"own text {self.seed} {k} {row}") for row in rows.row_ids]
        longest = self.settings.max_new_tokens
        answers = write_answers(lm, self.tokenizer, prompts, max_new_tokens=longest, temperature=1.0, rngs=rngs)
        ids, labels = [], []
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
        """A row (T,) from where its first document begins up to the first token that is trained on."""
        starts = (ids == self.tokenizer.bos_id).nonzero()[:, 0].tolist()
        start = starts[0] if starts else 0
        trained = (labels[start + 1 :] != IGNORED).nonzero()[:, 0].tolist()
        return ids[start : start + 1 + (trained[0] if trained else 0)].tolist()
