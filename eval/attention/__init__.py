"""Attention of every head: `python -m eval.attention runs/demo --text "..."` draws it."""

from eval.attention.capture import AttentionMaps, capture

__all__ = ["AttentionMaps", "capture"]
