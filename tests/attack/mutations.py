"""Wrong values, and JSON with one thing wrong in it, chosen by a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def change_json(file: Path, change: Callable[[Any], Any]) -> None:
    """Replace what a JSON file holds."""
    file.write_text(json.dumps(change(json.loads(file.read_text(encoding="utf-8")))), encoding="utf-8")


def mutated(value: Any, seed: int) -> Any:
    """A copy with one value, anywhere in it, replaced, removed, repeated or taken from another place."""
    draw, value = random.Random(seed), copy.deepcopy(value)
    places = list(_places(value))
    inside, key = draw.choice(places)
    kind = draw.choice(["replace", "replace", "remove", "swap", "wrap"])
    if kind == "remove":
        del inside[key]
    elif kind == "swap":
        other, place = draw.choice(places)
        inside[key] = copy.deepcopy(other[place])
    else:
        inside[key] = [inside[key]] if kind == "wrap" else draw.choice(list(WRONG.values()))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key), each kind of long list or object by a few of its entries."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in [*keys[:12], *keys[-2:]] if len(keys) > 14 else keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
