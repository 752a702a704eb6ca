"""Token ids become text piece by piece: whole characters only, and nothing of a stop text or of a tool call."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from data.tokenizer import Tokenizer
from eval.tools.calls import calls_in

CALL = "<tool_call>"


class Piecewise:
    """The text of one answer. `add` each token; what it returns may be shown at once. `end` gives what was held back.

    stops: texts at which the answer ends; they are not part of it. has_tools: tool calls are kept out of the text.
    stopped: whether one of the stops was met.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), has_tools: bool = False):
        self.tokenizer, self.stops = tokenizer, stops
        self.call = tokenizer.backend.token_to_id(CALL) if has_tools else None
        self.ids: list[int] = []
        self.text = ""
        self.shown = 0
        self.stopped = False

    def add(self, token: int) -> str:
        """The next token -> the text that is certain by now and was not returned yet."""
        self.ids.append(token)
        said = self.ids[: self.ids.index(self.call)] if self.call in self.ids else self.ids
        text = self.tokenizer.decode(said)
        met = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if met:
            text, self.stopped = text[: min(met)], True
        self.text = text
        whole = text if self.stopped else text.rstrip("\ufffd")  # a character may take several tokens
        certain = len(whole) if self.stopped else len(whole) - self._begun(whole)
        piece = text[self.shown : certain]
        self.shown = max(self.shown, certain)
        return piece

    def _begun(self, text: str) -> int:
        """Characters at the end of a text that may be the beginning of a stop."""
        longest = (min(len(stop) - 1, len(text)) for stop in self.stops)
        ends = (
            n
            for stop, most in zip(self.stops, longest, strict=True)
            for n in range(most, 0, -1)
            if text.endswith(stop[:n])
        )
        return max(ends, default=0)

    def end(self) -> str:
        """The rest of the text, when no more tokens come."""
        rest, self.shown = self.text[self.shown :], len(self.text)
        return rest

    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls in the answer, in OpenAI's form; a call that is cut, or not JSON with a name, is left out."""
        calls = []
        for text in calls_in(self.tokenizer, self.ids) if self.call in self.ids else ():
            try:
                call = json.loads(text)
                function = {"name": str(call["name"]), "arguments": json.dumps(call.get("arguments", {}))}
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
            calls.append({"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function})
        return calls
