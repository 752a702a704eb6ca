"""Wrong values, JSON with one thing wrong in it, and damaged bytes, as hypothesis draws them."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

WRONG = {
    "a string": "eight",
    "a number as a string": "8",
    "null": None,
    "true": True,
    "a fraction": 1.5,
    "a list": [1],
    "an object": {"a": 1},
    "-1": -1,
    "0": 0,
    "10**30": 10**30,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "escape characters": "\x1b[2J\x07\ud800",
}


def drawn(count: int) -> settings:
    """This many examples, the same ones in every run."""
    return settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """A copy with one value, anywhere in it, replaced, removed, put into a list or taken from
    another place.
    """
    value = copy.deepcopy(value)
    places = list(_places(value))
    (inside, key), (other, place) = (places[draw(st.integers(0, len(places) - 1))] for _ in range(2))
    changed = draw(st.sampled_from(["wrong", "wrong", "removed", "wrapped", "swapped"]))
    if changed == "removed":
        del inside[key]
    elif changed == "wrong":
        inside[key] = draw(st.sampled_from(list(WRONG.values())))
    else:
        inside[key] = [inside[key]] if changed == "wrapped" else copy.deepcopy(other[place])
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key), each kind of long list or object by a few of its entries."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in [*keys[:12], *keys[-2:]] if len(keys) > 14 else keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


@st.composite
def damaged(draw: st.DrawFn, raw: bytes) -> bytes:
    """These bytes cut off, repeated, with others in them, packed, empty, or with a bit flipped."""
    at = draw(st.integers(0, len(raw)))
    flipped = raw[:at] + bytes(byte ^ 1 << at % 8 for byte in raw[at : at + 1]) + raw[at + 1 :]
    others = raw[:at] + b"\xff\x00\xfe" + raw[at:]
    return draw(st.sampled_from([flipped, raw[:at], others, raw + raw, b"\0" * at, gzip.compress(raw, mtime=0), b""]))
