"""How does a request become an answer? From text to ids, into the batch, and back as pieces of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from data.chat import prompt_ids
from data.reading.records import BadRecord
from data.reply import Delta, Reply
from data.tokenizer import Tokenizer
from model import LanguageModel
from model.decoding.sampling import Sampling
from serve.batching import End, Request, Token, TooManyRequests
from serve.errors import ApiError
from serve.library import Library, Served


@dataclass(frozen=True)
class Question:
    """One prompt in ids, and how it is to be answered. seeds: one for each answer; None: at random.

    is_chat: the answer may hold thoughts. has_tools: it may hold tool calls.
    """

    token_ids: list[int]
    max_new_tokens: int
    sampling: Sampling
    seeds: Sequence[int | None]
    stops: Sequence[str] = ()
    top: int | None = None
    is_chat: bool = False
    has_tools: bool = False


@dataclass
class Answer:
    """An answer so far. finish_reason: None until its end, then OpenAI's stop, length or tool_calls."""

    index: int
    reply: Reply
    tokens: list[Token] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(frozen=True)
class Piece:
    """What came of one answer: new text, and the tokens behind it."""

    answer: Answer
    new: Delta
    tokens: list[Token]


class Reads(Protocol):
    """A model that a prompt is for."""

    @property
    def lm(self) -> LanguageModel: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def is_chat(self) -> bool: ...
    @property
    def context_length(self) -> int: ...


def chat_ids(served: Reads, messages: list[dict[str, Any]], tools: Sequence[dict] = ()) -> list[int]:
    """A conversation up to where the assistant answers. A model that was not trained on chats continues its text.

    Raises ApiError for messages of another form.
    """
    flat = [message | {"content": _text_of(message.get("content"))} for message in messages]
    if not served.is_chat:
        text = "\n".join(message["content"] or "" for message in flat)
        return text_ids(served, text)
    try:
        return prompt_ids(served.tokenizer, flat, tools)
    except (BadRecord, TypeError, AttributeError) as error:
        raise ApiError(400, f"messages: {error}") from None


def _text_of(content: Any) -> str | None:
    """The text of a message: itself, or the joined text parts of a list. Raises ApiError for pictures and sound."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ApiError(400, "messages: content must be a text, or a list of text parts")
    if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in content):
        raise ApiError(400, "messages: these models read text only: give parts of type text")
    return "".join(part["text"] for part in content)


def text_ids(served: Reads, prompt: str | list[int]) -> list[int]:
    """A prompt to be continued: the first token, then the text; or the very ids that were given. Raises ApiError."""
    if isinstance(prompt, str):
        try:
            return [served.tokenizer.bos_id, *served.tokenizer.encode(prompt)]
        except ValueError as error:
            raise ApiError(400, f"prompt: {error}") from None
    highest = served.lm.lm_head.out_features
    if not prompt or not all(0 <= token < highest for token in prompt):
        raise ApiError(400, f"prompt: token ids must be 0 to {highest - 1}, and at least one")
    return prompt


def room_for(served: Reads, token_ids: Sequence[int], wanted: int | None, most: int) -> int:
    """How many tokens may be written: what is wanted, within the context and the server's limit. Raises ApiError."""
    left = served.context_length - len(token_ids)
    if left < 1 or (wanted is not None and wanted > left):
        raise ApiError(
            400,
            f"This model's maximum context length is {served.context_length} tokens. The prompt has {len(token_ids)}"
            f"{'' if wanted is None else f', and {wanted} are to be written'}: shorten it, or ask for fewer.",
            code="context_length_exceeded",
        )
    return min(left if wanted is None else wanted, most)


async def answers(library: Library, served: Served, questions: Sequence[Question]) -> AsyncGenerator[Piece]:
    """The answers to all questions, numbered through, piece by piece as the tokens come.

    Closing the iterator cancels what still runs. Raises ApiError: 429 where too many wait, 400 for what can never be
    served, 500 for damaged weights.
    """
    loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Token | End]]()
    running: dict[int, tuple[Request, Answer]] = {}

    def teller(index: int) -> Callable[[Token | End], None]:
        def tell(event: Token | End) -> None:
            loop.call_soon_threadsafe(events.put_nowait, (index, event))

        return tell

    try:
        for question in questions:
            for seed in question.seeds:
                index, stops = len(running), frozenset(served.tokenizer.stop_ids)
                room, tell = question.max_new_tokens, teller(index)
                request = Request(question.token_ids, room, question.sampling, stops, tell, seed, question.top)
                _submit(library, served, request)
                kind = {"is_chat": question.is_chat, "tools": question.has_tools}
                reply = Reply(served.tokenizer, question.token_ids, stops=question.stops, **kind)
                running[index] = (request, Answer(index, reply))
        while running:
            index, event = await events.get()
            if index in running:
                request, answer = running[index]
                piece = _taken(answer, event)
                if answer.finish_reason is not None:
                    request.cancel()  # a stop text was met: nothing more is wanted
                    del running[index]
                yield piece
    finally:
        for request, _ in running.values():
            request.cancel()


def _submit(library: Library, served: Served, request: Request) -> None:
    try:
        try:
            served.batcher.submit(request)
        except TooManyRequests:
            library.find(served.name).batcher.submit(request)  # a newer checkpoint may have taken its place
    except TooManyRequests as error:
        raise ApiError(429, str(error), "rate_limit_error", "rate_limit_exceeded") from None
    except ValueError as error:
        raise ApiError(400, str(error)) from None


def _taken(answer: Answer, event: Token | End) -> Piece:
    """What a token, or the end, adds to an answer."""
    if isinstance(event, End):
        if event.reason == "error":
            raise ApiError(500, event.message, "server_error")
        new = answer.reply.end()
        answer.finish_reason = "length" if event.reason == "length" else "stop"
        if answer.finish_reason == "stop" and answer.reply.tool_calls:
            answer.finish_reason = "tool_calls"
        return Piece(answer, new, [])
    answer.tokens.append(event)
    new = answer.reply.add(event.id)
    if answer.reply.stopped:
        answer.finish_reason = "stop"
    return Piece(answer, new, [event])
