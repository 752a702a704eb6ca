"""Rows that the student writes itself: the batches of on-policy distillation.

Which steps are its own, and the random numbers of what it writes, come from (seed, k); the text comes from the weights.
So nothing is saved, and a run that was stopped resumes exactly.
"""

from __future__ import annotations

from collections.abc import Generator
from random import Random

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data.batches import IGNORED, Batch
from data.prepare import PreparedData
from model import LanguageModel, generate, left_pad
from train.config import RunConfig
from train.machine.distributed import ALONE, World
from train.objective import CPU, BatchSource, TextBatches


class OwnText(TextBatches):
    """Rows of the text, or what the student writes where such a row has its first trained token.

    Of stories that is a whole document; of conversations, the answer to a question. Its rows are right-padded, and have
    `is_own` (B,) besides input_ids and labels.
    """

    def __init__(self, config: RunConfig, data: PreparedData, world: World = ALONE, device: torch.device = CPU):
        super().__init__(config, data, world, device)
        assert config.distill is not None
        self.settings, self.seed, self.rank, self.device = config.distill, config.seed, world.rank, device
        self.bos, self.pad = data.tokenizer.bos_id, data.tokenizer.pad_id
        self.stops = set(data.tokenizer.stop_ids)

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        return BatchSource.upcoming(self, first, stop, lm)  # none ahead of time: the next weights write it

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        rows = super().batch(k, lm)
        if Random(f"whose text {self.seed} {k}").random() >= self.settings.on_policy:
            return rows
        prompts = [self.prompt(ids, labels) for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True)]
        return Batch(self.written(prompts, k, lm), rows.row_ids)

    def prompt(self, ids: Tensor, labels: Tensor) -> list[int]:
        """A row (T,) from where its first document begins up to the first token that is trained on."""
        starts = (ids == self.bos).nonzero()[:, 0].tolist()
        start = starts[0] if starts else 0
        trained = (labels[start + 1 :] != IGNORED).nonzero()[:, 0].tolist()
        return ids[start : start + 1 + (trained[0] if trained else 0)].tolist()

    def written(self, prompts: list[list[int]], k: int, lm: LanguageModel) -> dict[str, Tensor]:
        """What the student writes after each prompt, with its end, as tensors of a batch."""
        left, real = left_pad(prompts, self.pad)
        drawn = generate(
            lm,
            left.to(self.device),
            self.settings.max_new_tokens,
            stop_ids=self.stops,
            seed=Random(f"own text {self.seed} {k} {self.rank}").getrandbits(63),
            attention_mask=real.to(self.device),
        )[:, left.shape[1] :].tolist()
        ids, labels = [], []
        for prompt, answer in zip(prompts, drawn, strict=True):
            end = next((at + 1 for at, token in enumerate(answer) if token in self.stops), len(answer))
            ids.append(torch.tensor(prompt + answer[:end]))
            labels.append(torch.tensor([IGNORED] * len(prompt) + answer[:end]))
        padded = {
            "input_ids": pad_sequence(ids, True, self.pad),
            "labels": pad_sequence(labels, True, IGNORED),
        }
        return padded | {"is_own": torch.ones(len(prompts), dtype=torch.bool)}
