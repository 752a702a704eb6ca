"""What does every head look at? `python -m eval.attention runs/demo --text "..."` draws it."""

from typing import TYPE_CHECKING

from configs.command import is_starting

if TYPE_CHECKING or not is_starting():  # a command uses none of these names, and torch takes seconds to import
    from eval.attention.capture import AttentionMaps, capture

__all__ = ["AttentionMaps", "capture"]
