"""DeepSeek-V3: multi-head latent attention (MLA). Its layers of experts are not built: here every layer is dense."""

from __future__ import annotations

from model.config import ModelConfig
from model.families.family import Family, Fields, read_no_windows
from model.saving.config_json import ConfigJson

RANKS = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _write_latent(config: ModelConfig) -> Fields:
    """The sizes, and a number of dense layers that leaves none for experts. Here head_dim is what RoPE turns."""
    no_experts = ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group")
    return {
        **{name: getattr(config, name) for name in (*RANKS, "rope_interleave")},
        "head_dim": config.qk_rope_head_dim,
        "first_k_dense_replace": config.num_hidden_layers,
        "moe_intermediate_size": config.intermediate_size,
        **dict.fromkeys(no_experts, 1),
        "num_nextn_predict_layers": 0,
    }


def _read_latent(there: ConfigJson) -> Fields:
    """Raises ValueError for a model with experts, and for what transformers reads and cannot compute."""
    dense, layers = there.first_k_dense_replace, there.num_hidden_layers
    if dense is None or dense < layers:
        first = dense or 0
        where = f"layer {first} has" if first == layers - 1 else f"layers {first} to {layers - 1} have"
        raise ValueError(
            f"first_k_dense_replace is {dense}, so {where} experts; Headlight builds deepseek_v3 with dense layers only"
        )
    nope, rotary, value = there.qk_nope_head_dim, there.qk_rope_head_dim, there.v_head_dim
    if nope is None or rotary is None or value is None or there.kv_lora_rank is None:
        raise ValueError("kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim must be numbers")
    if there.head_dim not in (None, rotary):
        raise ValueError(f"head_dim is {there.head_dim}; in a deepseek_v3 it is qk_rope_head_dim ({rotary})")
    sizes = {name: getattr(there, name) for name in RANKS}
    return read_no_windows(there) | sizes | {"head_dim": nope + rotary, "rope_interleave": bool(there.rope_interleave)}


# DeepSeek-AI 2024 (arXiv 2412.19437).
DEEPSEEK_V3 = Family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    needs={"attention": "mla", "qk_norm": False},
    words=("attention_bias",),
    fixed={"hidden_act": "silu"},
    defaults={
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 3,
        "rope_interleave": True,
    },
    write_own=_write_latent,
    read_own=_read_latent,
)
