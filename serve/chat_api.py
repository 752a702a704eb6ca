"""What the page's chat asks for: answers token by token with their alternatives, what a head looked at, heads changed.

GET  /live/chat/models      the runs, their checkpoints, and the adapters for each
GET  /live/chat/model       one of them, opened: its layers and heads, whether it was trained on chats
GET  /live/chat/question    a story of the built-in world, a question about it, and the right answer
POST /live/chat/answer      an answer as server-sent events: the prompt's tokens, each token, the end
POST /live/chat/weigh       what the model, with heads changed, thinks of an answer that is there
POST /live/chat/look        what every head looked at to predict one token
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from configs.command import InputError
from data.chat import prompt_ids
from data.reply import Delta, Reply, TextStream
from eval.attention.capture import AttentionMaps
from eval.attention.controls import scaled
from eval.attention.probes import readable_tokens
from eval.chat.session import first_line
from eval.chat.tokens import Choice, capture_around, choose, looked_at, rows_around, weigh
from eval.questions import Question, one_question, source_of
from serve.answers import chat_ids, room_for, text_ids
from serve.chat_protocol import AnswerAsked, Changed, LookAsked, ModelAsked, QuestionAsked, WeighAsked
from serve.errors import ApiError
from serve.events import event
from serve.limits import Limits, within
from serve.workbench import Opened, Workbench

LEAST = -9999.0  # ln p in JSON, which has no infinity


def router(bench: Workbench, limits: Limits) -> APIRouter:
    """The routes. Models are opened, and work, in the workbench's thread."""
    routes = APIRouter(prefix="/live/chat")
    maps = LastMaps()

    @routes.get("/models")
    def models() -> dict[str, Any]:
        return {"models": bench.choices()}

    @routes.get("/model")
    async def model(asked: Annotated[ModelAsked, Query()]) -> dict[str, Any]:
        return await within(bench.do(lambda: _described(bench.find(asked), asked.run)), limits.seconds)

    @routes.get("/question")
    async def question(asked: Annotated[QuestionAsked, Query()]) -> dict[str, Any]:
        return await within(bench.do(lambda: _question(bench.find(asked), asked)), limits.seconds)

    @routes.post("/answer")
    async def answer(asked: AnswerAsked) -> StreamingResponse:
        events = bench.each(lambda: _answer(bench.find(asked), asked, limits))
        first = await within(anext(events), limits.seconds)  # what is refused has its status before anything is sent
        return StreamingResponse(_streamed(first, events, limits), media_type="text/event-stream")

    @routes.post("/weigh")
    async def weighed(asked: WeighAsked) -> dict[str, Any]:
        return await within(bench.do(lambda: _weighed(bench.find(asked), asked)), limits.seconds)

    @routes.post("/look")
    async def look(asked: LookAsked) -> dict[str, Any]:
        return await within(bench.do(lambda: _looked(bench.find(asked), asked, maps)), limits.seconds)

    return routes


def _described(opened: Opened, run: str) -> dict[str, Any]:
    """What the page must know of a model before anything is asked."""
    config = opened.lm.config
    try:
        source_of(opened.run)
        asks = True
    except InputError:
        asks = False
    return {
        "run": run,
        "step": opened.step,
        "adapter": opened.adapter,
        "is_chat": opened.is_chat,
        "context_length": opened.context_length,
        "parameters": sum(parameter.numel() for parameter in opened.lm.parameters()),
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "key_value_heads": config.kv_heads,
        "knows_questions": asks,  # it was trained on the built-in world
        "first_line": first_line(opened.run),
    }


def _question(opened: Opened, asked: QuestionAsked) -> dict[str, Any]:
    try:
        source = source_of(opened.run)
    except InputError as error:
        raise ApiError(400, str(error)) from None

    def fits(question: Question) -> bool:
        said = prompt_ids(opened.tokenizer, question.messages)
        return len(said) + len(opened.tokenizer.encode(question.reply)) < opened.context_length

    try:
        found = one_question(source, asked.number, fits, new_names=asked.new_names)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    return {"messages": list(found.messages), "reply": found.reply, "answer": found.answer, "kind": found.kind}


# ---------------------------------------------------------------------------------------------------------
# an answer, token by token


def _answer(opened: Opened, asked: AnswerAsked, limits: Limits) -> Iterator[dict[str, Any]]:
    """The events of an answer: {"prompt": [tokens]}, {"token": …} each, {"end": "stop" or "length"}.

    Tokens of the answer and the end say what they add to its thoughts and to its content, the end also its tool calls.
    """
    if asked.messages is not None:
        prompt = chat_ids(opened, [message.model_dump(exclude_defaults=True) for message in asked.messages])
    else:
        assert asked.prompt is not None
        prompt = text_ids(opened, asked.prompt)
    ids = _checked_ids(opened, [*prompt, *asked.answer_ids])
    _check_heads(opened, asked)
    stops = opened.tokenizer.stop_ids
    ended = "stop" if asked.answer_ids and asked.answer_ids[-1] in stops else ""
    room = 0 if ended else room_for(opened, ids, None, min(asked.max_tokens, limits.max_new_tokens))
    spoken = _Spoken(opened, prompt)
    told = [spoken.token(token) for token in prompt] + [spoken.own_token(token) for token in asked.answer_ids]
    yield {"prompt": told[: len(prompt)], "answer": told[len(prompt) :]}
    with scaled(opened.lm, asked.factors):
        steps = choose(opened.lm, ids, room, asked.sampling, stops, asked.seed, asked.top)
        while not ended:
            try:
                choice = next(steps)
            except StopIteration as end:
                ended = end.value
            else:
                yield {"token": spoken.own_token(choice.id) | _weight(opened, choice)}
    yield {"end": ended} | spoken.end()


class _Spoken:
    """Tokens as the page shows them, one after the other.

    text: what a token adds to the text: "" for a special token, and for a part of a character until its last one.
    label: one readable string for the token alone. is_thought: it belongs to the thoughts of the answer.
    """

    def __init__(self, opened: Opened, prompt: list[int]):
        self.tokenizer, self.written = opened.tokenizer, TextStream(opened.tokenizer)
        self.reply = Reply(opened.tokenizer, prompt, tools=True, is_chat=opened.is_chat)

    def token(self, token: int) -> dict[str, Any]:
        text = self.written.add(token)
        return {"id": token, "text": text, "label": readable_tokens(self.tokenizer, [token])[0]}

    def own_token(self, token: int) -> dict[str, Any]:
        """A token of the answer."""
        was_thinking, new = self.reply.thinking, Delta("", "")
        if token not in self.tokenizer.stop_ids:
            new = self.reply.add(token)
        return self.token(token) | new._asdict() | {"is_thought": was_thinking or self.reply.thinking}

    def end(self) -> dict[str, Any]:
        return self.reply.end()._asdict() | {"tool_calls": self.reply.tool_calls}


def _weight(opened: Opened, choice: Choice) -> dict[str, Any]:
    labels = readable_tokens(opened.tokenizer, [token for token, _ in choice.top])
    top = zip(choice.top, labels, strict=True)
    return {
        "log_prob": max(choice.log_prob, LEAST),
        "top": [{"id": token, "label": label, "log_prob": max(value, LEAST)} for (token, value), label in top],
    }


async def _streamed(
    first: dict[str, Any], events: AsyncGenerator[dict[str, Any]], limits: Limits
) -> AsyncGenerator[str]:
    until = asyncio.get_running_loop().time() + limits.seconds
    async with aclosing(events):
        try:
            one: dict[str, Any] | None = first
            while one is not None:
                yield event(one)
                one = await within(anext(events, None), until - asyncio.get_running_loop().time())
        except ApiError as error:  # the status was sent long ago
            yield event(error.body())


def _weighed(opened: Opened, asked: WeighAsked) -> dict[str, Any]:
    ids = _checked_ids(opened, asked.ids)
    _check_heads(opened, asked)
    with scaled(opened.lm, asked.factors):
        found = weigh(opened.lm, ids, asked.begin, asked.top)
    return {"tokens": [{"id": choice.id} | _weight(opened, choice) for choice in found]}


# ---------------------------------------------------------------------------------------------------------
# attention


class LastMaps:
    """The maps that were captured last: the next token that somebody looks at is most often of the same text."""

    def __init__(self) -> None:
        self.key: Any = None
        self.maps: AttentionMaps | None = None

    def around(self, opened: Opened, ids: list[int], position: int, asked: Changed) -> AttentionMaps:
        """The maps of the rows around a token, from one capture (`capture_around`)."""
        key = (opened, tuple(ids), rows_around(opened.lm, ids, position), tuple(sorted(asked.factors.items())))
        if self.maps is None or self.key != key:
            with scaled(opened.lm, asked.factors):
                self.key, self.maps = key, capture_around(opened.lm, ids, position)
        return self.maps


def _looked(opened: Opened, asked: LookAsked, last: LastMaps) -> dict[str, Any]:
    """weights: float32, little-endian, base64: of each layer, of each head, one number for each token before."""
    ids = _checked_ids(opened, asked.ids)
    _check_heads(opened, asked)
    row = looked_at(last.around(opened, ids, asked.position, asked), asked.position)
    layers, heads, keys = row.shape
    weights = base64.b64encode(row.numpy().astype(np.dtype("<f4")).tobytes()).decode("ascii")
    return {"layers": layers, "heads": heads, "keys": keys, "weights": weights}


# ---------------------------------------------------------------------------------------------------------
# what fits this model


def _checked_ids(opened: Opened, ids: list[int]) -> list[int]:
    """Raises ApiError for ids outside the vocabulary, and for more than the context holds."""
    if len(ids) > opened.context_length:
        raise ApiError(
            400,
            f"this model sees {opened.context_length} tokens, and these are {len(ids)}: shorten the text",
            code="context_length_exceeded",
        )
    return list(text_ids(opened, ids))


def _check_heads(opened: Opened, asked: Changed) -> None:
    try:
        with scaled(opened.lm, asked.factors):
            pass
    except ValueError as error:
        raise ApiError(400, f"heads: {error}") from None
