"""Conversations -> token ids, and which of them are trained on; and an answer's ids -> thoughts, text and tool calls.

    <|bos|><|im_start|>user⏎Hi!<|im_end|>⏎<|im_start|>assistant⏎Hello!<|im_end|>⏎
                                                                ~~~~~~~~~~~~~~~~      trained on

A chat template writes the text, and it is encoded once. Training uses our own template (chat_template.jinja); a prompt
is written by the template that the model brings.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from data.chat_template import CHAT_TEMPLATE, PRIVATE, ChatTemplate, Piece
from data.reading.messages import BadRecord, Message, read_calls
from data.reading.pairs import Pair
from data.reading.records import Conversation, checked_conversation
from data.tokenizer import ROLES, SPECIAL_TOKENS, Tokenizer

TRAINED, MAY_END = 1, 2  # flags of a token: it is a target; a conversation may be cut after it
OURS = ChatTemplate({"default": CHAT_TEMPLATE}, ROLES, SPECIAL_TOKENS)
THINK, THINK_END, CALL, CALL_END = "<think>", "</think>", "<tool_call>", "</tool_call>"
# The special tokens of an answer, each as one letter that no text can hold: half a surrogate pair
LETTERS = {THINK: "\ud800", THINK_END: "\ud801", CALL: "\ud802", CALL_END: "\ud803"}
T, T_END, C, C_END = LETTERS.values()
CLOSED = "\ud804"  # stands before an answer to a prompt that ends with </think>
AS_TEXT = str.maketrans({letter: mark for mark, letter in LETTERS.items()})


class Segment(NamedTuple):
    """A piece of the rendered text. special: it is one special token; otherwise it is plain text, whatever it looks
    like. flags: TRAINED holds for all its tokens, MAY_END only for the last one."""

    text: str
    special: bool
    flags: int
    joint: bool = True  # no token reaches across its end; the parts of an answer have the tokens of the whole


def segments(conversation: Conversation, chat: ChatTemplate = OURS) -> list[Segment]:
    """A conversation as our own template writes it. What the assistant writes is in {% generation %} blocks."""
    answers = [message for message in conversation.messages if message.role == "assistant"]
    result: list[Segment] = []
    before = None
    for text, special, block, _ in _pieces(chat, conversation):
        if block is None:  # the line end behind an answer
            result.append(Segment(text, special, 0 if before is None else MAY_END))
        else:
            answer = answers[block]
            parts = answer.parts if answer.parts and not special else [(text, 1)]
            flags = TRAINED * answer.weight
            result += [Segment(part, special, flags * weight, not answer.parts) for part, weight in parts if part]
        before = block
    return result


def _pieces(
    chat: ChatTemplate,
    conversation: Conversation,
    given: Sequence[Message | dict] = (),
    tools: Sequence[dict] = (),
    **variables: Any,
) -> list[Piece]:
    """A conversation, rendered. given, tools: as somebody gave them, where they may hold more than was checked.

    Where an answer begins, and what follows "<think>⏎", is a piece of its own, as prompts end there. Raises BadRecord.
    """
    tools = tools or conversation.tools
    source = chat.source(tools)
    # where <think> is special, a template cannot see it in a message: thoughts are given apart, if it looks for them
    splits_thoughts = "<think>" in chat.specials and "reasoning_content" in source
    # most templates want arguments as an object; some join them with +, as JSON text; some take both as they come
    takes_both = re.search(r"arguments['\"\]]* is (not )?string", source) is not None
    wanted = None if takes_both else str if re.search(r"arguments['\"\]]* *\+", source) else dict
    messages = []
    for message, raw in zip(conversation.messages, given or conversation.messages, strict=True):
        fields: dict[str, Any] = {"role": message.role, "content": message.content}
        others = raw if isinstance(raw, dict) else {}
        fields |= {name: others[name] for name in ("name", "tool_call_id") if others.get(name) is not None}
        if not splits_thoughts and isinstance(others.get("content"), str):
            fields["content"] = others["content"]
        if message.reasoning_content and (splits_thoughts or fields["content"] == message.content):
            fields["reasoning_content"] = message.reasoning_content
        calls = others.get("tool_calls")
        ids = [call.get("id") for call in calls] if isinstance(calls, list) else [None] * len(message.tool_calls)
        for call, number in zip(message.tool_calls, ids, strict=True):
            arguments = call["arguments"]
            if wanted is dict and isinstance(arguments, str):
                arguments = json.loads(arguments)
            elif wanted is str and isinstance(arguments, dict):
                arguments = json.dumps(arguments, ensure_ascii=False)
            written = {"type": "function", "function": call | {"arguments": arguments}}
            fields.setdefault("tool_calls", []).append(written | ({"id": number} if number else {}))
        messages.append(fields)

    result: list[Piece] = []
    for piece in chat.render(messages, tools, **variables):
        thinks = len(result) > 1 and result[-1].text == "<think>" and result[-2].block is None
        if thinks and piece.block is not None and piece.text.startswith("\n"):
            result.append(piece._replace(text="\n"))
            piece = piece._replace(text=piece.text[1:])
        result.append(piece)
    return [piece for piece in result if piece.text]


def encode_conversations(
    tokenizer: Tokenizer, conversations: Sequence[Conversation]
) -> list[tuple[list[int], np.ndarray]]:
    """(ids, flags) of each conversation; flags is a uint8 array of TRAINED and MAY_END, one per token."""
    rendered = [segments(conversation, tokenizer.our_chat) for conversation in conversations]
    result = []
    for pieces, (ids, piece_of) in zip(rendered, tokenizer.encode_pieces(rendered), strict=True):
        given = np.array([piece.flags for piece in pieces], dtype=np.uint8)
        flags = given[piece_of] & TRAINED
        last = np.searchsorted(piece_of, np.flatnonzero(given & MAY_END), "right") - 1  # of each such piece
        flags[last] |= MAY_END
        result.append((ids.tolist(), flags))
    return result


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[tuple[list[int], np.ndarray]]:
    """(ids, flags) of each pair: those of its chosen conversation, then those of the rejected one.

    Only the answers are marked as trained. An answer that is part of the common prompt is not.
    """
    both = []
    for pair in pairs:
        prompt = tuple(replace(message, weight=0) for message in pair.chosen.messages[: pair.shared])
        for side in (pair.chosen, pair.rejected):
            both.append(Conversation(prompt + side.messages[pair.shared :], side.tools))
    encoded = encode_conversations(tokenizer, both)
    return [(a + b, np.concatenate([c, d])) for (a, c), (b, d) in zip(encoded[::2], encoded[1::2], strict=True)]


def plain_texts(content: str | Conversation | Pair, flag: int = 0) -> list[str]:
    """The text of a document. Of a conversation: what is not special and, if given, has the flag. Of a pair: likewise
    of both answers, and without a flag of the prompt."""
    if isinstance(content, str):
        return [content]
    if isinstance(content, Pair):
        prompt = Conversation(content.chosen.messages[: content.shared], content.chosen.tools)
        answers = [Conversation(side.messages[content.shared :]) for side in (content.chosen, content.rejected)]
        return [text for part in (answers if flag else [prompt, *answers]) for text in plain_texts(part, flag)]
    return [s.text for s in segments(content) if not s.special and s.flags & flag == flag]


def prompt_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message | dict],
    tools: Sequence[dict] = (),
    continued: bool = False,
    **variables: Any,
) -> list[int]:
    """The ids of a conversation up to where the assistant answers, written by the model's own chat template.

    For Headlight's own models they are exactly the ids that precede this answer in training. variables: for the
    template; ours knows enable_thinking, which begins the thoughts. continued: the last message is an answer to be
    continued. Raises BadRecord; InputError for a model that has neither a template nor our special tokens.
    """
    conversation = checked_conversation(messages, tools)
    variables = {"add_generation_prompt": not continued} | variables
    pieces = _pieces(tokenizer.chat, conversation, messages, () if isinstance(tools, str) else tools, **variables)
    if continued:
        if conversation.messages[-1].role != "assistant" or variables.get("enable_thinking"):
            raise BadRecord(
                "only a message of the assistant can be continued, and one that has begun: no enable_thinking"
            )
        end = tokenizer.turn_end and tokenizer.backend.id_to_token(tokenizer.turn_end)
        ends = [at for at, piece in enumerate(pieces) if piece.special and piece.text == end]
        pieces = pieces[: ends[-1]] if ends else pieces  # without the end of its turn
    return _encoded(tokenizer, pieces)


def ids_after_answer(tokenizer: Tokenizer, messages: Sequence[dict] = (), **variables: Any) -> list[int]:
    """What the template writes behind an answer: the end of its turn, which the model writes itself, its line end, and
    these messages. So what was read and written so far keeps its ids. Raises BadRecord."""
    answer = f"{PRIVATE}."
    messages = [{"role": "user", "content": "."}, {"role": "assistant", "content": answer}, *messages]
    pieces = _pieces(tokenizer.chat, checked_conversation(messages), messages, **variables)
    at = next((number for number, piece in enumerate(pieces) if answer in piece.text), None)
    if at is None:
        raise BadRecord("the chat template leaves answers out")
    behind = pieces[at]._replace(text=pieces[at].text.partition(answer)[2])
    return _encoded(tokenizer, [piece for piece in (behind, *pieces[at + 1 :]) if piece.text])


def _encoded(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> list[int]:
    return tokenizer.encode_pieces([pieces])[0][0].tolist()


# ---------------------------------------------------------------------------------------------------------
# the way back


class TextStream:
    """The text of ids that come one after another: `add` each, then `end`; the pieces joined are `decode(ids)`.

    A piece holds whole characters only: a character may take several tokens, and the last of them brings it. So each
    token is decoded with those since the last whole character, and with the ones before that, because a tokenizer may
    drop the space that a text begins with.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._before, self._new = list[int](), list[int]()  # ids that were shown last, and those that wait

    def add(self, token: int) -> str:
        """The next token -> the text that is whole by now and was not given yet; "" for a special token."""
        if token in self.tokenizer.special_ids:
            return ""
        self._new.append(token)
        text = self.end()
        if not text or text.endswith("\ufffd"):  # part of a character
            return ""
        self._before, self._new = self._new, []
        return text

    def end(self) -> str:
        """The rest, when no more tokens come: a character that was begun, as replacement characters."""
        shown, decode = len(self.tokenizer.decode(self._before)), self.tokenizer.decode
        return decode([*self._before, *self._new])[shown:] if self._new else ""


class Delta(NamedTuple):
    """What is new of an answer, and certain."""

    reasoning_content: str
    content: str


class Reply:
    """An answer while its tokens come: `add` each, without the one that ends the turn, then `end`.

        <think>⏎Six sevens.⏎</think>⏎⏎Let me see.⏎<tool_call>⏎{"name": …}⏎</tool_call><|im_end|>
                 reasoning_content      content                calls

    The ids of the special tokens, which no text can have, say where a part begins. A special token that is out of
    place, a call that was cut and one that cannot be read stay in the content, as text.

    reasoning_content, content: all of them so far. ids: all that were added. calls: the text of each whole tool call.
    tool_calls: those that can be read, {"name": …, "arguments": JSON text, as it was written} each.
    thinking: whether thoughts have begun and not ended. stopped: whether one of `stops` was met.

    prompt: the ids before the answer; they may have opened the thoughts. stops: texts at which the content ends; they
    are not part of it. tools: whether calls are taken out of the content.
    is_chat: False for a text's continuation, which is all content.
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
        self.tokenizer, self.stops, self.tools = tokenizer, stops, tools
        ids = {mark: tokenizer.backend.token_to_id(mark) for mark in LETTERS if is_chat}  # foreign models lack some
        self._letters = {token: LETTERS[mark] for mark, token in ids.items() if token is not None}
        self.ids, self.calls, self.tool_calls = list[int](), list[str](), list[dict[str, str]]()
        self.reasoning_content = self.content = ""
        self.stopped = False
        self._text = TextStream(tokenizer)
        self._given = (0, 0)  # characters of the thoughts and of the content
        self._written = ""  # all of the answer, with a letter for a special token; first what the prompt has begun
        special = {*self._letters, *tokenizer.special_ids}
        last = next((at for at in reversed(range(len(prompt))) if prompt[at] in special), None)
        letter = None if last is None else self._letters.get(prompt[last])
        if last is not None and letter in (T, T_END):  # the answer may still bring its line ends
            after, most = tokenizer.decode(prompt[last + 1 :]), 1 if letter == T else 2
            line_ends = "\n" * most if after.strip("\n") else after[:most]
            self._written = (T if letter == T else CLOSED) + line_ends
        self.thinking = letter == T

    @property
    def message(self) -> Message:
        """The answer as a message that can be rendered."""
        return Message("assistant", self.content, self.reasoning_content, tuple(self.tool_calls))

    def add(self, token: int) -> Delta:
        """The next token -> what is certain by now and was not given yet."""
        self.ids.append(token)
        if token in self._letters:
            self._written += self._text.end() + self._letters[token]
            self._text = TextStream(self.tokenizer)
        else:
            self._written += self._text.add(token)
        return self._read(is_end=False)

    def end(self) -> Delta:
        """The rest, when no more tokens come."""
        self._written += self._text.end()
        return self._read(is_end=True)

    def _read(self, is_end: bool) -> Delta:
        """Take all that was written so far apart, from the beginning."""
        if self.stopped:
            return Delta("", "")
        content = re.sub(f"^{CLOSED}\n{{0,2}}", "", self._written)
        reasoning, self.thinking, self.calls, self.tool_calls = "", False, [], []
        if begun := re.match(rf"(\s*){T}\n?", content):  # the line ends beside the marks belong to them
            reasoning, end, rest = content[begun.end() :].partition(T_END)
            self.thinking = not end
            reasoning = reasoning.removesuffix("\n") if end else reasoning
            content = begun[1] + re.sub("^\n{0,2}", "", rest)
        if self.tools:
            content, *others = re.split(f"{C}([^{C}{C_END}]*){C_END}", content)  # text, call, text, …, text
            for call, text in zip(others[::2], others[1::2], strict=True):
                self.calls.append(call.strip().translate(AS_TEXT))
                try:
                    self.tool_calls.append(read_call(call.translate(AS_TEXT)))
                    content = content.removesuffix("\n")  # it stands between the content, or a call, and the next one
                except (ValueError, RecursionError):
                    content += C + call + C_END
                content += text
            last = others[-1] if others else content
            if C in last and not is_end:  # a call has begun, and may yet become one
                content = content[: content.rindex(C)]
        reasoning, content = reasoning.translate(AS_TEXT), content.translate(AS_TEXT)
        if places := [content.index(stop) for stop in self.stops if stop in content]:
            content, self.stopped = content[: min(places)], True
        self.reasoning_content, self.content = reasoning, content
        thoughts_end, content_end = len(reasoning), len(content)
        if not is_end:  # a line end, if the part ends here, belongs to the special token; a stop may have begun
            begun_stops = (n for stop in self.stops for n in range(1, len(stop)) if content.endswith(stop[:n]))
            thoughts_end -= self.thinking and reasoning.endswith("\n")
            content_end -= 0 if self.stopped else max(begun_stops, default=int(self.tools and content.endswith("\n")))
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
    (call,) = read_calls([json.loads(text)])
    name, arguments = call["name"], call["arguments"]
    if not isinstance(arguments, str):
        written = text.removeprefix(f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ')[:-1]
        try:
            json.loads(written)
        except ValueError:  # the call has another form than the chat template's
            written = json.dumps(arguments, ensure_ascii=False)
        arguments = written
    return {"name": name, "arguments": arguments}
