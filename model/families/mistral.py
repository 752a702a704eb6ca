"""Mistral: Llama with one sliding window in all layers, or with none. Read, and saved as `llama` or `ministral`."""

from __future__ import annotations

from model.config_json import ConfigJson
from model.families.family import Family, Fields, windows


def _read_mistral_windows(there: ConfigJson) -> Fields:
    """Raises ValueError for layer_types beside a window, which transformers reads and cannot compute."""
    window, full = there.sliding_window, ["full_attention"] * there.num_hidden_layers
    if there.layer_types not in (None, full) or (window is not None and there.layer_types is not None):
        raise ValueError("layer_types stands beside a window, and mistral has one in all layers or in none: remove it")
    return windows(window, full if window is None else ["sliding_attention"] * there.num_hidden_layers)


# Jiang et al. 2023 (arXiv 2310.06825).
MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    needs={"qk_norm": False},
    spells=("sliding_window",),
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    read_own=_read_mistral_windows,
)
