"""Two families with optional parts: Qwen3-MoE (a mixture of experts), and DeepSeek-V3 (latent attention, MLA)."""

from __future__ import annotations

import re

import torch

from model.config import ModelConfig
from model.families.family import Family, Fields, Tensors

# ---------------------------------------------------------------------------------------------------------
# Qwen3-MoE: Qwen3 with experts in some layers or in all; sliding windows in every layer or in none

EXPERT_KEYS = (  # under these names in config.json
    "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob",
    "router_aux_loss_coef",
)  # fmt: skip
ONE_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


class _Qwen3Moe(Family):
    def differences(self, config: ModelConfig) -> Fields:
        found = super().differences(config)
        if config.num_experts is None:
            found["num_experts"] = 8
        if len(set(config.layer_types or [])) > 1:
            found["layer_types"] = ["sliding_attention"]
        return found


def _write_experts(config: ModelConfig) -> Fields:
    """transformers 4 says num_experts, 5 num_local_experts."""
    values = config.model_dump(include={*EXPERT_KEYS, "num_experts"})
    return values | {"num_local_experts": config.num_experts, "output_router_logits": False}


def _read_experts(there: Fields) -> Fields:
    """A window holds for all layers, whatever layer_types says; without experts it is a Qwen3 model."""
    values: Fields = {"sliding_window": there["sliding_window"] if there["use_sliding_window"] else None}
    values["layer_types"] = None  # follows from it
    if count := there["num_local_experts"] if there["num_experts"] is None else there["num_experts"]:
        values |= {name: there[name] for name in EXPERT_KEYS if there.get(name) is not None} | {"num_experts": count}
    return values


def _to_files(tensors: Tensors) -> Tensors:
    """The stacks of model/experts.py, one expert at a time."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part not in ("gate_up_proj", "down_proj"):
            found[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            names = [f"{layer}.{expert}.{kind}_proj.weight" for kind in part.removesuffix("_proj").split("_")]
            found |= dict(zip(names, matrix if len(names) > 1 else [matrix], strict=True))
    return found


def _from_files(tensors: Tensors) -> Tensors:
    found, single = {}, {}
    for name, tensor in tensors.items():
        if match := ONE_EXPERT.fullmatch(name):
            single[match[1], match[3], int(match[2])] = tensor
        else:
            found[name] = tensor
    for layer in dict.fromkeys(layer for layer, _, _ in single):
        experts = range(sum(key[:2] == (layer, "down") for key in single))
        pairs = [torch.stack([single[layer, part, expert] for part in ("gate", "up")]) for expert in experts]
        found[f"{layer}.gate_up_proj"] = torch.stack(pairs)
        found[f"{layer}.down_proj"] = torch.stack([single[layer, "down", expert] for expert in experts])
    return found


QWEN3_MOE = _Qwen3Moe(  # Yang et al. 2025 (arXiv 2505.09388)
    "qwen3_moe", "Qwen3MoeForCausalLM", words=("attention_bias",), spells=("num_experts",),
    slides=lambda layer, there: True,
    defaults={
        "sliding_window": 4096, "num_local_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "norm_topk_prob": False, "router_aux_loss_coef": 0.001,
    },
    write_own=_write_experts, read_own=_read_experts, to_files=_to_files, from_files=_from_files,
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------
# DeepSeek-V3: its layers of experts are not built, every layer is dense here


def _write_latent(config: ModelConfig) -> Fields:
    """A number of dense layers that leaves none for experts. Here head_dim is what RoPE turns."""
    no_experts = ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group")
    return dict.fromkeys(no_experts, 1) | {
        "head_dim": config.qk_rope_head_dim,
        "first_k_dense_replace": config.num_hidden_layers,
        "moe_intermediate_size": config.intermediate_size,
        "num_nextn_predict_layers": 0,
    }


def _read_latent(there: Fields) -> Fields:
    """ModelConfig's head_dim follows from the sizes of its two parts."""
    if (dense := there["first_k_dense_replace"]) < there["num_hidden_layers"]:
        raise ValueError(f"first_k_dense_replace is {dense}; Headlight builds deepseek_v3 without layers of experts")
    if (head := there.get("head_dim")) not in (None, there["qk_rope_head_dim"]):
        raise ValueError(f"head_dim is {head}; in a deepseek_v3 it is qk_rope_head_dim ({there['qk_rope_head_dim']})")
    return {"head_dim": None, "rope_interleave": bool(there["rope_interleave"])}


DEEPSEEK_V3 = Family(  # DeepSeek-AI 2024 (arXiv 2412.19437)
    "deepseek_v3", "DeepseekV3ForCausalLM", needs={"attention": "mla", "qk_norm": False},
    words=("attention_bias", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
           "rope_interleave"),
    fixed={"hidden_act": "silu"},
    defaults={
        "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3, "rope_interleave": True,
    },
    write_own=_write_latent, read_own=_read_latent,
)  # fmt: skip
