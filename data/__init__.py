"""What does it read? Text in, batches out: this room never sees a network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data.config import DataConfig as DataConfig
    from data.tokenizer import Tokenizer as Tokenizer
    from data.tokenizer import load_tokenizer as load_tokenizer

HOMES = {"DataConfig": "data.config", "Tokenizer": "data.tokenizer", "load_tokenizer": "data.tokenizer"}


def __getattr__(name: str) -> Any:
    """What the room offers, imported when it is asked for: `python -m data.tokenizer` must not find itself imported."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)
