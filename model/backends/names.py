"""What the ways to compute attention are called in a config, and which of the names a user is offered."""

from __future__ import annotations

from typing import Any, Literal, get_args

AttentionImplementation = Literal[
    "auto", "eager", "flash", "flex",
    "flash3", "flash4", "sdpa", "sdpa_efficient", "sdpa_cudnn", "sdpa_math", "blocked", "varlen",
]  # fmt: skip
EVERYDAY = get_args(AttentionImplementation)[:4]  # what a user is offered; docs/attention.md explains the others
NO_SUCH_BACKEND = f"must be {', '.join(EVERYDAY[:-1])} or {EVERYDAY[-1]} (docs/attention.md has the others)"


def offer_everyday(schema: dict[str, Any]) -> None:
    """An editor offers the everyday names, and takes the others as well."""
    others = [name for name in schema.pop("enum") if name not in EVERYDAY]
    del schema["type"]
    other = {"type": "string", "pattern": f"^({'|'.join(others)})$", "description": "one of the others"}
    schema["anyOf"] = [{"type": "string", "enum": list(EVERYDAY)}, other]
