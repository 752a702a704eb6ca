"""Turn a request into its answer: text to ids, into the batch, and back to pieces of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from data.chat import prompt_ids
from data.reading.messages import BadRecord
from data.reading.records import checked_conversation
from data.reply import Delta, Reply, TextStream, read_call
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
    # this many ids at the end of the prompt begin the answer
    begun: int = 0
    # True: `prompt` lists the prompt's tokens, with their text
    shows_prompt: bool = False
    # the prompt's text, if the answer repeats it
    echo: str = ""
    tokens: list[Token] = field(default_factory=list)
    prompt: list[Token] = field(default_factory=list)
    # the stop id, which is no token of the answer
    end: list[Token] = field(default_factory=list)
    # stop, length or tool_calls at the end
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self.text = TextStream(self.reply.tokenizer)

    def take(self, event: Event) -> Piece:
        """Add a token, or the end. Raises ApiError 500 for damaged weights."""
        if isinstance(event, End) and event.reason == "error":
            raise ApiError(500, event.message)
        is_first = not (self.tokens or self.end)
        # a piece lists the tokens that come from here on
        before = len(self.tokens)
        new = []
        if is_first and self.shows_prompt:
            # the batcher lists tokens only with log-probabilities
            read = self.request.read or [Token(token) for token in self.request.token_ids]
            start = len(read) - self.begun
            offset = 0
            for token in read[:start]:
                text = self.text.add(token.id)
                self.prompt.append(token._replace(offset=offset, text=text))
                offset += len(text)
            new += [self._add(token) for token in read[start:]]
        last = event if isinstance(event, Token) else event.token
        if last is not None:
            new.append(self._add(last))
        is_call = self.request.form is not None and self.request.form.is_call
        if isinstance(event, End):
            new.append(self.reply.end())
            # the form ended the answer, not a stop id: the call is complete
            if is_call and event.reason == "stop" and not self.end:
                self.reply.tool_calls = [read_call(self.reply.content)]
                self.reply.content = ""
            if event.reason == "length" and not self.end:
                self.finish_reason = "length"
            else:
                self.finish_reason = "tool_calls" if self.reply.tool_calls else "stop"
        elif self.reply.stopped:
            self.finish_reason = "stop"
        reasoning, content = map("".join, zip(*new, strict=True))
        # the text of a call is content only if it was cut
        if is_call:
            content = self.reply.content if self.finish_reason else ""
        return Piece(self, Delta(reasoning, content), self.tokens[before:], is_first)

    def _add(self, token: Token) -> Delta:
        # a token of the answer, or the one that ends it
        is_end = token.id in self.request.stop_ids
        offset = len(self.reply.content)
        was_thinking = self.reply.thinking
        new = Delta("", "") if is_end else self.reply.add(token.id)
        text = self.text.add(token.id) if self.shows_prompt else ""
        is_thought = was_thinking or self.reply.thinking
        token = token._replace(offset=offset, text=text, is_thought=is_thought)
        (self.end if is_end else self.tokens).append(token)
        return new


class Piece(NamedTuple):
    """New text of an answer, and its tokens."""

    answer: Answer
    new: Delta
    tokens: list[Token]
    is_first: bool = True


async def answer_all(
    batcher: Batcher, answers: Sequence[Answer], seconds: float
) -> AsyncGenerator[Piece]:
    """Yield all answers at once, in pieces. Closing it cancels those that still run.

    Raises TooManyRequests, TimeoutError, and ApiError 500 for damaged weights.
    """
    loop = asyncio.get_running_loop()
    # one queue for all answers, so that a stream shows each token as soon as it is there
    events = asyncio.Queue[tuple[Answer, Event]]()
    until = loop.time() + seconds

    def emit(answer: Answer, event: Event) -> None:
        # note: runs in the batcher's thread, but the queue belongs to the loop's
        loop.call_soon_threadsafe(events.put_nowait, (answer, event))

    try:
        for answer in answers:
            # the batcher knows only requests, so this ties each event to its answer
            answer.request.emit = partial(emit, answer)
            batcher.submit(answer.request)
        while any(answer.finish_reason is None for answer in answers):
            # the time of all answers together
            async with asyncio.timeout_at(until):
                answer, event = await events.get()
            if answer.finish_reason is None:
                piece = answer.take(event)
                if answer.finish_reason is not None:
                    # the batcher does not see a stop text
                    answer.request.cancelled = True
                yield piece
    finally:
        for answer in answers:
            answer.request.cancelled = True


def chat_ids(model: Model, body: ChatRequest) -> list[int]:
    """Return the ids of a conversation, to be answered. Raises ApiError."""
    variables = model.tokenizer.chat.variables if model.is_chat else ()
    for name, value in body.template.items():
        # Jinja ignores a variable that the template does not read, and the client would never know.
        if name not in variables or (name == "enable_thinking" and not isinstance(value, bool)):
            reason = "was not trained on chats"
            if variables:
                reason = f"has only {', '.join(variables)}, true or false"
            message = f"chat_template_kwargs: {name[:100]!r} is not for this model, which {reason}"
            raise ApiError(400, message)
    tools = body.usable_tools
    if tools and not model.is_chat:
        raise ApiError(400, "tools: this model was not trained on chats: leave them out")
    try:
        if model.is_chat:
            is_begun = body.continue_final_message
            return prompt_ids(model.tokenizer, body.messages, tools, is_begun, **body.template)
        conversation = checked_conversation(body.messages)
    except (BadRecord, TypeError, AttributeError) as error:
        raise ApiError(400, f"messages: {error}") from None
    # a model that was not trained on chats continues the text of the messages
    return text_ids(model, "\n".join(message.content for message in conversation.messages))


def text_ids(model: Model, prompt: str | list[int], field: str = "prompt") -> list[int]:
    """Return the ids of a text, after the first token; or check ids. Raises ApiError."""
    if isinstance(prompt, str):
        try:
            return model.tokenizer.begin(prompt)
        except ValueError as error:
            raise ApiError(400, f"prompt: {error}") from None
    # rows of the head, of which a vocabulary may leave some unused
    highest = model.lm.lm_head.out_features
    if not prompt or not all(0 <= token < highest for token in prompt):
        raise ApiError(400, f"{field}: token ids must be 0 to {highest - 1}, and at least one")
    return prompt


def room_for(model: Model, token_ids: Sequence[int], number: int | None, most: int) -> int:
    """Return how many tokens may be written, `most` at most. Raises ApiError if they do not fit.

    number: of tokens that must fit; None: at least one.
    """
    # the batcher reserves all of it at once, so a request never runs out in the middle
    left = model.context_length - len(token_ids)
    least = 1 if number is None else number
    if least > left:
        sizes = f"{len(token_ids)} to read and {least} to write"
        message = f"This model's maximum context length is {model.context_length} tokens: {sizes}"
        raise ApiError(400, message, "context_length_exceeded")
    return min(left if number is None else number, most)
