"""What is learned, and from what? The two choices that make a kind of training: an objective and a batch source.

An objective says what a batch counts for, and what its loss is. The loss of a step is the sum of its losses / its
count, over all micro-batches and processes. So an objective returns sums, never means, and `count` must be known
before the first backward pass: it reads the batch alone.

A source makes the batches: from text that was prepared, or with the model itself. Batch k is a function of (seed, k),
or of (seed, k, weights). So most sources have nothing to save, and a resumed run draws the very batches that it would
have drawn. A source whose batches depend on earlier weights gives what it needs to the checkpoint (`state_tensors`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from configs import IGNORED
from data.batches import Batch
from data.packing import PreparedData
from model import LanguageModel
from model.transformer import Output
from train.config import RunConfig
from train.machine.device import Device

CPU = torch.device("cpu")
Forward = Callable[..., Output]  # the model as training calls it, perhaps wrapped for several processes
Figures = dict[str, Tensor]


class Loss(NamedTuple):
    """The loss of a batch, and what else is measured on the way.

    sum         over what `Objective.count` counts
    figures     more figures by name, summed likewise; they are logged as means
    auxiliary   of the model's own layers (`Output.auxiliary`), as experts have them. The loop minimises and logs them
    """

    sum: Tensor
    figures: Figures
    auxiliary: Figures


class Objective(Protocol):
    """What a step minimises."""

    def count(self, batch: Batch) -> int:
        """What the sums of a batch are divided by: trained tokens, pairs, … It is called on the CPU.

        A step in which it is 0 everywhere has nothing to learn, and moves nothing.
        """
        ...

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        """Return the loss of a batch. Call `forward` once, or as often as needed."""
        ...


class NextToken:
    """Cross-entropy of the next token, in nats: pretraining, and fine-tuning on what the labels leave."""

    def count(self, batch: Batch) -> int:
        """Trained tokens: the labels that a token before them must predict."""
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        """The model computes it itself (model/loss.py), so that the logits never exist all at once."""
        output = forward(**batch.tensors)
        assert output.loss_sum is not None  # the batch has labels
        return Loss(output.loss_sum, {}, output.auxiliary)


MakeObjective = Callable[[RunConfig, PreparedData, LanguageModel, Device], Objective]  # before the run is opened


class BatchSource:
    """Subclass it and write `batch`. rows_per_batch: rows of a step, over all processes; row_length: in tokens.

    notes: what the run says about it before it starts; "" = nothing. joined: what becomes of the rows of
    data.sequence_length tokens that make one row, where these are several.
    """

    rows_per_batch: int
    row_length: int
    notes: str = ""
    joined: str = "into one"

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        """This process's share of batch k, on the CPU. It may ask lm, whose weights have taken k steps by then.

        Draw random numbers from (seed, k) and a row's number only, with a generator of your own: then
        any number of processes draws the same.
        """
        raise NotImplementedError

    def state_tensors(self, k: int) -> dict[str, Tensor]:
        """What a checkpoint before batch k must hold, of this process. Nothing, where (seed, k, weights) decide."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue with what `state_tensors` gave. {}: nothing, or by another number of processes."""

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        """Batches first … stop - 1, each made when the loop asks for it."""
        for k in range(first, stop):
            yield self.batch(k, lm)

    def epochs(self, steps: int) -> float | None:
        """How often this many steps read the whole text; None where that means nothing."""
        return None
