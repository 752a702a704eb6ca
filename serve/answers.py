"""How does a request become an answer? From text to ids, into the batch, and back as pieces of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from data.chat import Delta, Reply, TextStream, prompt_ids, read_call
from data.reading.records import BadRecord
from serve.batching import Batcher, End, Event, Request, Token
from serve.library import Model
from serve.limits import ApiError


@dataclass
class Answer:
    """An answer so far.

    begun: how many of the last ids that are read belong to the answer: it continues from there. shows_prompt: whether
    the tokens before it, `prompt`, are wanted, with their text. echo: the prompt's text, if it is asked for. end: the
    stop id, which is no token of the answer. finish_reason: None until its end, then stop, length or tool_calls.
    """

    index: int
    request: Request
    reply: Reply
    begun: int = 0
    shows_prompt: bool = False
    echo: str = ""
    tokens: list[Token] = field(default_factory=list)
    prompt: list[Token] = field(default_factory=list)
    end: list[Token] = field(default_factory=list)
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self.text, self.has_events = TextStream(self.reply.tokenizer), False

    def take(self, event: Event) -> Piece:
        """What a token, or the end, adds. Raises ApiError 500 for damaged weights."""
        if isinstance(event, End) and event.reason == "error":
            raise ApiError(500, event.message)
        is_first, self.has_events = not self.has_events, True
        is_call = self.request.form is not None and self.request.form.is_call
        news, before = list[Delta](), len(self.tokens)
        if is_first and self.shows_prompt:
            read = self.request.read or [Token(token) for token in self.request.token_ids]
            begin, offset = len(read) - self.begun, 0
            for token in read[:begin]:
                self.prompt.append(token._replace(offset=offset, text=self.text.add(token.id)))
                offset += len(self.prompt[-1].text)
            news += [self._add(token) for token in read[begin:]]
        if isinstance(event, Token):
            news.append(self._add(event))
            if self.reply.stopped:
                self.finish_reason = "stop"
        else:
            if event.token is not None:
                news.append(self._add(event.token))
            news.append(self.reply.end())
            is_cut = event.reason == "length" and not self.end
            if is_call and event.reason == "stop" and not self.end:  # the call is whole
                self.reply.tool_calls = [read_call(self.reply.content)]
                self.reply.content = ""
            self.finish_reason = "length" if is_cut else "tool_calls" if self.reply.tool_calls else "stop"
        new = Delta(*map("".join, zip(*news, strict=True)))
        if is_call:  # text only where it was cut
            new = new._replace(content=self.reply.content if self.finish_reason else "")
        return Piece(self, new, self.tokens[before:], is_first)

    def _add(self, token: Token) -> Delta:
        """A token of the answer, or the one that ends it."""
        offset, was_thinking, is_end = len(self.reply.content), self.reply.thinking, token.id in self.request.stop_ids
        new = Delta("", "") if is_end else self.reply.add(token.id)
        text = self.text.add(token.id) if self.shows_prompt else ""
        token = token._replace(offset=offset, text=text, is_thought=was_thinking or self.reply.thinking)
        (self.end if is_end else self.tokens).append(token)
        return new


@dataclass(frozen=True)
class Piece:
    """What came of one answer: new text, and the tokens behind it. is_first: nothing came of it before."""

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
        running = len(answers)
        while running:
            async with asyncio.timeout_at(until):
                answer, event = await events.get()
            if answer.finish_reason is None:
                piece = answer.take(event)
                if answer.finish_reason is not None:
                    answer.request.cancelled = True  # a stop text was met: nothing more is wanted
                    running -= 1
                yield piece
    finally:
        for answer in answers:
            answer.request.cancelled = True


# ---------------------------------------------------------------------------------------------------------
# prompts


def chat_ids(
    model: Model,
    messages: list[dict[str, Any]],
    tools: Sequence[dict] = (),
    template: Mapping[str, Any] = MappingProxyType({}),
    continued: bool = False,
) -> list[int]:
    """A conversation up to where the assistant answers. A model that was not trained on chats continues its text.

    template: values of the chat template's variables. continued: the last message is an answer to be continued.
    Raises ApiError for messages of another form, and for what this model's template does not have.
    """
    messages = [message | {"content": _text_of(message.get("content"))} for message in messages]
    known = model.tokenizer.chat.variables if model.is_chat else ()
    for name, value in template.items():
        if name not in known or (name == "enable_thinking" and not isinstance(value, bool)):
            knows = f"knows {', '.join(known)} only, true or false"
            what = knows if known else "has none, as it was not trained on chats"
            raise ApiError(400, f"chat_template_kwargs: {name[:100]!r} is not for this model, which {what}")
    if not model.is_chat:
        if tools:
            raise ApiError(400, "tools: this model was not trained on chats, so it calls none: leave them out")
        return text_ids(model, "\n".join(message["content"] or "" for message in messages))
    try:
        return prompt_ids(model.tokenizer, messages, tools, continued, **template)
    except (BadRecord, TypeError, AttributeError) as error:
        raise ApiError(400, f"messages: {error}") from None


def _text_of(content: Any) -> str | None:
    """The text of a message: itself, or the joined text parts of a list. Raises ApiError for pictures and sound."""
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts: list[Any] = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "messages: content must be a text or parts of type text: these models read text only")
    return "".join(texts)


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


def finite(log_prob: float) -> float:
    """JSON has no infinity."""
    return max(log_prob, -9999.0)


def room_for(model: Model, token_ids: Sequence[int], wanted: int | None, most: int) -> int:
    """How many tokens may be written: what is wanted, within the context and the server's limit. Raises ApiError."""
    left = model.context_length - len(token_ids)
    if left < (wanted != 0) or (wanted is not None and wanted > left):
        sizes = f"{len(token_ids)} are read" + ("" if wanted is None else f", and {wanted} are to be written")
        message = f"This model's maximum context length is {model.context_length} tokens: {sizes}"
        raise ApiError(400, message, "context_length_exceeded")
    return min(left if wanted is None else wanted, most)
