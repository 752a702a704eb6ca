"""Token ids become text piece by piece: whole characters only, and nothing of a stop text or of a tool call."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from data.text_stream import TextStream
from data.tokenizer import Tokenizer
from eval.tools.calls import calls_in

CALL = "<tool_call>"


class Piecewise:
    """The text of one answer. `add` each token; what it returns may be shown at once. `end` gives what was held back.

    stops: texts at which the answer ends, once it has more than `least` tokens; they are not part of it.
    has_tools: tool calls are kept out of the text.
    stopped: whether one of the stops was met. called: whether a tool call began.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), has_tools: bool = False, least: int = 0):
        self.tokenizer, self.stops, self.least = tokenizer, stops, least
        self.call = tokenizer.backend.token_to_id(CALL) if has_tools else None
        self.decoded, self.ids = TextStream(tokenizer), list[int]()
        self.text = ""
        self.shown = 0
        self.called = self.stopped = False

    def add(self, token: int) -> str:
        """The next token -> the text that is certain by now and was not returned yet."""
        self.ids.append(token)
        self.called = self.called or token == self.call
        if not self.called:
            self._lengthen(self.decoded.add(token))
        return self._up_to(len(self.text) - (0 if self.stopped else self._begun()))

    def end(self) -> str:
        """The rest of the text, when no more tokens come."""
        if not self.stopped:
            self._lengthen(self.decoded.end())
        return self._up_to(len(self.text))

    def _lengthen(self, piece: str) -> None:
        """A stop may have begun before the piece, and ends in it."""
        old, self.text = len(self.text), self.text + piece
        stops = self.stops if len(self.ids) > self.least else ()
        met = [at for stop in stops if (at := self.text.find(stop, max(0, old - len(stop) + 1))) >= 0]
        if met:
            self.text, self.stopped = self.text[: min(met)], True

    def _up_to(self, certain: int) -> str:
        piece = self.text[self.shown : certain]
        self.shown = max(self.shown, certain)
        return piece

    def _begun(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop."""
        ends = (n for stop in self.stops for n in range(1, len(stop)) if self.text.endswith(stop[:n]))
        return max(ends, default=0)

    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls in the answer, in OpenAI's form; a call that is cut, or not JSON with a name, is left out."""
        calls = []
        for text in calls_in(self.tokenizer, self.ids) if self.called else ():
            try:
                call = json.loads(text)
                function = {"name": str(call["name"]), "arguments": json.dumps(call.get("arguments", {}))}
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
            calls.append({"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function})
        return calls
