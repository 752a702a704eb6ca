"""Read an answer, token by token: its thoughts, its text and its tool calls."""

import itertools
import json
from collections.abc import Sequence
from typing import NamedTuple

from data.chat import THINK
from data.reading.messages import Message, read_calls
from data.tokenizer import Tokenizer

THINK_END = "</think>"
CALL = "<tool_call>"
CALL_END = "</tool_call>"
# This many line ends after a mark belong to it.
LINE_ENDS = {THINK: 1, THINK_END: 2}


class TextStream:
    """Decode ids one by one: `add` each, then `end`. The pieces joined are `decode(ids)`."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        # A character may take several tokens, so ids wait in `_new` until it is whole. They are
        # decoded after the ids before, because a tokenizer may drop the space at the beginning.
        self._before: list[int] = []
        self._new: list[int] = []

    def add(self, token: int) -> str:
        """Add a token; return the new whole characters, "" for a special token."""
        if token in self.tokenizer.special_ids:
            return ""
        self._new.append(token)
        text = self.end()
        # the first bytes of a character
        if not text or text.endswith("\ufffd"):
            return ""
        self._before = self._new
        self._new = []
        return text

    def end(self) -> str:
        """Return the rest after the last token: replacement characters for half a character."""
        if not self._new:
            return ""
        # decode both and cut: the text of new ids alone may lack the space in front of it
        length = len(self.tokenizer.decode(self._before))
        return self.tokenizer.decode([*self._before, *self._new])[length:]


class Delta(NamedTuple):
    """New text of an answer."""

    reasoning_content: str
    content: str


class Reply:
    """An answer, token by token: `add` each, without the one that ends the turn, then `end`.

        <think>⏎Six sevens.⏎</think>⏎⏎Let me see.⏎<tool_call>⏎{"name": …}⏎</tool_call><|im_end|>
                 reasoning_content      content                calls

    - prompt: the ids before the answer; they may have begun the thoughts.
    - stops: texts at which the content ends; they are not part of it.
    - tools: take calls out of the content.
    - is_chat: False for a text's continuation, which is all content.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        *,
        stops: Sequence[str] = (),
        tools: bool = False,
        is_chat: bool = True,
    ):
        self.tokenizer = tokenizer
        self.stops = stops
        self.tools = tools
        self.ids: list[int] = []
        # the text of each whole call, and {"name": …, "arguments": JSON text} of the valid ones
        self.calls: list[str] = []
        self.tool_calls: list[dict[str, str]] = []
        self.reasoning_content = ""
        self.content = ""
        # one of `stops` was met
        self.stopped = False
        self._text = TextStream(tokenizer)
        # the text of a call that has begun
        self._call: str | None = None
        # the characters of thoughts and content that were returned
        self._returned = [0, 0]
        # parts begin at the ids of special tokens, which no text can have
        self._marks: dict[int, str] = {}
        for mark in (THINK, THINK_END, CALL, CALL_END) if is_chat else ():
            token = tokenizer.backend.token_to_id(mark)
            # foreign models lack some
            if token is not None:
                self._marks[token] = mark

        # after <think>, the answer begins in the thoughts
        special = tokenizer.special_ids | self._marks.keys()
        # the newest special token of the prompt decides in which part an answer begins
        rest = [*itertools.takewhile(lambda token: token not in special, reversed(prompt))]
        opening = prompt[-len(rest) - 1] if len(rest) < len(prompt) else -1
        mark = self._marks.get(opening, "")
        self.thinking = mark == THINK
        self._has_thoughts = self.thinking
        # this many of the next line ends belong to the mark before them
        self._line_ends = 0
        after = tokenizer.decode(rest[::-1])
        if not after.strip("\n"):
            self._line_ends = max(0, LINE_ENDS.get(mark, 0) - len(after))

    @property
    def message(self) -> Message:
        """The answer as a message that can be rendered."""
        calls = tuple(self.tool_calls)
        return Message("assistant", self.content, self.reasoning_content, calls)

    def add(self, token: int) -> Delta:
        """Add a token; return the text that is certain now."""
        self.ids.append(token)
        if self.stopped:
            return Delta("", "")
        if token in self._marks:
            self._write(self._text.end())
            self._text = TextStream(self.tokenizer)
            self._write_mark(self._marks[token])
        else:
            self._write(self._text.add(token))
        return self._new(is_end=False)

    def end(self) -> Delta:
        """Return the rest after the last token."""
        if self.stopped:
            return Delta("", "")
        self._write(self._text.end())
        # a call that was cut
        if self._call is not None:
            self.content += CALL + self._call
        return self._new(is_end=True)

    def _write(self, text: str) -> None:
        # to the part that is open; line ends after a mark belong to the mark
        while self._line_ends and text.startswith("\n"):
            text = text[1:]
            self._line_ends -= 1
        if text:
            self._line_ends = 0
        if self.thinking:
            self.reasoning_content += text
        elif self._call is not None:
            self._call += text
        else:
            self.content += text

    def _write_mark(self, mark: str) -> None:
        # a mark begins another part; in a wrong place it is text, as is a call that is not valid
        has_begun = (
            self._has_thoughts or self.content.strip() or self.calls or self._call is not None
        )
        self._line_ends = 0
        if mark == THINK and not has_begun:
            self.thinking = True
            self._has_thoughts = True
            self._line_ends = LINE_ENDS[mark]
        elif mark == THINK_END and self.thinking:
            self.thinking = False
            self._line_ends = LINE_ENDS[mark]
            self.reasoning_content = self.reasoning_content.removesuffix("\n")
        elif mark == CALL and self.tools and not self.thinking:
            if self._call is not None:
                self.content += CALL + self._call
            self._call = ""
        elif mark == CALL_END and self._call is not None:
            call = self._call
            self._call = None
            self.calls.append(call.strip())
            try:
                self.tool_calls.append(read_call(call))
                # a line end separates content and calls
                self.content = self.content.removesuffix("\n")
            except (ValueError, RecursionError):
                self.content += CALL + call + CALL_END
        else:
            self._write(mark)

    def _new(self, is_end: bool) -> Delta:
        # text that is certain and was not returned yet
        begins = self._returned
        for stop in self.stops:
            at = self.content.find(stop, max(0, begins[1] - len(stop) + 1))
            if at >= 0:
                self.content = self.content[:at]
                self.stopped = True
        ends = [len(self.reasoning_content), len(self.content)]
        # a line end belongs to the special token after it, if there is one
        if not is_end and self.thinking and self.reasoning_content.endswith("\n"):
            ends[0] -= 1
        if not is_end and not self.stopped:
            # hold back what may turn out to be a line end before a call, or the beginning of a stop
            uncertain = [int(self.tools and self.content.endswith("\n"))]
            # a stop may have begun
            for stop in self.stops:
                uncertain += [n for n in range(1, len(stop)) if self.content.endswith(stop[:n])]
            ends[1] -= max(uncertain)
        self._returned = [max(*lengths) for lengths in zip(begins, ends, strict=True)]
        reasoning = self.reasoning_content[begins[0] : ends[0]]
        return Delta(reasoning, self.content[begins[1] : ends[1]])


def read_reply(
    tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = (), *, tools: bool = False
) -> Reply:
    """Read a whole answer, up to the token that ends its turn."""
    reply = Reply(tokenizer, prompt, tools=tools)
    stops = tokenizer.stop_ids
    for token in itertools.takewhile(lambda token: token not in stops, ids):
        reply.add(token)
    reply.end()
    return reply


def read_call(text: str) -> dict[str, str]:
    """Read a tool call: {"name": …, "arguments": JSON text}. Raises ValueError."""
    text = text.strip()
    (call,) = read_calls([json.loads(text)])
    name = call["name"]
    arguments = call["arguments"]
    if isinstance(arguments, str):
        return {"name": name, "arguments": arguments}
    # the arguments keep their spelling, so that rendering the call gives the same text
    prefix = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    spelled = text.removeprefix(prefix)[:-1]
    try:
        json.loads(spelled)
    except ValueError:
        # the call has another form than the chat template's
        spelled = json.dumps(arguments, ensure_ascii=False)
    return {"name": name, "arguments": spelled}
