"""What `python -m notebooks.check` compares the reader's code with: a check for every exercise, in their order.

A check takes the reader's module. It raises AssertionError with a sentence about what differs, or returns a sentence
about what the reader has now.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from notebooks.checks import attention, training

CHECKS: dict[str, Callable[[ModuleType], str]] = {**attention.CHECKS, **training.CHECKS}
