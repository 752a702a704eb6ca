"""What is in an answer? The way back of data/chat.py: an answer's ids -> thoughts, text and tool calls.

    <think>⏎Six sevens.⏎</think>⏎⏎Let me see.⏎<tool_call>⏎{"name": …}⏎</tool_call><|im_end|>
             reasoning_content      content                calls

Whatever the model answered is taken apart here, so that what is compared, shown and sent back is what training had.
The ids of the special tokens, which no text can have, say where a part begins. A special token that is out of place, a
call that was cut and one that cannot be read stay in the content, as text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers.decoders import DecodeStream

from data.reading.records import Message, checked_conversation
from data.tokenizer import Tokenizer

THINK, THINK_END, CALL, CALL_END = MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


class TextStream:
    """The text of ids that come one after another: `add` each, then `end`; the pieces joined are `decode(ids)`.

    ids: all that were added, special tokens too. A piece holds whole characters only: a character may take several
    tokens, and the last of them brings it.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.ids = tokenizer, list[int]()
        self._given = 0  # characters
        self._begin()

    def _begin(self) -> None:
        self._stream = DecodeStream(skip_special_tokens=True)

    def add(self, token: int) -> str:
        """The next token -> the text that is whole by now and was not given yet; "" for a special token."""
        self.ids.append(token)
        if token in self.tokenizer.special_ids:  # the library would keep them until a token with text comes
            return ""
        try:
            piece = self._stream.step(self.tokenizer.backend, token) or ""
        except Exception:  # the library raises nothing more precise; only byte fallback: a byte made older ones invalid
            self._begin()
            self._stream.step(self.tokenizer.backend, token)  # so that the next token is not taken for a text's first
            piece = self.tokenizer.decode(self.ids)[self._given :].rstrip("\ufffd")
        self._given += len(piece)
        return piece

    def end(self) -> str:
        """The rest, when no more tokens come: a character that was begun, as replacement characters."""
        piece = self.tokenizer.decode(self.ids)[self._given :]
        self._given += len(piece)
        return piece


class Delta(NamedTuple):
    """What is new of an answer, and certain."""

    reasoning_content: str
    content: str


class Reply:
    """An answer while its tokens come: `add` each, without the one that ends the turn, then `end`.

    reasoning_content, content: all of them so far. ids: all that were added. calls: the text of each whole tool call.
    tool_calls: those that can be read, {"name": …, "arguments": JSON text, as it was written} each.
    thinking: whether thoughts have begun and not ended. stopped: whether one of `stops` was met.

    prompt: the ids before the answer; they may have opened the thoughts. stops: texts at which the content ends, once
    the answer has more than `least` tokens; they are not part of it. tools: whether calls are taken out of the content.
    is_chat: False for a text's continuation, which is all content.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        *,
        stops: Sequence[str] = (),
        least: int = 0,
        tools: bool = False,
        is_chat: bool = True,
    ):
        self.tokenizer, self.stops, self.least, self.tools = tokenizer, stops, least, tools
        ids = {mark: tokenizer.backend.token_to_id(mark) for mark in MARKS if is_chat}  # a foreign model may have none
        self._marks = {token: mark for mark, token in ids.items() if token is not None}
        self.ids, self.calls, self.tool_calls = list[int](), list[str](), list[dict[str, str]]()
        self.reasoning_content = self.content = ""
        self.thinking = self.stopped = False
        self._call: str | None = None  # the text of the call that has begun
        self._line_ends = 0  # that belong to the special token before, not to what follows
        self._given = (0, 0)  # characters of the thoughts and of the content
        self._text = TextStream(tokenizer)
        marks = self._marks.keys() | tokenizer.special_ids
        last = next((at for at in reversed(range(len(prompt))) if prompt[at] in marks), len(prompt))
        opened = prompt[last:]
        if opened and (mark := self._marks.get(opened[0])) in (THINK, THINK_END):
            self.thinking = mark == THINK_END
            for token in opened:  # the answer may still bring line ends that belong to the special token
                self.add(token)
            self.ids, self.reasoning_content, self.content, self.stopped, self._given = [], "", "", False, (0, 0)
            self._text = TextStream(tokenizer)

    @property
    def message(self) -> Message:
        """The answer as a message that data/chat.py renders."""
        return Message("assistant", self.content, self.reasoning_content, tuple(self.tool_calls))

    def add(self, token: int) -> Delta:
        """The next token -> what is certain by now and was not given yet."""
        self.ids.append(token)
        mark = self._marks.get(token)
        if mark is None:
            self._lengthen(self._text.add(token))
        else:
            self._lengthen(self._text.end())
            self._text = TextStream(self.tokenizer)
            self._meet(mark)
        return self._news(is_end=False)

    def end(self) -> Delta:
        """The rest, when no more tokens come."""
        self._lengthen(self._text.end())
        self._give_up_call()
        return self._news(is_end=True)

    def _meet(self, mark: str) -> None:
        """A special token begins or ends a part; where it can do neither, it is text."""
        if mark == THINK and not (self.thinking or self.reasoning_content or self.content.strip() or self.calls):
            self.thinking, self._line_ends = True, 1
        elif mark == THINK_END and self.thinking:
            self.reasoning_content = self.reasoning_content.removesuffix("\n")
            self.thinking, self._line_ends = False, 2
        elif mark == CALL and self.tools and not (self.thinking or self.stopped):
            self._give_up_call()
            self._call, self._line_ends = "", 0
        elif mark == CALL_END and self._call is not None:
            self._end_call(self._call)
        else:
            self._lengthen(mark)

    def _end_call(self, text: str) -> None:
        self.calls.append(text.strip())
        try:
            self.tool_calls.append(read_call(text))
        except (ValueError, RecursionError):
            self._give_up_call()
            self._lengthen(CALL_END)
        else:
            self._call = None
            self.content = self.content.removesuffix("\n")  # it stands between the content, or a call, and the next one

    def _give_up_call(self) -> None:
        if self._call is not None:
            text, self._call = CALL + self._call, None
            self._lengthen(text)

    def _lengthen(self, piece: str) -> None:
        while self._line_ends and piece.startswith("\n"):
            piece, self._line_ends = piece[1:], self._line_ends - 1
        if not piece or self.stopped:
            return
        self._line_ends = 0
        if self.thinking:
            self.reasoning_content += piece
        elif self._call is not None:
            self._call += piece
        else:
            before, self.content = len(self.content), self.content + piece
            stops = self.stops if len(self.ids) > self.least else ()
            places = [self.content.find(stop, max(0, before - len(stop) + 1)) for stop in stops]
            met = [at for at in places if at >= 0]
            if met:
                self.content, self.stopped = self.content[: min(met)], True

    def _news(self, is_end: bool) -> Delta:
        thoughts, content = len(self.reasoning_content), len(self.content)
        if not is_end:  # a line end, if the part ends here, belongs to the special token; a stop may have begun
            thoughts -= self.thinking and self.reasoning_content.endswith("\n")
            content -= 0 if self.stopped else self._begun()
        given = self._given
        self._given = (max(given[0], thoughts), max(given[1], content))
        return Delta(self.reasoning_content[given[0] : thoughts], self.content[given[1] : content])

    def _begun(self) -> int:
        """Characters at the end of the content that may not belong to it."""
        ends = (n for stop in self.stops for n in range(1, len(stop)) if self.content.endswith(stop[:n]))
        return max(ends, default=int(self.tools and self.content.endswith("\n")))


def read_reply(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = (), *, tools: bool = False) -> Reply:
    """A whole answer, up to the token that ends its turn; see Reply."""
    reply, stops = Reply(tokenizer, prompt, tools=tools), tokenizer.stop_ids
    for token in itertools.takewhile(lambda token: token not in stops, ids):
        reply.add(token)
    reply.end()
    return reply


def read_call(text: str) -> dict[str, str]:
    """The text of a tool call -> {"name": …, "arguments": JSON text}. Raises ValueError, or BadRecord, which is one.

    The arguments keep the letters in which they were written, so that the call is rendered as it was.
    """
    text = text.strip()
    message = {"role": "assistant", "content": "", "tool_calls": [json.loads(text)]}
    ((call,),) = (checked.tool_calls for checked in checked_conversation([message]).messages)
    name, arguments = call["name"], call["arguments"]
    if not isinstance(arguments, str):
        written = text.removeprefix(f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ')[:-1]
        try:
            json.loads(written)
        except ValueError:  # the call has another form than the chat template's
            written = json.dumps(arguments, ensure_ascii=False)
        arguments = written
    return {"name": name, "arguments": arguments}
