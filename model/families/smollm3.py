"""SmolLM3: Llama with layers that have no RoPE (NoPE), and sliding windows in any of the layers."""

from __future__ import annotations

from model.config import ModelConfig
from model.families.family import Family, Fields, windows
from model.saving.config_json import ConfigJson


def _write_smollm3(config: ModelConfig) -> Fields:
    return {
        "no_rope_layers": [int(rotates) for rotates in config.rotates],
        "use_sliding_window": config.sliding_window is not None,
        "sliding_window": config.sliding_window,
    }


def _read_smollm3(there: ConfigJson) -> Fields:
    """Without no_rope_layers every fourth layer has no RoPE; without layer_types those layers slide, if one may."""
    layers = there.num_hidden_layers
    every = there.no_rope_layer_interval
    rotates = there.no_rope_layers or [int((i + 1) % every != 0) for i in range(layers)]
    if len(rotates) < layers:
        raise ValueError(f"no_rope_layers has {len(rotates)} entries for {layers} layers")
    rotates = rotates[:layers]
    window = there.sliding_window if there.use_sliding_window else None
    types = ["full_attention" if window is None or flag else "sliding_attention" for flag in rotates]
    position: Fields = {"no_rope_layers": rotates} if any(rotates) else {"position_embedding": "none"}
    return position | windows(window, list(there.layer_types or types))


# Bakouch et al. 2025 (huggingface.co/blog/smollm3); NoPE: Kazemnejad et al. 2023 (arXiv 2305.19466).
SMOLLM3 = Family(
    "smollm3",
    "SmolLM3ForCausalLM",
    needs={"qk_norm": False},
    words=("attention_bias",),
    spells=("no_rope_layers", "position_embedding", "sliding_window"),
    defaults={"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
    write_own=_write_smollm3,
    read_own=_read_smollm3,
)
