"""What follows from other keys where a config leaves one open? Sizes of heads, and lists with an entry a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.sizes.experts import expert_width
from model.sizes.latent import resolve_latent
from model.sizes.shape import any_of, is_int, kv_heads_of, repeated


def written_out(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config with every key written out that follows from others, as a resolved config shows them.

    defaults: of the keys that are not given. A value out of range stays: the fields' own checks report it.
    Raises ValueError, with the remedy, where nothing follows.
    """
    values = dict(given)
    hidden, heads, layers, kv_heads = (
        values.get(key, defaults[key])
        for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads")
    )
    if not (is_int(hidden) and is_int(heads)):
        return values
    if values.get("attention") == "mla":
        values = resolve_latent(values, hidden, heads)
    if values.get("head_dim") is None:
        values["head_dim"] = _head_size(hidden, heads)
    if values.get("intermediate_size") is None:
        gated = values.get("gated_mlp", defaults["gated_mlp"])
        values["intermediate_size"] = -(-hidden * 8 // (3 * 32)) * 32 if gated else 4 * hidden
    expert_width(values)
    values["num_key_value_heads"] = kv_heads_of(kv_heads, heads)
    if is_int(layers) and layers <= 10_000:  # more are refused by the field
        _write_out_layers(values, layers)
    return values


def _head_size(hidden: int, heads: int) -> int:
    if hidden % heads:
        near = [h for h in range(1, min(hidden, 4 * heads) + 1) if hidden % h == 0]
        best = sorted(near, key=lambda h: abs(h - heads))[:3]
        raise ValueError(
            f"num_attention_heads ({heads}) must divide hidden_size ({hidden}): "
            f"use {any_of(sorted(best))}, or set head_dim"
        )
    return hidden // heads


def _write_out_layers(values: dict[str, Any], layers: int) -> None:
    """The kind of every layer, and which rotate."""
    kinds = values.get("layer_types")
    if kinds is None:
        kinds = ["full_attention" if values.get("sliding_window") is None else "sliding_attention"]
    values["layer_types"] = repeated(kinds, layers)
    rotates = repeated(values.get("no_rope_layers"), layers)
    values["no_rope_layers"] = None if rotates == [1] * layers else rotates  # all of them: as without this key
