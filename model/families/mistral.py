"""Mistral: Llama with one sliding window in all layers, or with none. Read, and saved as `llama` or `ministral`."""

from __future__ import annotations

from dataclasses import replace

from model.families.family import Fields, alike, windows
from model.families.ministral import MINISTRAL
from model.saving.config_json import ConfigJson


def _read_mistral_windows(there: ConfigJson) -> Fields:
    """Raises ValueError for layer_types, which transformers reads in part and then cannot compute."""
    if there.layer_types is not None:
        raise ValueError("layer_types is there, and mistral has a window in all layers or in none: remove it")
    return windows(there.sliding_window, alike(there.sliding_window, there.num_hidden_layers))


# Jiang et al. 2023 (arXiv 2310.06825).
MISTRAL = replace(MINISTRAL, model_type="mistral", architecture="MistralForCausalLM", read_own=_read_mistral_windows)
