"""Qwen3-MoE: Qwen3 with a mixture of experts in some layers or in all; sliding windows in every layer or in none."""

from __future__ import annotations

import re

from model.config import EXPERT_KEYS, ModelConfig
from model.families.family import Family, Fields, Tensors, alike, windows
from model.saving.config_json import ConfigJson

WRITTEN = (*EXPERT_KEYS, "norm_topk_prob", "router_aux_loss_coef")  # under these names in config.json
ONE_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


class _Qwen3Moe(Family):
    """There are experts, and all layers have the window or none has."""

    def differences(self, config: ModelConfig) -> Fields:
        found = super().differences(config)
        if config.num_experts is None:
            found["num_experts"] = 8
        if len(set(config.layer_types or [])) > 1:
            found["layer_types"] = ["sliding_attention"]
        return found


def _write(config: ModelConfig) -> Fields:
    """transformers 4 says num_experts, 5 num_local_experts; both need use_sliding_window to keep the window."""
    values = config.model_dump()
    return {name: values[name] for name in WRITTEN} | {
        "num_experts": config.num_experts,
        "num_local_experts": config.num_experts,
        "output_router_logits": False,
        "use_sliding_window": config.sliding_window is not None,
        "sliding_window": config.sliding_window,
    }


def _read(there: ConfigJson) -> Fields:
    """A window holds for all layers, whatever layer_types says; without experts it is a Qwen3 model."""
    count = there.num_local_experts if there.num_experts is None else there.num_experts
    window = there.sliding_window if there.use_sliding_window else None
    found = windows(window, alike(window, there.num_hidden_layers))
    if not count:
        return found
    given = {name: value for name in WRITTEN if (value := getattr(there, name)) is not None}
    return found | given | {"num_experts": count}


def _to_files(tensors: Tensors) -> Tensors:
    """The stacks of model/experts.py, one expert at a time."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith(".experts.gate_up_proj"):
            of = name.removesuffix(".gate_up_proj")
            for expert, (gate, up) in enumerate(tensor):
                found[f"{of}.{expert}.gate_proj.weight"], found[f"{of}.{expert}.up_proj.weight"] = gate, up
        elif name.endswith(".experts.down_proj"):
            of = name.removesuffix(".down_proj")
            found |= {f"{of}.{expert}.down_proj.weight": down for expert, down in enumerate(tensor)}
        else:
            found[name] = tensor
    return found


def _from_files(tensors: Tensors) -> Tensors:
    """The inverse."""
    import torch  # takes seconds

    found, single = {}, {}
    for name, tensor in tensors.items():
        if match := ONE_EXPERT.fullmatch(name):
            single[match[1], match[3], int(match[2])] = tensor
        else:
            found[name] = tensor
    for layer in dict.fromkeys(of for of, _, _ in single):
        count = range(sum(key[:2] == (layer, "down") for key in single))
        pairs = [torch.stack([single[layer, part, expert] for part in ("gate", "up")]) for expert in count]
        found[f"{layer}.gate_up_proj"] = torch.stack(pairs)
        found[f"{layer}.down_proj"] = torch.stack([single[layer, "down", expert] for expert in count])
    return found


# Yang et al. 2025 (arXiv 2505.09388).
QWEN3_MOE = _Qwen3Moe(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    words=("attention_bias",),
    spells=("num_experts", "sliding_window"),
    defaults={
        "sliding_window": 4096,
        "num_experts": None,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "router_aux_loss_coef": 0.001,
    },
    write_own=_write,
    read_own=_read,
    to_files=_to_files,
    from_files=_from_files,
)
