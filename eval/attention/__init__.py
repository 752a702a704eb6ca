"""What does every head look at? `python -m eval.attention runs/demo --text "..."` draws it."""

from eval.attention.capture import AttentionMaps, capture

__all__ = ["AttentionMaps", "capture"]
