"""Ministral: no QK-norm, and sliding windows in any of the layers."""

from __future__ import annotations

from model.config import ModelConfig
from model.families.family import Family, Fields, alike, windows
from model.saving.config_json import ConfigJson


def _ministral_windows(config: ModelConfig) -> Fields:
    """layer_types, which every family writes, says where the window is."""
    return {"sliding_window": config.sliding_window}


def _read_ministral_windows(there: ConfigJson) -> Fields:
    """Without layer_types every layer slides, if there is a window."""
    window, types = there.sliding_window, there.layer_types
    return windows(window, list(types or alike(window, there.num_hidden_layers)))


# Not `mistral`, which has a window in all layers or in none, and which llama.cpp computes without it.
# Jiang et al. 2023 (arXiv 2310.06825).
MINISTRAL = Family(
    "ministral",
    "MinistralForCausalLM",
    needs={"qk_norm": False},
    spells=("sliding_window",),
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    write_own=_ministral_windows,
    read_own=_read_ministral_windows,
)
