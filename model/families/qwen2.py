"""Qwen2: a bias on queries, keys and values, no QK-norm, and sliding windows in any of the layers."""

from __future__ import annotations

from model.families.family import Family
from model.families.qwen3 import qwen3_windows, read_qwen3_windows

# Yang et al. 2024 (arXiv 2407.10671).
QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    needs={"qk_norm": False, "qkv_bias": True},
    spells=("sliding_window",),
    defaults={"num_key_value_heads": 32, "sliding_window": 4096},
    write_own=qwen3_windows,
    read_own=read_qwen3_windows,
)
