"""Encode conversations with flags for training; split an answer's ids into its parts.

    <|bos|><|im_start|>user⏎Hi!<|im_end|>⏎<|im_start|>assistant⏎Hello!<|im_end|>⏎
                                                                ~~~~~~~~~~~~~~~~      trained on

A chat template renders the text, which is encoded once. Training uses chat_template.jinja, and
prompts use the template of the model.
"""

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
TRAINED = 1
MAY_END = 2
OURS = ChatTemplate({"default": CHAT_TEMPLATE}, ROLES, SPECIAL_TOKENS)
THINK = "<think>"
THINK_END = "</think>"
CALL = "<tool_call>"
CALL_END = "</tool_call>"
# This many line ends after a mark belong to it.
LINE_ENDS = {THINK: 1, THINK_END: 2}


def segments(conversation: Conversation, chat: ChatTemplate = OURS) -> list[Piece]:
    """Render a conversation by our template, which has answers in {% generation %} blocks."""
    answers = [message for message in conversation.messages if message.role == "assistant"]
    result: list[Piece] = []
    before = None
    # only what the assistant wrote has a block, so headers and other roles are never trained on
    for piece in _pieces(chat, conversation):
        # a conversation may be cut after an answer and its line end
        if piece.block is None:
            result.append(piece._replace(flags=0 if before is None else MAY_END))
        else:
            answer = answers[piece.block]
            # parts may have weights of their own, special tokens not
            parts = answer.parts if answer.parts and not piece.special else [(piece.text, 1)]
            for text, weight in parts:
                flags = TRAINED * answer.weight * weight
                result.append(piece._replace(text=text, flags=flags, joint=not answer.parts))
        before = piece.block
    return [piece for piece in result if piece.text]


def _pieces(
    chat: ChatTemplate,
    conversation: Conversation,
    raw_messages: Sequence[Message | dict] = (),
    tools: Sequence[dict] = (),
    **variables: Any,
) -> list[Piece]:
    """Render a conversation. raw_messages, tools: a client's input, with extra fields."""
    tools = tools or conversation.tools
    source = chat.source(tools)
    # If <think> is special, a template cannot see it in a message: thoughts have a field of their
    # own, if the template reads it.
    splits_thoughts = "<think>" in chat.specials and "reasoning_content" in source
    # Most templates need arguments as an object; some join them with +, as text; some take both.
    takes_both = re.search(r"arguments['\"\]]* is (not )?string", source) is not None
    takes_text = not takes_both and re.search(r"arguments['\"\]]* *\+", source) is not None
    messages = []
    raw_messages = raw_messages or conversation.messages
    for message, raw in zip(conversation.messages, raw_messages, strict=True):
        # what the checked message lacks: ids of calls, names, parts
        extra = raw if isinstance(raw, dict) else {}
        fields: dict[str, Any] = {"role": message.role, "content": message.content}
        for name in ("name", "tool_call_id"):
            if extra.get(name) is not None:
                fields[name] = extra[name]
        content = extra.get("content")
        if content is not None and not splits_thoughts:
            # as it was sent, with the thoughts in it
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
        if isinstance(extra.get("tool_calls"), list):
            for call, own in zip(calls, extra["tool_calls"], strict=True):
                if own.get("id"):
                    call["id"] = own["id"]
        if calls:
            fields["tool_calls"] = calls
        messages.append(fields)

    # prompts end before an answer and after "<think>⏎", so a piece must end there
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
    """Return (ids, flags) of each conversation. flags: (T,) uint8, of TRAINED and MAY_END."""
    rendered = [segments(conversation, tokenizer.our_chat) for conversation in conversations]
    result = []
    for pieces, (ids, piece_of) in zip(rendered, tokenizer.encode_pieces(rendered), strict=True):
        piece_flags = np.array([piece.flags for piece in pieces], dtype=np.uint8)
        flags = piece_flags[piece_of] & TRAINED  # (T,)
        ends = np.flatnonzero(piece_flags & MAY_END)
        # a conversation may end after the last token of such a piece
        flags[np.searchsorted(piece_of, ends, "right") - 1] |= MAY_END
        result.append((ids.tolist(), flags))
    return result


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[tuple[list[int], np.ndarray]]:
    """Return (ids, flags) of each pair: of its chosen conversation, then of the rejected one."""
    conversations = []
    for pair in pairs:
        # answers in the common prompt are not trained on
        # both sides have them, so they would cancel in the difference that DPO learns from
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
    """Return the texts of a document, without special tokens; of a chat those with the flag."""
    if isinstance(content, str):
        return [content]
    if isinstance(content, Conversation):
        pieces = [piece for piece in segments(content) if not piece.special]
        return [piece.text for piece in pieces if piece.flags & flag == flag]
    texts = []
    if not flag:
        # once, though both conversations have it
        prompt = content.chosen.messages[: content.shared]
        texts = plain_texts(Conversation(prompt, content.chosen.tools))
    for side in (content.chosen, content.rejected):
        texts += plain_texts(Conversation(side.messages[content.shared :]), flag)
    return texts


def prompt_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message | dict],
    tools: Sequence[dict] = (),
    continued: bool = False,
    **variables: Any,
) -> list[int]:
    """Return the ids of a conversation up to the assistant's answer.

    - continued: the last message is an answer to continue.
    - variables: for the template; ours has enable_thinking, which begins the thoughts.

    Raises BadRecord; InputError for a model without a template and our special tokens.
    """
    conversation = checked_conversation(messages, tools)
    # with our template, these are exactly the ids before this answer in training
    variables = {"add_generation_prompt": not continued} | variables
    tools = () if isinstance(tools, str) else tools
    pieces = _pieces(tokenizer.chat, conversation, messages, tools, **variables)
    if continued:
        if conversation.messages[-1].role != "assistant" or variables.get("enable_thinking"):
            raise BadRecord("only an answer can be continued, and without enable_thinking")
        end = tokenizer.turn_end and tokenizer.backend.id_to_token(tokenizer.turn_end)
        ends = [i for i, piece in enumerate(pieces) if piece.special and piece.text == end]
        # without the end of its turn
        pieces = pieces[: ends[-1]] if ends else pieces
    return tokenizer.encode_pieces([pieces])[0][0].tolist()


def ids_after_answer(
    tokenizer: Tokenizer, messages: Sequence[dict] = (), **variables: Any
) -> list[int]:
    """Return the ids after an answer: the end of its turn, and these messages. Raises BadRecord."""
    # Rendered with a stand-in for the answer. Its own ids stay as the model wrote them, because
    # its text may have other tokens when it is encoded again.
    answer = f"{PRIVATE}."
    question = {"role": "user", "content": "."}
    messages = [question, {"role": "assistant", "content": answer}, *messages]
    pieces = _pieces(tokenizer.chat, checked_conversation(messages), messages, **variables)
    pieces = [*itertools.dropwhile(lambda piece: answer not in piece.text, pieces)]
    if not pieces:
        raise BadRecord("the chat template leaves answers out")
    pieces[0] = pieces[0]._replace(text=pieces[0].text.partition(answer)[2])
    return tokenizer.encode_pieces([[piece for piece in pieces if piece.text]])[0][0].tolist()


# from ids to text


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
