"""The model while it is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(lm: nn.Module) -> Iterator[None]:
    """Within this context lm is in evaluation mode; afterwards every module of it is in the mode that it was in."""
    modes = {module: module.training for module in lm.modules()}
    lm.eval()
    try:
        yield
    finally:
        for module, was_training in modes.items():
            module.training = was_training
