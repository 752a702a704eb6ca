"""Conversations -> token ids, and which of them are trained on. Both are decided together, turn by turn.

    <|bos|><|im_start|>user⏎Hi!<|im_end|>⏎<|im_start|>assistant⏎Hello!<|im_end|>⏎
                                                                ~~~~~~~~~~~~~~~~      trained on

chat_template.jinja writes the same text when you load the model with transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data.reading.records import BadRecord, Conversation, Message, checked_conversation
from data.tokenizer import Tokenizer

TRAINED, MAY_END = 1, 2  # flags of a token: it is a target; a conversation may be cut after it


class Segment(NamedTuple):
    """A piece of the rendered text that is encoded on its own. special: it is one special token; otherwise it is plain
    text, whatever it looks like. flags: TRAINED holds for all its tokens, MAY_END only for the last one."""

    text: str
    special: bool
    flags: int


def segments(conversation: Conversation, bos_token: str = "<|bos|>") -> list[Segment]:
    """A conversation, rendered. The joined texts are what chat_template.jinja writes."""
    pieces = [Segment(bos_token, True, 0)]
    for message in _with_tools_described(conversation):
        pieces += _turn(message)
    return [piece for piece in pieces if piece.text]


def _with_tools_described(conversation: Conversation) -> tuple[Message, ...]:
    """The messages. If there are tools, the first one is a system message that ends with their list."""
    messages = conversation.messages
    if not conversation.tools:
        return messages
    schemas = [json.dumps(tool, ensure_ascii=False) for tool in conversation.tools]
    described = "\n".join(["You can call these tools:", *schemas])
    if messages[0].role != "system":
        return (Message("system", described), *messages)
    if messages[0].content:
        described = f"{messages[0].content}\n\n{described}"
    return (Message("system", described), *messages[1:])


def _turn(message: Message) -> Iterator[Segment]:
    yield Segment("<|im_start|>", True, 0)
    if message.role == "assistant":
        yield Segment("assistant\n", False, 0)  # a segment of its own, as it is when the model answers
        trained = TRAINED if message.weight else 0
        yield from _answer(message, trained)
        yield Segment("<|im_end|>", True, trained)
        yield Segment("\n", False, MAY_END)
        return
    if message.role == "tool":
        yield Segment("tool\n", False, 0)
        yield Segment("<tool_response>", True, 0)
        yield Segment(f"\n{message.content}\n", False, 0)
        yield Segment("</tool_response>", True, 0)
    else:
        yield Segment(f"{message.role}\n{message.content}", False, 0)
    yield Segment("<|im_end|>", True, 0)
    yield Segment("\n", False, 0)


def _answer(message: Message, trained: int) -> Iterator[Segment]:
    """What the assistant itself writes: thinking, text, tool calls."""
    if message.parts:
        yield from (Segment(text, False, trained * weight) for text, weight in message.parts)
        return
    text = message.content
    if message.reasoning_content:
        yield Segment("<think>", True, trained)
        yield Segment("\n", False, trained)  # a segment of its own, as it is in a prompt that asks to think
        yield Segment(f"{message.reasoning_content}\n", False, trained)
        yield Segment("</think>", True, trained)
        text = f"\n\n{text}"
    if message.content and message.tool_calls:
        text += "\n"
    for call in message.tool_calls:
        yield Segment(text, False, trained)
        yield Segment("<tool_call>", True, trained)
        yield Segment(f"\n{_call_as_json(call)}\n", False, trained)
        yield Segment("</tool_call>", True, trained)
        text = "\n"
    if not message.tool_calls:
        yield Segment(text, False, trained)


def _call_as_json(call: dict) -> str:
    name, arguments = json.dumps(call["name"], ensure_ascii=False), call["arguments"]
    if not isinstance(arguments, str):  # JSON text stays as it was written
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {arguments}}}'


def encode_conversations(
    tokenizer: Tokenizer, conversations: Sequence[Conversation]
) -> list[tuple[list[int], np.ndarray]]:
    """(ids, flags) of each conversation; flags is a uint8 array of TRAINED and MAY_END, one per token."""
    rendered = [segments(conversation, tokenizer.bos_token) for conversation in conversations]
    ids_of = _encode(tokenizer, rendered)
    result = []
    for pieces in rendered:
        ids: list[int] = []
        flags: list[int] = []
        for piece in pieces:
            new = ids_of[piece.text, piece.special]
            ids += new
            flags += [piece.flags & TRAINED] * len(new)
            flags[-1] |= piece.flags & MAY_END
        result.append((ids, np.array(flags, dtype=np.uint8)))
    return result


def prompt_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message | dict],
    tools: Sequence[dict] = (),
    enable_thinking: bool = False,
    continued: bool = False,
) -> list[int]:
    """The ids of a conversation up to where the assistant answers (enable_thinking: begins to think). They are
    exactly the ids that precede this answer in training. continued: the last message is an answer to be continued.
    Raises BadRecord."""
    conversation = checked_conversation(messages, tools)
    pieces = segments(conversation, tokenizer.bos_token)
    if continued:
        if conversation.messages[-1].role != "assistant" or enable_thinking:
            raise BadRecord(
                "only a message of the assistant can be continued, and one that has begun: no enable_thinking"
            )
        pieces = pieces[:-2]  # without the end of its turn
    else:
        pieces += [Segment("<|im_start|>", True, 0), Segment("assistant\n", False, 0)]
    if enable_thinking:
        pieces += [Segment("<think>", True, 0), Segment("\n", False, 0)]
    ids_of = _encode(tokenizer, [pieces])
    return [token_id for piece in pieces for token_id in ids_of[piece.text, piece.special]]


def next_prompt_ids(tokenizer: Tokenizer, role: str, content: str) -> list[int]:
    """The ids of one more message, and of the header of the answer to it. They follow the turn before, with its
    line end; what was read and written so far keeps its ids. Raises BadRecord."""
    return prompt_ids(tokenizer, [{"role": role, "content": content}])[1:]  # without the first token of all


def end_of_turn_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids that end a turn: the model writes the first one itself."""
    return [tokenizer.special_id("<|im_end|>"), *tokenizer.encode("\n")]


def _encode(tokenizer: Tokenizer, rendered: Sequence[list[Segment]]) -> dict[tuple[str, bool], list[int]]:
    """The ids of every distinct segment, each encoded once, on all cores."""
    different = {(piece.text, piece.special) for pieces in rendered for piece in pieces}
    plain = [text for text, special in different if not special]
    ids_of = {(text, False): ids for text, ids in zip(plain, tokenizer.encode_many(plain), strict=True)}
    return ids_of | {(text, True): [tokenizer.special_id(text)] for text, special in different if special}
