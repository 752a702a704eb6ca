"""Qwen3: QK-norm on every head, and sliding windows in any of the layers."""

from __future__ import annotations

from model.config import ModelConfig
from model.families.family import Family, Fields, windows
from model.saving.config_json import ConfigJson


def qwen3_windows(config: ModelConfig) -> Fields:
    """transformers forgets the window unless use_sliding_window is true.

    In transformers layer_types decides. vLLM has one window for all layers; it refuses a model with mixed layer_types
    only if max_window_layers is not the number of layers, and computes wrongly otherwise.
    """
    types = config.layer_types or []
    first = types.index("sliding_attention") if "sliding_attention" in types else config.num_hidden_layers
    return {
        "use_sliding_window": config.sliding_window is not None,
        "sliding_window": config.sliding_window,
        "max_window_layers": first,  # how many layers are full before the first that slides
    }


def read_qwen3_windows(there: ConfigJson) -> Fields:
    """Without layer_types, the layers from max_window_layers on slide, 28 being transformers' default."""
    full, layers = there.max_window_layers, range(there.num_hidden_layers)
    window = there.sliding_window if there.use_sliding_window else None
    types: list[str] = ["full_attention" if window is None or i < full else "sliding_attention" for i in layers]
    return windows(window, list(there.layer_types or types))


# Yang et al. 2025 (arXiv 2505.09388).
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    words=("attention_bias",),
    spells=("sliding_window",),
    defaults={"head_dim": 128, "sliding_window": 4096},
    write_own=qwen3_windows,
    read_own=read_qwen3_windows,
)
