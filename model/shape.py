"""What follows from a shape: the toggle as a number, a pattern for every layer, numbers that a message can offer."""

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


def is_int(value: Any, most: int) -> bool:
    """Whether it is a whole number from 1 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most


def divisors(number: int) -> list[int]:
    """All of them, 1 and the number included."""
    return [d for d in range(1, number + 1) if number % d == 0]


def any_of(numbers: list[int]) -> str:
    """In words: "1, 2 or 4"."""
    *first, last = [str(n) for n in numbers]
    return f"{', '.join(first)} or {last}" if first else last
