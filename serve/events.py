"""Server-sent events: an answer piece by piece, as browsers and OpenAI's clients read it."""

from __future__ import annotations

import json
from typing import Any


def event(body: dict[str, Any]) -> str:
    """One event: JSON has no line end of its own."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
