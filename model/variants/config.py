"""Keys of variants: `lora:`, `rope_scaling:`, latent attention, experts and kinds of layers.

The `resolve_…` functions fill in values of a ModelConfig, by key, that follow from other keys.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal

from pydantic import Field, model_validator

from configs.loader import Section

EXPERT_KEYS = (
    "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers",
)  # fmt: skip
LATENT_KEYS = (
    "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "rope_interleave",
)  # fmt: skip
LINEAR_KEYS = ("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim")
# Rows of matrices must begin at multiples of 16 bytes for torch.nn.functional.grouped_mm.
EXPERT_MULTIPLE = 8


class LoraConfig(Section):
    """LoRA (Hu et al. 2021, arXiv 2106.09685): train two thin matrices beside each frozen one."""

    rank: int = Field(8, ge=1, le=4096)
    """Rows of A and columns of B: the number of directions in which a matrix may change."""
    alpha: float = Field(16.0, gt=0)
    """The output of the adapters is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the adapters' input that is set to zero at random in training."""
    target_modules: list[str] | None = Field(None, min_length=1, examples=[["q_proj", "v_proj"]])
    """Names of the matrices that get adapters. null = every linear layer of the blocks."""


# The scalings that a trained model may be read with.
SCALINGS = ("none", "linear", "yarn")
# The keys of each kind of rope_scaling, without rope_type and factor.
KEYS = {
    "linear": (),
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
    "llama3": ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}


class RopeScaling(Section):
    """Scaling of RoPE for texts longer than those of training."""

    rope_type: Literal["linear", "yarn", "llama3"]
    """linear: divide every angle by factor | yarn, llama3: divide those of slow pairs only."""
    factor: float = Field(ge=1)
    """Longest text from now on / longest text in training."""
    original_max_position_embeddings: int | None = Field(None, ge=1)
    """yarn, llama3: the longest text in tokens that the model was trained on."""
    beta_fast: float = Field(32.0, gt=0)
    """yarn: pairs that turn more often than this are kept."""
    beta_slow: float = Field(1.0, gt=0)
    """yarn: pairs that turn less often than this are divided by factor."""
    attention_factor: float | None = Field(None, gt=0)
    """yarn: queries and keys are multiplied by this. null = 0.1 ln(factor) + 1."""
    low_freq_factor: float | None = Field(None, gt=0)
    """llama3: pairs that turn less often over a training text are divided by factor."""
    high_freq_factor: float | None = Field(None, gt=0)
    """llama3: pairs that turn more often over a training text are kept."""

    @model_validator(mode="after")
    def _check(self) -> RopeScaling:
        # every kind needs its own keys, and has none of another kind
        kind = self.rope_type
        keys = KEYS[kind]
        for other_kind in reversed(KEYS):
            for key in KEYS[other_kind]:
                value = getattr(self, key)
                if key in keys and value is None and key != "attention_factor":
                    raise ValueError(f"{kind} needs {key}")
                if key not in keys and value != RopeScaling.model_fields[key].default:
                    remedy = f"leave it out, or use rope_type: {other_kind}"
                    raise ValueError(f"{kind} has no {key}: {remedy}")
        for low_key, high_key in (
            ("beta_slow", "beta_fast"),
            ("low_freq_factor", "high_freq_factor"),
        ):
            if low_key in keys:
                low = getattr(self, low_key)
                high = getattr(self, high_key)
                if high <= low:
                    raise ValueError(f"{high_key} ({high}) must be above {low_key} ({low})")
        return self

    def written(self) -> dict[str, Any]:
        """Return the keys of this kind that have a value, for config.json."""
        keys = {"rope_type", "factor", *KEYS[self.rope_type]}
        return self.model_dump(include=keys, exclude_none=True)


def resolve_layers(values: dict[str, Any]) -> None:
    """Repeat layer_types and no_rope_layers for all layers. Raises ValueError."""
    # without layer_types, a window is in all layers
    window = values["sliding_window"]
    if values["layer_types"] is None:
        values["layer_types"] = ["full_attention" if window is None else "sliding_attention"]
    layers = values["num_hidden_layers"]
    for key in ("layer_types", "no_rope_layers"):
        pattern = values[key]
        if pattern is None:
            continue
        if not pattern or layers % len(pattern):
            raise ValueError(
                f"{key} has {len(pattern)} entries for {layers} layers: give a pattern whose "
                "length divides that"
            )
        values[key] = pattern * (layers // len(pattern))
    rotates = values["no_rope_layers"]
    if rotates is not None and not any(rotates):
        remedy = "use position_embedding: none"
        raise ValueError(f"no_rope_layers leaves no layer with RoPE: {remedy}")
    if rotates is not None and all(rotates):
        values["no_rope_layers"] = None  # as without this key
    slides = "sliding_attention" in values["layer_types"]
    if slides and window is None:
        raise ValueError("layer_types has sliding_attention: set sliding_window")
    if window is not None and not slides:
        raise ValueError("sliding_window is set, but no layer is of sliding_attention")


def resolve_latent(values: dict[str, Any], is_set: Set[str]) -> None:
    """Fill in the sizes of latent attention. is_set: the keys of the user. Raises ValueError."""
    # DeepSeek-V2 (arXiv 2405.04434): a latent as large as 4 heads, and RoPE for half a head
    head = values["head_dim"]
    nope = values["qk_nope_head_dim"]
    rotary = values["qk_rope_head_dim"]
    if rotary is None:
        rotary = max(2, head // 4 * 2) if nope is None else head - nope
    if nope is None:
        nope = head - rotary
    if nope < 1 or nope + rotary != head or rotary < 1:
        raise ValueError(
            f"head_dim ({head}) must be qk_nope_head_dim ({nope}) + qk_rope_head_dim ({rotary}), "
            "both above 0: leave one of the three out"
        )
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
    # Its default is for Attention. Only a value of the user is an error below.
    if "qk_norm" not in is_set:
        values["qk_norm"] = False
    # what LatentAttention does not build
    heads = values["num_attention_heads"]
    for key, required, reason in (
        ("qk_norm", False, "normalises its latents instead"),
        ("scale_attn_weights", True, "always divides its scores"),
        ("qkv_bias", False, "has the biases of attention_bias only"),
        ("num_key_value_heads", heads, "makes keys and values for every head"),
        ("kv_sharing", "both", "makes keys and values for every head"),
        ("smear_keys", False, "makes its keys from a latent"),
        ("initialization", "random", "has no matrix of keys that could equal the queries"),
    ):
        if values[key] != required:
            remedy = f"set {key}: {str(required).lower()}"
            raise ValueError(f"{key} ({values[key]}): attention: mla {reason}: {remedy}")


def resolve_experts(values: dict[str, Any]) -> None:
    """Fill in the width of an expert: a token costs as much as without. Raises ValueError."""
    chosen = values["num_experts_per_tok"]
    count = values["num_experts"]
    if values["moe_intermediate_size"] is None:
        width = values["intermediate_size"] or 0
        # the experts of a token are together as wide as the part that they replace
        groups = -(-width // (EXPERT_MULTIPLE * chosen))  # rounded up
        values["moe_intermediate_size"] = groups * EXPERT_MULTIPLE
    if not values["gated_mlp"] or values["mlp_bias"]:
        raise ValueError("experts have a gate and no bias: set gated_mlp=true and mlp_bias=false")
    if chosen > count:
        raise ValueError(f"num_experts_per_tok ({chosen}) must not be above num_experts ({count})")
    for key in ("hidden_size", "moe_intermediate_size"):
        size = values[key]
        if size % EXPERT_MULTIPLE:
            more = -(-size // EXPERT_MULTIPLE) * EXPERT_MULTIPLE
            remedy = f"a multiple of {EXPERT_MULTIPLE} in a model with experts: use {more}"
            raise ValueError(f"{key} ({size}) must be {remedy}")
