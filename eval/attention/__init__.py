"""What does every head look at? `python -m eval.attention runs/demo --text "..."` draws it."""

from typing import TYPE_CHECKING

from configs.later import imported_later

if TYPE_CHECKING:
    from eval.attention.capture import AttentionMaps, capture

__all__ = ["AttentionMaps", "capture"]

__getattr__ = imported_later(__name__, dict.fromkeys(__all__, "eval.attention.capture"))
