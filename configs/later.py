"""How does `from model import load` not make every command wait for torch? Names are imported when they are used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def imported_later(room: str, places: dict[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a room. places: for each name, the module that has it."""

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        setattr(sys.modules[room], name, value)
        return value

    return get
