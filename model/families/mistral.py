"""Mistral: Llama with one sliding window in all layers, or with none. Read, and saved as `llama` or `ministral`."""

from __future__ import annotations

from model.config_json import ConfigJson
from model.families.family import Family, Fields, windows


def _read_mistral_windows(there: ConfigJson) -> Fields:
    """Raises ValueError for layer_types that say otherwise: one part of transformers reads them, another does not."""
    kind = "full_attention" if there.sliding_window is None else "sliding_attention"
    types = [kind] * there.num_hidden_layers
    if there.layer_types is not None and list(there.layer_types) != types:
        raise ValueError(f"layer_types says something else than sliding_window, by which every layer is {kind} here")
    return windows(there.sliding_window, types)


# Jiang et al. 2023 (arXiv 2310.06825).
MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    needs={"qk_norm": False},
    spells=("sliding_window",),
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    read_own=_read_mistral_windows,
)
