"""What follows from a shape, and what does not fit together: the toggle as a number, a pattern for every layer."""

from __future__ import annotations

from typing import Any


def kv_heads_of(toggle: Any, heads: int) -> Any:
    """mha, gqa or mqa as a number of key/value heads; anything else as it is. Raises ValueError if it has no number."""
    if toggle == "gqa":
        if between := divisors(heads)[1:-1]:
            return min(between, key=lambda divisor: (abs(divisor - heads / 4), -divisor))
        raise ValueError(
            f"num_key_value_heads: gqa shares each key/value head among some of the query heads, and {heads} query "
            f"head{'s have' if heads > 1 else ' has'} no divisor between 1 and {heads}: use "
            f"{'mha or mqa' if heads > 1 else 'mha'}, or another num_attention_heads, for example {4 * -(-heads // 4)}"
        )
    if toggle == "mqa" and heads == 1:
        raise ValueError(
            "num_key_value_heads: mqa shares one key/value head among several query heads, and there is 1 query head: "
            "use mha, or more num_attention_heads"
        )
    return {"mha": heads, "mqa": 1}.get(toggle, toggle) if isinstance(toggle, str) else toggle


def repeated(pattern: Any, layers: int) -> Any:
    """A pattern once for each layer, if its length divides their number; anything else as it is."""
    fits = isinstance(pattern, list) and pattern and layers % len(pattern) == 0
    return pattern * (layers // len(pattern)) if fits else pattern


def is_int(value: Any) -> bool:
    """Whether it is a whole number above 0: a value of another kind is for the fields' own checks."""
    return type(value) is int and value > 0


def divisors(number: int) -> list[int]:
    """All of them, 1 and the number included."""
    return [d for d in range(1, number + 1) if number % d == 0]


def any_of(numbers: list[int]) -> str:
    """In words: "1, 2 or 4"."""
    *first, last = [str(n) for n in numbers]
    return f"{', '.join(first)} or {last}" if first else last


def check_heads(config: Any) -> None:
    """config: a ModelConfig. Raises ValueError, with the remedy, for heads that cannot share or cannot be turned."""
    heads, kv_heads, head_dim = config.num_attention_heads, config.kv_heads, config.head_size
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(
            f"num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads}): "
            f"use {any_of(divisors(heads))}"
        )
    if head_dim % 2 and config.attention == "heads" and config.position_embedding == "rope":
        raise ValueError(
            f"head_dim ({head_dim}) must be even, because RoPE rotates pairs: change hidden_size "
            f"({config.hidden_size}) or num_attention_heads ({heads}), or set head_dim to {head_dim + 1}"
        )


def check_windows(config: Any) -> None:
    """config: a ModelConfig. Raises ValueError, with the remedy, where layer_types and sliding_window disagree."""
    types, layers = config.layer_types or [], config.num_hidden_layers
    if len(types) != layers:
        raise ValueError(
            f"layer_types has {len(types)} entries for {layers} layers: give one a layer, or a pattern whose "
            f"length divides {layers}"
        )
    slides = "sliding_attention" in types
    if slides and config.sliding_window is None:
        raise ValueError("layer_types has sliding_attention, so set sliding_window: the tokens such a layer sees")
    if config.sliding_window is not None and not slides:
        raise ValueError(f"sliding_window ({config.sliding_window}) is set, but no layer is of sliding_attention")


def check_positions(config: Any) -> None:
    """config: a ModelConfig. Raises ValueError, with the remedy, for keys about RoPE that do not fit together."""
    rotates, layers = config.no_rope_layers, config.num_hidden_layers
    if config.position_embedding != "rope":
        if set_too := [key for key in ("no_rope_layers", "rope_scaling") if getattr(config, key) is not None]:
            raise ValueError(
                f"{set_too[0]} is for position_embedding: rope, not {config.position_embedding}: leave it out"
            )
    elif rotates is not None and len(rotates) != layers:
        raise ValueError(
            f"no_rope_layers has {len(rotates)} entries for {layers} layers: give one a layer, or a pattern whose "
            f"length divides {layers}"
        )
    elif rotates is not None and not any(rotates):
        raise ValueError("no_rope_layers leaves no layer with RoPE: use position_embedding: none instead")


def check_biases(config: Any) -> None:
    """config: a ModelConfig. Raises ValueError, with the remedy, for two keys that add the same biases."""
    if config.attention_bias and config.qkv_bias:
        raise ValueError("attention_bias has the biases of qkv_bias and one more: set one of them to false")
