"""Qwen3 with experts in some layers or in all: its spelling, and its tensors in files.

Sliding windows are in every layer or in none. Yang et al. 2025 (arXiv 2505.09388).
"""

import re

import torch
from torch import Tensor

from model.config import ModelConfig
from model.files.family import Family, Fields, Tensors
from model.variants.config import EXPERT_KEYS

ALL_EXPERT_KEYS = (*EXPERT_KEYS, "norm_topk_prob", "router_aux_loss_coef")


def _follow(config: ModelConfig) -> Fields:
    # any number of experts, and windows in all layers or in none
    values: Fields = {"num_experts": config.num_experts or 8}
    if len(set(config.layer_types or [])) > 1:
        values["layer_types"] = ["sliding_attention"]
    return values


def _read(fields: Fields) -> Fields:
    count = fields["num_experts"]
    if count is None:
        count = fields["num_local_experts"]
    # transformers ignores layer_types here: a window holds for all layers
    window = fields["sliding_window"] if fields["use_sliding_window"] else None
    values: Fields = {"num_experts": count or None, "sliding_window": window, "layer_types": None}
    if not count:  # it is a Qwen3 model
        values |= {key: ModelConfig.model_fields[key].default for key in ALL_EXPERT_KEYS}
    return values


EXPERT_TENSOR = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def _to_files(tensors: Tensors) -> Tensors:
    """Unstack gate_up_proj (E, 2, I, D) and down_proj (E, D, I): one tensor for each expert."""
    files: Tensors = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part == "gate_up_proj":
            stacks = {"gate": tensor[:, 0], "up": tensor[:, 1]}
        elif part == "down_proj":
            stacks = {"down": tensor}
        else:
            files[name] = tensor
            continue
        for kind, stack in stacks.items():
            for i, matrix in enumerate(stack):
                files[f"{layer}.{i}.{kind}_proj.weight"] = matrix
    return files


def _from_files(files: Tensors) -> Tensors:
    tensors: Tensors = {}
    layers: dict[str, dict[tuple[str, int], Tensor]] = {}
    for name, tensor in files.items():
        match = EXPERT_TENSOR.fullmatch(name)
        if match is None:
            tensors[name] = tensor
        else:
            layers.setdefault(match[1], {})[match[3], int(match[2])] = tensor
    for layer, parts in layers.items():
        experts = range(len(parts) // 3)  # each has gate, up and down
        gate, up, down = (
            torch.stack([parts[kind, i] for i in experts]) for kind in ("gate", "up", "down")
        )
        tensors[f"{layer}.gate_up_proj"] = torch.stack((gate, up), dim=1)
        tensors[f"{layer}.down_proj"] = down
    return tensors


QWEN3_MOE = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    free=("attention_bias", "num_experts", *ALL_EXPERT_KEYS),
    follows=_follow,
    slides=lambda layer, fields: True,
    defaults={
        "sliding_window": 4096,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "router_aux_loss_coef": 0.001,
    },
    # transformers 4 reads num_experts, 5 reads num_local_experts
    write_own=lambda config: {
        "num_local_experts": config.num_experts,
        "output_router_logits": False,
    },
    read_own=_read,
    to_files=_to_files,
    from_files=_from_files,
)
