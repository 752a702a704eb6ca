"""Conversations -> ids and which of them are trained on; an answer's ids -> thoughts, text and calls.

    <|bos|><|im_start|>user⏎Hi!<|im_end|>⏎<|im_start|>assistant⏎Hello!<|im_end|>⏎
                                                                ~~~~~~~~~~~~~~~~      trained on

A chat template writes the text, and it is encoded once. Training uses our own template
(chat_template.jinja); a prompt is written by the template that the model brings.
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

# Flags of a token: it is a target; a conversation may be cut after it.
TRAINED, MAY_END = 1, 2
OURS = ChatTemplate({"default": CHAT_TEMPLATE}, ROLES, SPECIAL_TOKENS)
THINK, THINK_END, CALL, CALL_END = "<think>", "</think>", "<tool_call>", "</tool_call>"
# So many line ends after the mark belong to it.
LINE_ENDS = {THINK: 1, THINK_END: 2}


def segments(conversation: Conversation, chat: ChatTemplate = OURS) -> list[Piece]:
    """Render a conversation by our template, which has answers in {% generation %} blocks."""
    answers = [message for message in conversation.messages if message.role == "assistant"]
    result: list[Piece] = []
    before = None
    for piece in _pieces(chat, conversation):
        if piece.block is None:  # the line end behind an answer
            result.append(piece._replace(flags=0 if before is None else MAY_END))
        else:
            answer = answers[piece.block]
            parts = answer.parts if answer.parts and not piece.special else [(piece.text, 1)]
            for text, weight in parts:
                flags = TRAINED * answer.weight * weight
                result.append(piece._replace(text=text, flags=flags, joint=not answer.parts))
        before = piece.block
    return [piece for piece in result if piece.text]


def _pieces(
    chat: ChatTemplate,
    conversation: Conversation,
    given: Sequence[Message | dict] = (),
    tools: Sequence[dict] = (),
    **variables: Any,
) -> list[Piece]:
    """Render a conversation. Where an answer begins, and what follows "<think>⏎", is a piece of its
    own, as prompts end there.

    given, tools: as a client sent them, where they may hold more than was checked. Raises BadRecord.
    """
    tools = tools or conversation.tools
    source = chat.source(tools)
    # Where <think> is special, a template cannot see it in a message: thoughts are given apart, if
    # it looks for them.
    splits_thoughts = "<think>" in chat.specials and "reasoning_content" in source
    # Most templates want arguments as an object; some join them with +, as JSON text; some take both.
    takes_both = re.search(r"arguments['\"\]]* is (not )?string", source) is not None
    takes_text = not takes_both and re.search(r"arguments['\"\]]* *\+", source) is not None
    messages = []
    for message, raw in zip(conversation.messages, given or conversation.messages, strict=True):
        others = raw if isinstance(raw, dict) else {}
        fields: dict[str, Any] = {"role": message.role, "content": message.content}
        for name in ("name", "tool_call_id"):
            if others.get(name) is not None:
                fields[name] = others[name]
        content = others.get("content")
        if content is not None and not splits_thoughts:
            is_text = isinstance(content, str)
            fields["content"] = content if is_text else "".join(part["text"] for part in content)
        if message.reasoning_content and (splits_thoughts or fields["content"] == message.content):
            fields["reasoning_content"] = message.reasoning_content
        calls = []
        for call in message.tool_calls:
            arguments = call["arguments"]
            if isinstance(arguments, str) and not (takes_both or takes_text):
                arguments = json.loads(arguments)
            elif isinstance(arguments, dict) and takes_text:
                arguments = json.dumps(arguments, ensure_ascii=False)
            calls.append({"type": "function", "function": call | {"arguments": arguments}})
        if isinstance(others.get("tool_calls"), list):
            for call, own in zip(calls, others["tool_calls"], strict=True):
                if own.get("id"):
                    call["id"] = own["id"]
        if calls:
            fields["tool_calls"] = calls
        messages.append(fields)

    result: list[Piece] = []
    for piece in chat.render(messages, tools, **variables):
        has_begun = len(result) > 1 and result[-1].text == THINK and result[-2].block is None
        if has_begun and piece.block is not None and piece.text.startswith("\n"):
            result.append(piece._replace(text="\n"))
            piece = piece._replace(text=piece.text[1:])
        result.append(piece)
    return [piece for piece in result if piece.text]


def encode_conversations(
    tokenizer: Tokenizer, conversations: Sequence[Conversation]
) -> list[tuple[list[int], np.ndarray]]:
    """Return (ids, flags) of each conversation.

    flags is a uint8 array of TRAINED and MAY_END, one per token.
    """
    rendered = [segments(conversation, tokenizer.our_chat) for conversation in conversations]
    result = []
    for pieces, (ids, piece_of) in zip(rendered, tokenizer.encode_pieces(rendered), strict=True):
        piece_flags = np.array([piece.flags for piece in pieces], dtype=np.uint8)
        flags = piece_flags[piece_of] & TRAINED
        ends = np.flatnonzero(piece_flags & MAY_END)
        flags[np.searchsorted(piece_of, ends, "right") - 1] |= MAY_END  # their last tokens
        result.append((ids.tolist(), flags))
    return result


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[tuple[list[int], np.ndarray]]:
    """Return (ids, flags) of each pair: of its chosen conversation, then of the rejected one.

    Only the answers are marked as trained. An answer that is part of the common prompt is not.
    """
    conversations = []
    for pair in pairs:
        prompt = tuple(replace(m, weight=0) for m in pair.chosen.messages[: pair.shared])
        for side in (pair.chosen, pair.rejected):
            messages = prompt + side.messages[pair.shared :]
            conversations.append(Conversation(messages, side.tools))
    encoded = encode_conversations(tokenizer, conversations)
    result = []
    for chosen, rejected in zip(encoded[::2], encoded[1::2], strict=True):
        result.append((chosen[0] + rejected[0], np.concatenate([chosen[1], rejected[1]])))
    return result


def plain_texts(content: str | Conversation | Pair, flag: int = 0) -> list[str]:
    """Return the text of a document.

    Of a conversation: what is not special and has the flag. Of a pair: likewise of both answers, and
    without a flag of the prompt.
    """
    if isinstance(content, str):
        return [content]
    if isinstance(content, Conversation):
        pieces = [piece for piece in segments(content) if not piece.special]
        return [piece.text for piece in pieces if piece.flags & flag == flag]
    chosen, rejected, shared = content.chosen, content.rejected, content.shared
    texts = [] if flag else plain_texts(Conversation(chosen.messages[:shared], chosen.tools))
    for side in (chosen, rejected):
        texts += plain_texts(Conversation(side.messages[shared:]), flag)
    return texts


def prompt_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message | dict],
    tools: Sequence[dict] = (),
    continued: bool = False,
    **variables: Any,
) -> list[int]:
    """Return the ids of a conversation up to where the assistant answers.

    The model's own chat template writes it. For Headlight's own models they are exactly the ids that
    precede this answer in training.

    variables: for the template; ours knows enable_thinking, which begins the thoughts.
    continued: the last message is an answer to be continued.
    Raises BadRecord; InputError for a model that has neither a template nor our special tokens.
    """
    conversation = checked_conversation(messages, tools)
    variables = {"add_generation_prompt": not continued} | variables
    tools = () if isinstance(tools, str) else tools
    pieces = _pieces(tokenizer.chat, conversation, messages, tools, **variables)
    if continued:
        if conversation.messages[-1].role != "assistant" or variables.get("enable_thinking"):
            raise BadRecord("only a message of the assistant can be continued, and without enable_thinking")
        end = tokenizer.turn_end and tokenizer.backend.id_to_token(tokenizer.turn_end)
        ends = [i for i, piece in enumerate(pieces) if piece.special and piece.text == end]
        pieces = pieces[: ends[-1]] if ends else pieces  # without the end of its turn
    return tokenizer.encode_pieces([pieces])[0][0].tolist()


def ids_after_answer(tokenizer: Tokenizer, messages: Sequence[dict] = (), **variables: Any) -> list[int]:
    """Return what the template writes behind an answer: the end of its turn, and these messages.

    The model writes the end of its turn itself, so what was read and written so far keeps its ids.
    Raises BadRecord.
    """
    answer = f"{PRIVATE}."
    asked = {"role": "user", "content": "."}
    messages = [asked, {"role": "assistant", "content": answer}, *messages]
    pieces = _pieces(tokenizer.chat, checked_conversation(messages), messages, **variables)
    pieces = [*itertools.dropwhile(lambda piece: answer not in piece.text, pieces)]
    if not pieces:
        raise BadRecord("the chat template leaves answers out")
    pieces[0] = pieces[0]._replace(text=pieces[0].text.partition(answer)[2])
    return tokenizer.encode_pieces([[piece for piece in pieces if piece.text]])[0][0].tolist()


# ---------------------------------------------------------------------------------------------
# from ids to text


class TextStream:
    """The text of ids that come one after another: `add` each, then `end`.

    The pieces joined are `decode(ids)`. A piece holds whole characters only: a character may take
    several tokens, and the last of them brings it. So each token is decoded with those since the last
    whole character, and with the ones before that, because a tokenizer may drop the space that a text
    begins with.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._before = list[int]()  # the ids of the last whole characters
        self._new = list[int]()  # ids that wait

    def add(self, token: int) -> str:
        """Take the next token -> text that is whole by now and new; "" for a special token."""
        if token in self.tokenizer.special_ids:
            return ""
        self._new.append(token)
        text = self.end()
        if not text or text.endswith("\ufffd"):  # part of a character
            return ""
        self._before, self._new = self._new, []
        return text

    def end(self) -> str:
        """The rest, when no more tokens come: half a character, as replacement characters."""
        if not self._new:
            return ""
        length = len(self.tokenizer.decode(self._before))
        return self.tokenizer.decode([*self._before, *self._new])[length:]


class Delta(NamedTuple):
    """New text of an answer that is certain."""

    reasoning_content: str
    content: str


class Reply:
    """An answer while its tokens come: `add` each, without the one that ends the turn, then `end`.

        <think>⏎Six sevens.⏎</think>⏎⏎Let me see.⏎<tool_call>⏎{"name": …}⏎</tool_call><|im_end|>
                 reasoning_content      content                calls

    The ids of the special tokens, which no text can have, say where a part begins. A special token
    that is out of place, a call that was cut and one that cannot be read stay in the content, as text.

    reasoning_content, content: all of them so far. ids: all that were added.
    calls: the text of each whole tool call.
    tool_calls: those that can be read, {"name": …, "arguments": JSON text, as it was written} each.
    thinking: thoughts have begun and not ended. stopped: one of `stops` was met.

    prompt: the ids before the answer; they may have opened the thoughts.
    stops: texts at which the content ends; they are not part of it.
    tools: take calls out of the content.
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
        self.ids = list[int]()
        self.calls = list[str]()
        self.tool_calls = list[dict[str, str]]()
        self.reasoning_content = self.content = ""
        self.stopped = False
        self._text = TextStream(tokenizer)
        self._call: str | None = None  # the text of a call that has begun
        self._given = [0, 0]  # characters of the thoughts and of the content
        self._marks: dict[int, str] = {}
        for mark in (THINK, THINK_END, CALL, CALL_END) if is_chat else ():
            token = tokenizer.backend.token_to_id(mark)
            if token is not None:  # foreign models lack some
                self._marks[token] = mark

        special = tokenizer.special_ids | self._marks.keys()
        rest = [*itertools.takewhile(lambda token: token not in special, reversed(prompt))]
        opening = prompt[-len(rest) - 1] if len(rest) < len(prompt) else -1
        mark = self._marks.get(opening, "")
        self.thinking = self._has_thoughts = mark == THINK
        self._line_ends = 0  # so many, if they come next, belong to the mark before them
        after = tokenizer.decode(rest[::-1])
        if not after.strip("\n"):
            self._line_ends = max(0, LINE_ENDS.get(mark, 0) - len(after))

    @property
    def message(self) -> Message:
        """The answer as a message that can be rendered."""
        calls = tuple(self.tool_calls)
        return Message("assistant", self.content, self.reasoning_content, calls)

    def add(self, token: int) -> Delta:
        """Take the next token -> what is certain by now and new."""
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
        """Return the rest, when no more tokens come."""
        if self.stopped:
            return Delta("", "")
        self._write(self._text.end())
        if self._call is not None:  # it was cut
            self.content += CALL + self._call
        return self._new(is_end=True)

    def _write(self, text: str) -> None:
        """Add text to the part that has begun."""
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
        """Begin another part, or add the mark as text where it is out of place."""
        has_begun = self._has_thoughts or self.content.strip() or self.calls or self._call is not None
        self._line_ends = 0
        if mark == THINK and not has_begun:
            self.thinking = self._has_thoughts = True
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
            call, self._call = self._call, None
            self.calls.append(call.strip())
            try:
                self.tool_calls.append(read_call(call))
                self.content = self.content.removesuffix("\n")  # it separates content and calls
            except (ValueError, RecursionError):
                self.content += CALL + call + CALL_END
        else:
            self._write(mark)

    def _new(self, is_end: bool) -> Delta:
        """Return what is certain and was not returned yet."""
        begins = self._given
        for stop in self.stops:
            at = self.content.find(stop, max(0, begins[1] - len(stop) + 1))
            if at >= 0:
                self.content = self.content[:at]
                self.stopped = True
        ends = [len(self.reasoning_content), len(self.content)]
        if not is_end:  # a line end, if the part ends here, belongs to the special token
            ends[0] -= self.thinking and self.reasoning_content.endswith("\n")
        if not is_end and not self.stopped:
            uncertain = [int(self.tools and self.content.endswith("\n"))]
            for stop in self.stops:  # one may have begun
                uncertain += [n for n in range(1, len(stop)) if self.content.endswith(stop[:n])]
            ends[1] -= max(uncertain)
        self._given = [max(*lengths) for lengths in zip(begins, ends, strict=True)]
        reasoning = self.reasoning_content[begins[0] : ends[0]]
        return Delta(reasoning, self.content[begins[1] : ends[1]])


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
