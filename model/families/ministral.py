"""Ministral: no QK-norm, and sliding windows in any of the layers.

Not `mistral`, which has a window in all layers or in none. Jiang et al. 2023 (arXiv 2310.06825).
"""

from __future__ import annotations

from model.config import ModelConfig
from model.families.family import Family, Fields


def write_windows(config: ModelConfig) -> Fields:
    """layer_types, which every family writes, says where the window is."""
    return {"sliding_window": config.sliding_window}


def read_windows(fields: Fields) -> Fields:
    """Without layer_types every layer slides."""
    window, layers = fields.get("sliding_window"), fields.get("num_hidden_layers", 0)
    types = fields.get("layer_types") or ["sliding_attention"] * layers
    return {"sliding_window": window, "layer_types": types} if window and "sliding_attention" in types else {}


MINISTRAL = Family(
    "ministral",
    "MinistralForCausalLM",
    needs={"qk_norm": False},
    write_windows=write_windows,
    read_windows=read_windows,
)
