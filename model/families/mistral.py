"""Mistral: Llama with one sliding window in all layers, or with none. Read, and saved as `llama` or `ministral`."""

from __future__ import annotations

from model.families.family import Family, Fields, windows
from model.saving.config_json import ConfigJson


def _read_mistral_windows(there: ConfigJson) -> Fields:
    """Raises ValueError for layer_types, which transformers reads in part and then cannot compute."""
    if there.layer_types is not None:
        raise ValueError("layer_types is there, and mistral has a window in all layers or in none: remove it")
    window = there.sliding_window
    return windows(window, ["full_attention" if window is None else "sliding_attention"] * there.num_hidden_layers)


# Jiang et al. 2023 (arXiv 2310.06825).
MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    needs={"qk_norm": False},
    spells=("sliding_window",),
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    read_own=_read_mistral_windows,
)
