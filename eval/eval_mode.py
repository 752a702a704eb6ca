"""How is a model evaluated without changing it? In evaluation mode, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(lm: nn.Module) -> Iterator[None]:
    """Within this context lm is in evaluation mode; afterwards every module is in its old mode."""
    modes = {module: module.training for module in lm.modules()}
    lm.eval()
    try:
        yield
    finally:
        for module, was_training in modes.items():
            module.training = was_training
