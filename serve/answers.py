"""From a request to its answer: text to ids, into the batch, and back as pieces of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from data.chat import Delta, Reply, TextStream, prompt_ids, read_call
from data.reading.messages import BadRecord
from data.reading.records import checked_conversation
from serve.batching import Batcher, End, Event, Request, Token
from serve.library import Model
from serve.limits import ApiError
from serve.requests import ChatRequest


@dataclass
class Answer:
    """An answer so far."""

    index: int
    request: Request
    reply: Reply
    begun: int = 0  # so many of the last ids that are read belong to the answer: it continues
    shows_prompt: bool = False  # the tokens before it are listed in `prompt`, with their text
    echo: str = ""  # the prompt's text, if it is part of the answer's
    tokens: list[Token] = field(default_factory=list)
    prompt: list[Token] = field(default_factory=list)
    end: list[Token] = field(default_factory=list)  # the stop id, which is no token of the answer
    finish_reason: str | None = None  # None until its end, then stop, length or tool_calls

    def __post_init__(self) -> None:
        self.text = TextStream(self.reply.tokenizer)

    def take(self, event: Event) -> Piece:
        """Add a token, or the end. Raises ApiError 500 for damaged weights."""
        if isinstance(event, End) and event.reason == "error":
            raise ApiError(500, event.message)
        is_first, before = not (self.tokens or self.end), len(self.tokens)
        new = []
        if is_first and self.shows_prompt:
            read = self.request.read or [Token(token) for token in self.request.token_ids]
            offset = 0
            for token in read[: len(read) - self.begun]:
                text = self.text.add(token.id)
                self.prompt.append(token._replace(offset=offset, text=text))
                offset += len(text)
            new += [self._add(token) for token in read[len(read) - self.begun :]]
        last = event if isinstance(event, Token) else event.token
        if last is not None:
            new.append(self._add(last))
        is_call = self.request.form is not None and self.request.form.is_call
        if isinstance(event, End):
            new.append(self.reply.end())
            if is_call and event.reason == "stop" and not self.end:  # the call is whole
                self.reply.tool_calls = [read_call(self.reply.content)]
                self.reply.content = ""
            if event.reason == "length" and not self.end:
                self.finish_reason = "length"
            else:
                self.finish_reason = "tool_calls" if self.reply.tool_calls else "stop"
        elif self.reply.stopped:
            self.finish_reason = "stop"
        reasoning, content = map("".join, zip(*new, strict=True))
        if is_call:  # its text is content only where it was cut
            content = self.reply.content if self.finish_reason else ""
        return Piece(self, Delta(reasoning, content), self.tokens[before:], is_first)

    def _add(self, token: Token) -> Delta:
        """Add a token of the answer, or the one that ends it."""
        is_end = token.id in self.request.stop_ids
        offset, was_thinking = len(self.reply.content), self.reply.thinking
        new = Delta("", "") if is_end else self.reply.add(token.id)
        text = self.text.add(token.id) if self.shows_prompt else ""
        is_thought = was_thinking or self.reply.thinking
        token = token._replace(offset=offset, text=text, is_thought=is_thought)
        (self.end if is_end else self.tokens).append(token)
        return new


class Piece(NamedTuple):
    """New text of an answer, and the tokens of this text. is_first: no piece came before it."""

    answer: Answer
    new: Delta
    tokens: list[Token]
    is_first: bool = True


async def answer_all(batcher: Batcher, answers: Sequence[Answer], seconds: float) -> AsyncGenerator[Piece]:
    """All answers at once, piece by piece as the tokens come.

    Closing it cancels what still runs. Raises TooManyRequests, TimeoutError, and ApiError 500 for damaged weights.
    """
    loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[Answer, Event]]()
    until = loop.time() + seconds

    def emit(answer: Answer, event: Event) -> None:  # in the batcher's thread
        loop.call_soon_threadsafe(events.put_nowait, (answer, event))

    try:
        for answer in answers:
            answer.request.emit = partial(emit, answer)
            batcher.submit(answer.request)
        while any(answer.finish_reason is None for answer in answers):
            async with asyncio.timeout_at(until):
                answer, event = await events.get()
            if answer.finish_reason is None:
                piece = answer.take(event)
                if answer.finish_reason is not None:
                    answer.request.cancelled = True  # a stop text was met: nothing more is wanted
                yield piece
    finally:
        for answer in answers:
            answer.request.cancelled = True


def chat_ids(model: Model, body: ChatRequest) -> list[int]:
    """Return the ids of a conversation up to where the assistant answers.

    A model that was not trained on chats continues the text of the messages. Raises ApiError for
    messages of another form, and for what this model's template does not have.
    """
    known = model.tokenizer.chat.variables if model.is_chat else ()
    for name, value in body.template.items():
        if name not in known or (name == "enable_thinking" and not isinstance(value, bool)):
            reason = "has none, as it was not trained on chats"
            if known:
                reason = f"knows {', '.join(known)} only, true or false"
            message = f"chat_template_kwargs: {name[:100]!r} is not for this model, which {reason}"
            raise ApiError(400, message)
    tools = body.usable_tools
    if tools and not model.is_chat:
        raise ApiError(400, "tools: this model was not trained on chats and calls none: leave them out")
    try:
        if model.is_chat:
            is_begun = body.continue_final_message
            return prompt_ids(model.tokenizer, body.messages, tools, is_begun, **body.template)
        conversation = checked_conversation(body.messages)
    except (BadRecord, TypeError, AttributeError) as error:
        raise ApiError(400, f"messages: {error}") from None
    return text_ids(model, "\n".join(message.content for message in conversation.messages))


def text_ids(model: Model, prompt: str | list[int], field: str = "prompt") -> list[int]:
    """A prompt to be continued: the first token, then the text; or the very ids that were given. Raises ApiError."""
    if isinstance(prompt, str):
        try:
            return model.tokenizer.begin(prompt)
        except ValueError as error:
            raise ApiError(400, f"prompt: {error}") from None
    highest = model.lm.lm_head.out_features
    if not prompt or not all(0 <= token < highest for token in prompt):
        raise ApiError(400, f"{field}: token ids must be 0 to {highest - 1}, and at least one")
    return prompt


def room_for(model: Model, token_ids: Sequence[int], wanted: int | None, most: int) -> int:
    """How many tokens may be written: what is wanted, within the context and the server's limit. Raises ApiError."""
    left = model.context_length - len(token_ids)
    if left < (wanted != 0) or (wanted is not None and wanted > left):
        sizes = f"{len(token_ids)} are read" + ("" if wanted is None else f", and {wanted} are to be written")
        message = f"This model's maximum context length is {model.context_length} tokens: {sizes}"
        raise ApiError(400, message, "context_length_exceeded")
    return min(left if wanted is None else wanted, most)
