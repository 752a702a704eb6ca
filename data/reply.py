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
        self.stopped = False
        self._text, self._parts = TextStream(tokenizer), [""]  # texts, with marks between them
        self._given = (0, 0)  # characters of the thoughts and of the content
        self._free = 0  # characters of the content of the first `least` tokens, in which no stop ends
        last = next(
            (at for at in reversed(range(len(prompt))) if prompt[at] in {*self._marks, *tokenizer.special_ids}), 0
        )
        mark = self._marks.get(prompt[last]) if prompt else None
        self.thinking = self._thought_first = mark == THINK
        # line ends that belong to the prompt's special token; the answer may still bring them
        after, wanted = tokenizer.decode(prompt[last + 1 :]), {THINK: 1, THINK_END: 2}.get(mark or "", 0)
        self._line_ends = 0 if after.strip("\n") else max(0, wanted - len(after))

    @property
    def message(self) -> Message:
        """The answer as a message that data/chat.py renders."""
        return Message("assistant", self.content, self.reasoning_content, tuple(self.tool_calls))

    def add(self, token: int) -> Delta:
        """The next token -> what is certain by now and was not given yet."""
        self.ids.append(token)
        mark = self._marks.get(token)
        self._parts[-1] += self._text.add(token) if mark is None else self._text.end()
        if mark is not None:
            self._text = TextStream(self.tokenizer)
            self._parts += [mark, ""]
        return self._read(is_end=False)

    def end(self) -> Delta:
        """The rest, when no more tokens come."""
        self._parts[-1] += self._text.end()
        return self._read(is_end=True)

    def _read(self, is_end: bool) -> Delta:
        """Take all that was written so far apart, from the beginning: a mark begins or ends a part; where it can do
        neither, it is text."""
        if self.stopped:
            return Delta("", "")
        thinking, line_ends, reasoning, content = self._thought_first, self._line_ends, "", ""
        calls, readable, call = list[str](), list[dict[str, str]](), None
        for number, part in enumerate([*self._parts, *["end"] * is_end]):
            mark = part if number % 2 else ""
            if mark == THINK and not (thinking or reasoning or content.strip() or calls):
                thinking, line_ends = True, 1
            elif mark == THINK_END and thinking:
                thinking, line_ends, reasoning = False, 2, reasoning.removesuffix("\n")
            elif mark == CALL and self.tools and not thinking:
                content += "" if call is None else CALL + call
                call, line_ends = "", 0
            elif mark == CALL_END and call is not None:
                calls.append(call.strip())
                try:
                    readable.append(read_call(call))
                    content = content.removesuffix("\n")  # it stands between the content, or a call, and the next one
                except (ValueError, RecursionError):
                    content += CALL + call + CALL_END
                call = None
            elif mark == "end":
                content += "" if call is None else CALL + call
            else:
                begin = min(line_ends, len(part) - len(part.lstrip("\n")))
                line_ends = 0 if part[begin:] else line_ends - begin
                if thinking:
                    reasoning += part[begin:]
                elif call is not None:
                    call += part[begin:]
                else:
                    content += part[begin:]
            places = [content.find(stop, max(0, self._free - len(stop) + 1)) for stop in self.stops]
            if len(self.ids) > self.least and max(places, default=-1) >= 0:
                content, self.stopped = content[: min(at for at in places if at >= 0)], True
                break
        if len(self.ids) <= self.least:
            self._free = len(content)
        self.thinking, self.reasoning_content, self.content = thinking, reasoning, content
        self.calls, self.tool_calls = calls, readable
        thoughts_end, content_end = len(reasoning), len(content)
        if not is_end:  # a line end, if the part ends here, belongs to the special token; a stop may have begun
            begun = (n for stop in self.stops for n in range(1, len(stop)) if content.endswith(stop[:n]))
            thoughts_end -= thinking and reasoning.endswith("\n")
            content_end -= 0 if self.stopped else max(begun, default=int(self.tools and content.endswith("\n")))
        given = self._given
        self._given = (max(given[0], thoughts_end), max(given[1], content_end))
        return Delta(reasoning[given[0] : thoughts_end], content[given[1] : content_end])


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
