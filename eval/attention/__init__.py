"""Heatmaps of every attention head. `python -m eval.attention runs/demo --text "..."` draws one."""

from eval.attention.capture import AttentionMaps, capture

__all__ = ["AttentionMaps", "capture"]
