"""The two choices that make a kind of training: an objective and a source of batches.

The loss of a step is the sum of its losses, divided by its count, over all micro-batches and
processes. So an objective returns sums, never means. `count` must be known before the first
backward pass, so it reads the batch alone.

A source makes batches from prepared text, or with the model itself. Batch k is a function of (seed,
k), or of (seed, k, weights). So most sources have nothing to save, and a resumed run draws the same
batches. A source whose batches depend on earlier weights adds to the checkpoint what it needs
(`state_tensors`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

from torch import Tensor

from configs import IGNORED
from data.batches import Batch
from data.packing import PreparedData
from model import LanguageModel
from model.transformer import Output
from train.config import RunConfig
from train.machine.device import Device

Forward = Callable[..., Output]  # The model as training calls it, perhaps wrapped in DDP.
Figures = dict[str, Tensor]


class Loss(NamedTuple):
    """The loss of a batch, and its other figures.

    sum         over what `Objective.count` counts
    figures     more figures by name, summed likewise; they are logged as means
    auxiliary   losses of the model's own layers (`Output.auxiliary`), as experts have them. The
                loop minimises and logs them
    """

    sum: Tensor
    figures: Figures
    auxiliary: Figures


class Objective(Protocol):
    """The thing that a step minimises."""

    def count(self, batch: Batch) -> int:
        """Return the divisor of a batch's sums: trained tokens, pairs, … The loop calls it on the
        CPU.

        A step in which it is 0 everywhere has nothing to learn, and moves nothing.
        """
        ...

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        """Return the loss of a batch. Call `forward` once, or as often as needed."""
        ...


class NextToken:
    """Cross-entropy of the next token, in nats: for pretraining, and for fine-tuning with masked
    labels.
    """

    def count(self, batch: Batch) -> int:
        """Return the trained tokens: labels that the model predicts from an earlier token."""
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        """Return the model's own loss (model/loss.py), which never holds all logits at once."""
        output = forward(**batch.tensors)
        assert output.loss_sum is not None  # the batch has labels
        return Loss(output.loss_sum, {}, output.auxiliary)


# Makes an objective before the run is opened; it may open a second model.
MakeObjective = Callable[[RunConfig, PreparedData, LanguageModel, Device], Objective]


class BatchSource:
    """A source of batches: subclass it and write `batch`.

    rows_per_batch  rows of a step, over all processes
    row_length      in tokens
    notes           lines that the run prints about it before it starts
    joined          how rows of data.sequence_length tokens become one row, where several do
    """

    rows_per_batch: int
    row_length: int
    notes: str = ""
    joined: str = "into one"

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        """Return this process's share of batch k, on the CPU. lm has taken k steps by then.

        Draw random numbers from (seed, k) and a row's number only, with a generator of your own:
        then any number of processes draws the same.
        """
        raise NotImplementedError

    def state_tensors(self, k: int) -> dict[str, Tensor]:
        """Return what a checkpoint before batch k must hold of this process."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from `state_tensors`.

        {} if there were none, or if the number of processes changed.
        """

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        """Yield batches first … stop - 1, each made when the loop needs it."""
        for k in range(first, stop):
            yield self.batch(k, lm)

    def epochs(self, steps: int) -> float | None:
        """Return how often this many steps read the whole text; None where that means nothing."""
        return None
