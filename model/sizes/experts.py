"""What do the keys of a mixture of experts mean together? The rules of ModelConfig about them."""

from __future__ import annotations

from typing import Any

from model.sizes.shape import is_int

EXPERT_KEYS = ("num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers")  # of experts
MULTIPLE = 8  # rows of matrices must begin at multiples of 16 bytes for torch.nn.functional.grouped_mm


def expert_width(values: dict[str, Any]) -> None:
    """Write out moe_intermediate_size where it is left open: a token costs what it costs without experts."""
    if values.get("num_experts") is not None and values.get("moe_intermediate_size") is None:
        width, chosen = values["intermediate_size"], values.get("num_experts_per_tok", 2)
        if is_int(width) and is_int(chosen):
            values["moe_intermediate_size"] = -(-width // (MULTIPLE * chosen)) * MULTIPLE


def layers_with_experts(config: Any) -> list[bool]:
    """config: a ModelConfig. For every layer, whether its feed-forward part is a mixture of experts."""
    step, dense = config.decoder_sparse_step, config.mlp_only_layers
    layers = range(config.num_hidden_layers)
    return [config.num_experts is not None and (i + 1) % step == 0 and i not in dense for i in layers]


def check_experts(config: Any) -> None:
    """config: a ModelConfig. Raises ValueError, with the remedy, for keys that do not fit together."""
    if config.num_experts is None:
        for key in EXPERT_KEYS:
            if getattr(config, key) != type(config).model_fields[key].default:
                raise ValueError(f"{key} is set, and there are no experts: set num_experts, or leave {key} out")
        return
    for key, value in (("gated_mlp", True), ("mlp_bias", False)):
        if getattr(config, key) != value:
            raise ValueError(f"experts have a gate and no bias: set {key}={str(value).lower()}, or num_experts to null")
    if config.num_experts_per_tok > config.num_experts:
        raise ValueError(
            f"num_experts_per_tok ({config.num_experts_per_tok}) must not be above num_experts ({config.num_experts})"
        )
    for key in ("hidden_size", "moe_intermediate_size"):
        if (size := getattr(config, key)) % MULTIPLE:
            raise ValueError(
                f"{key} ({size}) must be a multiple of {MULTIPLE} in a model with experts, because their products are "
                f"computed together (torch.nn.functional.grouped_mm): use {-(-size // MULTIPLE) * MULTIPLE}"
            )
    outside = [layer for layer in config.mlp_only_layers if layer >= config.num_hidden_layers]
    if outside:
        raise ValueError(
            f"mlp_only_layers names layer {outside[0]}: the layers are 0 to {config.num_hidden_layers - 1}"
        )
    if not any(config.has_experts):
        raise ValueError(
            f"num_experts ({config.num_experts}) is set, but decoder_sparse_step ({config.decoder_sparse_step}) and "
            "mlp_only_layers leave no layer with experts: set num_experts to null, or change these"
        )
