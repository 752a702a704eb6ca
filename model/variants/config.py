"""Keys of variants: `lora:`, `rope_scaling:`, and the sizes that latent attention and experts fill in.

`values` are those of a ModelConfig by key. What is None there and follows from other keys is filled in.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal

from pydantic import Field, model_validator

from configs.loader import Section

# Rows of matrices must begin at multiples of 16 bytes for torch.nn.functional.grouped_mm.
EXPERT_MULTIPLE = 8


class LoraConfig(Section):
    """LoRA (Hu et al. 2021, arXiv 2106.09685): train two thin matrices beside each frozen one. Needs init_from."""

    rank: int = Field(8, ge=1, le=4096)
    """Rows of A and columns of B: how many directions a matrix may change in."""
    alpha: float = Field(16.0, gt=0)
    """What the adapters compute is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the adapters' input that is set to zero at random in training."""
    target_modules: list[str] | None = Field(None, min_length=1, examples=[["q_proj", "v_proj"]])
    """Names of the matrices that get adapters. null = every linear layer of the blocks."""


SCALINGS = ("none", "linear", "yarn")  # what a trained model may be read with
KEYS = {  # which keys of rope_scaling each kind has, besides rope_type and factor
    "linear": (),
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
    "llama3": ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}


class RopeScaling(Section):
    """How to bring positions beyond the training length back into the range that the model knows."""

    rope_type: Literal["linear", "yarn", "llama3"]
    """linear: divide every angle by factor | yarn, llama3: keep the fast pairs of numbers, divide the slow ones."""
    factor: float = Field(ge=1)
    """Longest text from now on / longest text in training."""
    original_max_position_embeddings: int | None = Field(None, ge=1)
    """yarn, llama3: the longest text in tokens that the model was trained on."""
    beta_fast: float = Field(32.0, gt=0)
    """yarn: pairs that turn more often than this are kept."""
    beta_slow: float = Field(1.0, gt=0)
    """yarn: pairs that turn less often than this are divided by factor."""
    attention_factor: float | None = Field(None, gt=0)
    """yarn: queries and keys are multiplied by this; null = 0.1 ln(factor) + 1."""
    low_freq_factor: float | None = Field(None, gt=0)
    """llama3: pairs that turn less often than this over a text of training are divided by factor."""
    high_freq_factor: float | None = Field(None, gt=0)
    """llama3: pairs that turn more often than this over a text of training are kept."""

    @model_validator(mode="after")
    def _check(self) -> RopeScaling:
        kind, keys = self.rope_type, KEYS[self.rope_type]
        for other, key in [(name, key) for name in reversed(KEYS) for key in KEYS[name]]:
            value = getattr(self, key)
            if key not in keys and value != RopeScaling.model_fields[key].default:
                raise ValueError(f"{kind} has no {key}: leave it out, or use rope_type: {other}")
            if key in keys and value is None and key != "attention_factor":
                raise ValueError(f"{kind} needs {key}")
        for low, high in (("beta_slow", "beta_fast"), ("low_freq_factor", "high_freq_factor")):
            if low in keys and getattr(self, high) <= getattr(self, low):
                raise ValueError(f"{high} ({getattr(self, high)}) must be above {low} ({getattr(self, low)})")
        return self

    def written(self) -> dict[str, Any]:
        """The keys of this kind that have a value, as config.json has them."""
        return self.model_dump(include={"rope_type", "factor", *KEYS[self.rope_type]}, exclude_none=True)


def resolve_latent(values: dict[str, Any], is_set: Set[str]) -> None:
    """Fill in the sizes of multi-head latent attention: head_dim = qk_nope_head_dim + qk_rope_head_dim.

    DeepSeek-V2 (arXiv 2405.04434) takes kv_lora_rank = 4 heads and qk_rope_head_dim = 1/2 of a head. is_set: keys
    that were named. Raises ValueError.
    """
    head, nope, rotary = (values[key] for key in ("head_dim", "qk_nope_head_dim", "qk_rope_head_dim"))
    if rotary is None:
        rotary = max(2, head // 4 * 2) if nope is None else head - nope
    if nope is None:
        nope = head - rotary
    if nope < 1 or nope + rotary != head or rotary < 1:
        parts = f"qk_nope_head_dim ({nope}) + qk_rope_head_dim ({rotary})"
        raise ValueError(f"head_dim ({head}) must be {parts}, both above 0: leave one of the three out")
    sizes = {
        "kv_lora_rank": max(1, min(4 * head, values["hidden_size"] // 2)),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rotary,
        "v_head_dim": head,
        "rope_interleave": True,
    }
    for key, size in sizes.items():
        if values[key] is None:
            values[key] = size
    if "qk_norm" not in is_set:
        values["qk_norm"] = False
    for key, needed, why in (
        ("qk_norm", False, "normalises its latents instead"),
        ("scale_attn_weights", True, "always divides its scores"),
        ("qkv_bias", False, "has the biases of attention_bias only"),
        ("num_key_value_heads", values["num_attention_heads"], "makes keys and values for every head"),
        ("initialization", "random", "has no matrix of keys that could equal the queries"),
    ):
        if values[key] != needed:
            raise ValueError(f"{key} ({values[key]}): attention: mla {why}: set {key}: {str(needed).lower()}")


def resolve_experts(values: dict[str, Any]) -> None:
    """Fill in the width of an expert: a token costs what it costs without experts. Raises ValueError."""
    chosen, count = values["num_experts_per_tok"], values["num_experts"]
    if values["moe_intermediate_size"] is None:
        width = values["intermediate_size"] or 0
        values["moe_intermediate_size"] = -(-width // (EXPERT_MULTIPLE * chosen)) * EXPERT_MULTIPLE
    if not values["gated_mlp"] or values["mlp_bias"]:
        raise ValueError("experts have a gate and no bias: set gated_mlp=true and mlp_bias=false")
    if chosen > count:
        raise ValueError(f"num_experts_per_tok ({chosen}) must not be above num_experts ({count})")
    for key in ("hidden_size", "moe_intermediate_size"):
        size = values[key]
        if size % EXPERT_MULTIPLE:
            more = -(-size // EXPERT_MULTIPLE) * EXPERT_MULTIPLE
            raise ValueError(
                f"{key} ({size}) must be a multiple of {EXPERT_MULTIPLE} in a model with experts: use {more}"
            )
