"""What does a step minimise? An objective says what a batch counts for, and what its loss is.

The loss of a step is the sum of its losses / its count, over all micro-batches and processes. So an objective returns
sums, never means, and `count` must be known before the first backward pass: it reads the batch alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from data.batches import IGNORED, Batch

Forward = Callable[..., Any]  # the model as training calls it: compiled, or wrapped for several processes
Figures = dict[str, Tensor]


class Objective(Protocol):
    """What a step minimises."""

    def count(self, batch: Batch) -> int:
        """What the sums of a batch are divided by: trained tokens, pairs, … It is called on the CPU."""
        ...

    def loss(self, forward: Forward, batch: Batch) -> tuple[Tensor, Figures]:
        """-> the loss, summed over what `count` counts, and further figures by name, summed likewise.

        The figures are logged beside the loss, as means. Call `forward` once for a batch, or as often as needed.
        """
        ...


class NextToken:
    """Cross-entropy of the next token, in nats: pretraining, and fine-tuning on what the labels leave."""

    def count(self, batch: Batch) -> int:
        """Trained tokens: the labels that a token before them must predict."""
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    def loss(self, forward: Forward, batch: Batch) -> tuple[Tensor, Figures]:
        """The model computes it itself (model/loss.py), so that the logits never exist all at once."""
        loss_sum, _ = forward(**batch.tensors)
        return loss_sum, {}
