"""The checks of the exercises on attention. Each compares with the formula in float64, in a few milliseconds."""

from __future__ import annotations

from types import ModuleType

import torch

from notebooks.checks.compare import same


def softmax(mine: ModuleType) -> str:
    x = torch.tensor([[0.0, 1.0, 2.0], [-1.0, 3.0, 0.5]])
    for what, scores in {
        f"softmax(x) for x = {x.tolist()}": x,
        "softmax(x) for a row of 1000, 1001 and 999": torch.tensor([[1000.0, 1001.0, 999.0]]),
        "softmax(x) for two rows, one around 0 and one around 1000,": torch.stack([x[0], x[1] + 1000]),
        "softmax(x) for a score of -inf beside others": torch.tensor([[0.0, -torch.inf, 1.0]]),
        "softmax(x) for x of shape (2, 3, 5)": torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)),
    }.items():
        before = scores.clone()
        same(what, mine.softmax(scores), scores.double().softmax(-1))
        assert torch.equal(scores, before), "softmax(x) changes x itself: compute a new tensor (x - …, not x -= …)."
    return "Attention, sampling and the loss turn scores into shares with these lines, and yours do not overflow."


CHECKS = {"softmax": softmax}
