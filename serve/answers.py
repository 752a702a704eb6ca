"""How does a request become an answer? From text to ids, into the batch, and back as pieces of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from data.chat import prompt_ids
from data.reading.records import BadRecord
from data.reply import Delta, Reply, TextStream
from data.tokenizer import Tokenizer
from model import LanguageModel
from model.generation import Sampling
from serve.batching import End, Event, Prompt, Request, Token, TooManyRequests
from serve.errors import ApiError
from serve.library import Library, Served


@dataclass(frozen=True)
class Question:
    """One prompt in ids, and how it is to be answered. seeds: one for each answer; None: at random. is_chat: the answer
    may hold thoughts. has_tools: it may hold tool calls. of_prompt: with the log-probabilities of the prompt.
    min_new_tokens: before that, neither a stop id nor a stop text ends the answer."""

    token_ids: list[int]
    max_new_tokens: int
    sampling: Sampling
    seeds: Sequence[int | None]
    stop_ids: frozenset[int]
    stops: Sequence[str] = ()
    top: int | None = None
    is_chat: bool = False
    has_tools: bool = False
    of_prompt: bool = False
    min_new_tokens: int = 0


@dataclass
class Answer:
    """An answer so far. finish_reason: None until its end, then OpenAI's stop, length or tool_calls. read: the prompt's
    tokens, if they are asked for. ended_by: the stop id, if there is one, which is not among the answer's tokens."""

    index: int
    reply: Reply
    tokens: list[Token] = field(default_factory=list)
    read: list[Token] = field(default_factory=list)
    ended_by: list[Token] = field(default_factory=list)
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


def chat_ids(
    served: Reads,
    messages: list[dict[str, Any]],
    tools: Sequence[dict] = (),
    template: Mapping[str, Any] = MappingProxyType({}),
    continued: bool = False,
) -> list[int]:
    """A conversation up to where the assistant answers. A model that was not trained on chats continues its text.

    template: values of the chat template's variables. continued: the last message is an answer to be continued.
    Raises ApiError for messages of another form, and for what this model's template does not have.
    """
    flat = [message | {"content": _text_of(message.get("content"))} for message in messages]
    known = served.tokenizer.chat.variables if served.is_chat else ()
    for name, value in template.items():
        if name not in known or (name == "enable_thinking" and not isinstance(value, bool)):
            what = (
                f"knows {', '.join(known)} only, true or false" if known else "has none, as it was not trained on chats"
            )
            raise ApiError(400, f"chat_template_kwargs: {name[:100]!r} is not for this model, which {what}")
    if not served.is_chat:
        if tools:
            raise ApiError(400, "tools: this model was not trained on chats, so it calls none: leave them out")
        text = "\n".join(message["content"] or "" for message in flat)
        return text_ids(served, text)
    try:
        return prompt_ids(served.tokenizer, flat, tools, continued, **template)
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


def text_ids(served: Reads, prompt: str | list[int], field: str = "prompt") -> list[int]:
    """A prompt to be continued: the first token, then the text; or the very ids that were given. Raises ApiError."""
    if isinstance(prompt, str):
        try:
            return served.tokenizer.begin(prompt)
        except ValueError as error:
            raise ApiError(400, f"prompt: {error}") from None
    highest = served.lm.lm_head.out_features
    if not prompt or not all(0 <= token < highest for token in prompt):
        raise ApiError(400, f"{field}: token ids must be 0 to {highest - 1}, and at least one")
    return prompt


def room_for(served: Reads, token_ids: Sequence[int], wanted: int | None, most: int) -> int:
    """How many tokens may be written: what is wanted, within the context and the server's limit. Raises ApiError."""
    left = served.context_length - len(token_ids)
    if left < (wanted != 0) or (wanted is not None and wanted > left):
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
    loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Event]]()
    running: dict[int, tuple[Request, Answer]] = {}

    def teller(index: int) -> Callable[[Event], None]:
        def tell(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, (index, event))

        return tell

    try:
        for question in questions:
            for seed in question.seeds:
                index, room, least = len(running), question.max_new_tokens, question.min_new_tokens
                request = Request(
                    *(question.token_ids, room, question.sampling, question.stop_ids, teller(index)),
                    *(seed, question.top, question.of_prompt, least),
                )
                _submit(library, served, request)
                kind = {"is_chat": question.is_chat, "tools": question.has_tools}
                reply = Reply(served.tokenizer, question.token_ids, stops=question.stops, least=least, **kind)
                running[index] = (request, Answer(index, reply))
        while running:
            index, event = await events.get()
            if index in running:
                request, answer = running[index]
                piece = _taken(served.tokenizer, answer, event)
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


def _taken(tokenizer: Tokenizer, answer: Answer, event: Event) -> Piece:
    """What a token, or the end, adds to an answer."""
    if isinstance(event, Prompt):
        stream, offset = TextStream(tokenizer), 0
        for token in event.tokens:
            answer.read.append(token._replace(offset=offset))
            offset += len(stream.add(token.id))
        return Piece(answer, Delta("", ""), [])
    if isinstance(event, End):
        if event.reason == "error":
            raise ApiError(500, event.message, "server_error")
        if event.token is not None:
            answer.ended_by = [event.token._replace(offset=len(answer.reply.content))]
        new = answer.reply.end()
        answer.finish_reason = "length" if event.reason == "length" else "stop"
        if answer.finish_reason == "stop" and answer.reply.tool_calls:
            answer.finish_reason = "tool_calls"
        return Piece(answer, new, [])
    event = event._replace(offset=len(answer.reply.content))
    answer.tokens.append(event)
    new = answer.reply.add(event.id)
    if answer.reply.stopped:
        answer.finish_reason = "stop"
    return Piece(answer, new, [event])
