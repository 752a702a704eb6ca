"""Qwen3: QK-norm on every head, and sliding windows in any of the layers. Yang et al. 2025 (arXiv 2505.09388)."""

from __future__ import annotations

from model.config import ModelConfig
from model.families.family import Family, Fields


def write_windows(config: ModelConfig) -> Fields:
    """transformers forgets the window unless use_sliding_window is true."""
    return {
        "use_sliding_window": config.sliding_window is not None,
        "sliding_window": config.sliding_window,
        "max_window_layers": config.num_hidden_layers,  # layer_types decides; this must not contradict it
    }


def read_windows(fields: Fields) -> Fields:
    """Without layer_types, the layers from max_window_layers on slide, 28 being transformers' default."""
    window, layers = fields.get("sliding_window"), fields.get("num_hidden_layers", 0)
    if window is None or not fields.get("use_sliding_window", False):
        return {}
    full = fields.get("max_window_layers", 28)
    types = fields.get("layer_types") or ["full_attention" if i < full else "sliding_attention" for i in range(layers)]
    return {"sliding_window": window, "layer_types": types} if "sliding_attention" in types else {}


QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    needs={"qk_norm": True},
    write_windows=write_windows,
    read_windows=read_windows,
)
