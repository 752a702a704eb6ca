"""The two choices that make a kind of training: an objective and a source of batches.

Pretraining is `NextToken` on rows of text. SFT, DPO, distillation and GRPO replace one of the two,
or both; the loop (train/loop.py) stays the same.
"""

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

# The model as training calls it, perhaps wrapped in DDP.
Forward = Callable[..., Output]
# Figures of a batch by name: sums, which stay on the device until they are logged.
Figures = dict[str, Tensor]


class Loss(NamedTuple):
    """The loss of a batch, and its other figures.

    sum         over what `Objective.count` counts; the loop divides it
    figures     more figures, summed likewise; logged as means
    auxiliary   losses of the model's layers, such as experts' (`Output.auxiliary`); minimised too
    """

    sum: Tensor
    figures: Figures
    auxiliary: Figures


class Objective(Protocol):
    """The function that a step minimises."""

    # Why sums, and why two methods? All tokens of a step must weigh the same, in whatever
    # micro-batch or process. So the loop adds up the counts first, and divides each loss by their
    # sum before backward().

    def count(self, batch: Batch) -> int:
        """Return the divisor of a batch's sums: its trained tokens, pairs, … Called on the CPU."""
        ...

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        """Return the loss of a batch. Call `forward` once, or as often as needed."""
        ...


class NextToken:
    """Cross-entropy of the next token, in nats, on all labels that are not masked."""

    def count(self, batch: Batch) -> int:
        # (B, T): no token comes before the first one of a row, so nothing predicts it
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        # The model shifts the labels and computes its own loss (model/loss.py). It never holds the
        # logits (B, T, V) of all positions at once, which would be the largest tensor of the step.
        output = forward(**batch.tensors)
        assert output.loss_sum is not None  # the batch has labels
        return Loss(output.loss_sum, {}, output.auxiliary)


# A function that makes the objective of a run. It may open a second model.
MakeObjective = Callable[[RunConfig, PreparedData, LanguageModel, Device], Objective]


class BatchSource:
    """A source of batches: subclass it and write `batch`."""

    # Batch k is a function of (seed, k), or of (seed, k, weights). So a resumed run draws the same
    # batches, and nothing is saved. If a batch depends on earlier weights, a checkpoint must keep
    # it: `state_tensors`.

    rows_per_batch: int  # over all processes
    row_length: int  # in tokens
    notes: str = ""  # lines that the run prints before it starts
    joined: str = "into one"  # a word for rows that are joined: "2 joined into one"

    def batch(self, k: int, lm: LanguageModel) -> Batch:
        """Return this process's share of batch k, on the CPU. lm has taken k steps by then."""
        # Draw random numbers from (seed, k, row), with a generator of your own. Then any number of
        # processes draws the same.
        raise NotImplementedError

    def state_tensors(self, k: int) -> dict[str, Tensor]:
        """Return what a checkpoint before batch k must hold of this process."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from `state_tensors`. {}: there were none, or other processes saved them."""

    def upcoming(self, first: int, stop: int, lm: LanguageModel) -> Generator[Batch]:
        """Yield batches first … stop - 1, each made when the loop asks for it."""
        for k in range(first, stop):
            yield self.batch(k, lm)

    def epochs(self, steps: int) -> float | None:
        """Return how often this many steps read the whole text; None where that means nothing."""
        return None
