"""The sizes of multi-head latent attention: what follows from head_dim, and which keys of a config go together.

    head_dim   =  qk_nope_head_dim + qk_rope_head_dim        size of a query and of a key
    v_head_dim                                               size of a value
    the cache  =  kv_lora_rank + qk_rope_head_dim            numbers per token and layer

DeepSeek-V2 (arXiv 2405.04434) takes kv_lora_rank = 4 and qk_rope_head_dim = 1/2 of a head. model/latent_attention.py
is the lesson.
"""

from __future__ import annotations

from typing import Any

SIZES = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def resolve_latent(values: dict[str, Any], hidden_size: int, heads: int) -> dict[str, Any]:
    """The values of a config with attention: mla, with every size written out that follows from others.

    What is not a whole number stays: the fields' own checks report it. Raises ValueError for a part of a head
    that is as large as the head.
    """
    head, nope, rotary = (values.get(key) for key in ("head_dim", "qk_nope_head_dim", "qk_rope_head_dim"))
    if any(size is not None and type(size) is not int for size in (head, nope, rotary)):
        return values
    if head is None and nope is not None and rotary is not None:
        head = nope + rotary
    elif head is None:
        if hidden_size % heads:
            return values  # num_attention_heads must divide hidden_size: ModelConfig says so
        head = hidden_size // heads
    for key, part in (("qk_nope_head_dim", nope), ("qk_rope_head_dim", rotary)):
        if part is not None and part >= head:
            raise ValueError(f"{key} ({part}) is a part of head_dim ({head}): make it smaller, or head_dim larger")
    if rotary is None:
        rotary = head - nope if nope is not None else max(2, head // 4 * 2)
    found = {
        "head_dim": head,
        "kv_lora_rank": max(1, min(4 * head, hidden_size // 2)),
        "qk_nope_head_dim": head - rotary if nope is None else nope,
        "qk_rope_head_dim": rotary,
        "v_head_dim": head,
        "rope_interleave": True,
        "qk_norm": False,
    }
    return values | {key: value for key, value in found.items() if values.get(key) is None}


def wrong_latent(config: Any) -> str | None:
    """Which keys of a ModelConfig (whose file reads this one) do not go together, and what to do; None if they do."""
    if config.attention == "heads":
        unused = [key for key in (*SIZES, "rope_interleave") if getattr(config, key) is not None]
        return f"{unused[0]} is a key of attention: mla: set attention: mla, or leave it out" if unused else None
    if config.qk_norm:
        return "attention: mla normalises its latents and has no QK-norm: set qk_norm: false"
    if not config.scale_attn_weights:
        return "attention: mla always divides its scores: leave scale_attn_weights out"
    if config.qkv_bias:
        return "attention: mla has no qkv_bias: leave it out, or set attention_bias: true"
    if config.kv_heads != config.num_attention_heads:
        return (
            f"num_key_value_heads ({config.kv_heads}): attention: mla makes keys and values for every one of the "
            f"{config.num_attention_heads} heads: set num_key_value_heads: mha"
        )
    nope, rotary = config.qk_nope_head_dim or 0, config.rotary_size
    if nope + rotary != config.head_size:
        return (
            f"head_dim ({config.head_size}) must be qk_nope_head_dim ({nope}) + qk_rope_head_dim ({rotary}): "
            "leave one of the three out"
        )
    if rotary % 2:
        return f"qk_rope_head_dim ({rotary}) must be even, because RoPE rotates pairs: use {rotary + 1}"
    return None
