"""What the page's chat asks for: answers token by token with their alternatives, what a head looked at, heads changed.

GET  /live/chat/models      the runs, their checkpoints, and the adapters for each
GET  /live/chat/model       one of them, opened: its layers and heads, whether it was trained on chats
GET  /live/chat/question    a story of the built-in world, a question about it, and the right answer
POST /live/chat/answer      an answer as server-sent events: the prompt's tokens, each token, the end
POST /live/chat/weigh       what the model, with heads changed, thinks of an answer that is there
POST /live/chat/look        what every head looked at to predict one token
"""

from __future__ import annotations

import base64
from collections.abc import Generator
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from configs.command import InputError
from data.chat import Delta, Reply, TextStream, prompt_ids
from data.tokenizer import Tokenizer
from eval.attention.capture import AttentionMaps
from eval.attention.controls import Head, scaled
from eval.attention.probes import readable_tokens
from eval.chat.attention import capture_from
from eval.chat.session import first_line
from eval.chat.tokens import Choice, choose, looked_at, rows_around, weigh
from eval.questions import Question, one_question, source_of
from model.generation import Sampling
from serve.answers import chat_ids, finite, room_for, text_ids
from serve.library import Model
from serve.limits import ApiError, Limits, event, streamed
from serve.openai_api import MOST_TOP
from serve.workbench import Workbench, checkpoints_of

NameText = Annotated[str, StringConstraints(min_length=1, max_length=300)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=2**31)]], Field(max_length=2**20)]

# ---------------------------------------------------------------------------------------------------------
# what may be asked for; an unknown field is refused


class ModelName(BaseModel):
    """Which model: a run, one of its checkpoints (None: the newest), a run with adapters for it (None: none)."""

    model_config = ConfigDict(extra="forbid")

    run: NameText
    step: Annotated[int, Field(ge=0)] | None = None
    adapter: NameText | None = None


class QuestionRequest(ModelName):
    """GET /live/chat/question. The same number gives the same question."""

    number: int = Field(0, ge=0, le=2**40)
    new_names: bool = False


class ScaledHead(BaseModel):
    """A head whose output is multiplied by a factor. 0 = off, 1 = as it was trained."""

    model_config = ConfigDict(extra="forbid", strict=True)

    layer: int = Field(ge=0, le=9999)
    head: int = Field(ge=0, le=9999)
    factor: float = Field(ge=-10, le=10, allow_inf_nan=False)


class ChangedModel(ModelName):
    """A model, with some of its heads changed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    heads: list[ScaledHead] = Field(default=[])

    @property
    def factors(self) -> dict[Head, float]:
        return {(head.layer, head.head): head.factor for head in self.heads}

    @model_validator(mode="after")
    def _each_once(self) -> ChangedModel:
        if len(self.factors) < len(self.heads):
            raise ValueError("heads: a head may be named once only")
        return self


class Message(BaseModel):
    """What somebody said; of an answer also its thoughts and its tool calls, as they came."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str
    reasoning_content: str = ""
    tool_calls: list[dict[str, str]] = []


class AnswerRequest(ChangedModel):
    """POST /live/chat/answer. Give messages; or a prompt, as text or as the ids of an earlier answer's prompt.

    answer_ids: what stands of the answer already: it continues from there. temperature 0: always the likeliest token.
    top: how many of the likeliest tokens come with each token.
    """

    messages: list[Message] | None = Field(None, min_length=1, max_length=1000)
    prompt: str | TokenIds | None = None
    answer_ids: TokenIds = Field(default=[])
    max_tokens: int = Field(128, ge=1)
    temperature: float = Field(0.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(1.0, ge=1e-6, le=1)
    seed: int = Field(0, ge=0)
    top: int = Field(8, ge=1, le=MOST_TOP)

    @model_validator(mode="after")
    def _one_prompt(self) -> AnswerRequest:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or a prompt")
        _ = self.sampling  # raises ValueError for a temperature that is too small to compute with
        return self

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, top_p=None if self.top_p == 1 else self.top_p)


class WeighRequest(ChangedModel):
    """POST /live/chat/weigh. Of these ids, those from `begin` on are weighed."""

    ids: TokenIds = Field(min_length=2)
    begin: int = Field(ge=1)
    top: int = Field(8, ge=1, le=MOST_TOP)


class LookRequest(ChangedModel):
    """POST /live/chat/look. What predicted the token at `position` of these ids."""

    ids: TokenIds = Field(min_length=2)
    position: int = Field(ge=1)


# ---------------------------------------------------------------------------------------------------------
# the routes: models are opened, and work, in the workbench's thread


def router(bench: Workbench, limits: Limits) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(prefix="/live/chat")

    def find(body: ModelName) -> Model:
        return bench.find(body.run, body.step, body.adapter)

    @routes.get("/models")
    def models() -> dict[str, Any]:
        return {"models": bench.choices()}

    @routes.get("/model")
    async def model(body: Annotated[ModelName, Query()]) -> dict[str, Any]:
        def describe() -> dict[str, Any]:
            model, run = find(body), bench.library.run(body.run)
            step = next((step for step, path in checkpoints_of(run).items() if path == model.checkpoint), None)
            try:
                knows_questions = bool(source_of(run))  # it was trained on the built-in world
            except InputError:
                knows_questions = False
            config = model.lm.config
            return body.model_dump() | {
                "step": step,
                "is_chat": model.is_chat,
                "context_length": model.context_length,
                "parameters": sum(parameter.numel() for parameter in model.lm.parameters()),
                "layers": config.num_hidden_layers,
                "heads": config.num_attention_heads,
                "key_value_heads": config.kv_heads,
                "knows_questions": knows_questions,
                "first_line": first_line(run),
            }

        return await bench.do(describe)

    @routes.get("/question")
    async def question(body: Annotated[QuestionRequest, Query()]) -> dict[str, Any]:
        def draw() -> dict[str, Any]:
            model = find(body)

            def fits(question: Question) -> bool:
                prompt = prompt_ids(model.tokenizer, question.messages)
                return len(prompt) + len(model.tokenizer.encode(question.reply)) < model.context_length

            try:
                source = source_of(bench.library.run(body.run))
                drawn = one_question(source, body.number, fits, new_names=body.new_names)
            except (InputError, ValueError) as error:
                raise ApiError(400, str(error)) from None
            return {"messages": list(drawn.messages), "reply": drawn.reply, "answer": drawn.answer, "kind": drawn.kind}

        return await bench.do(draw)

    @routes.post("/answer")
    async def answer(body: AnswerRequest) -> StreamingResponse:
        def events() -> Generator[str]:
            for part in _answer(find(body), body, limits.max_new_tokens):
                yield event(part)

        return await streamed(bench.each(events()), limits.seconds)

    @routes.post("/weigh")
    async def weighed(body: WeighRequest) -> dict[str, Any]:
        def work() -> dict[str, Any]:
            model = find(body)
            _check(model, body, body.ids, begin=body.begin)
            with scaled(model.lm, body.factors):
                choices = weigh(model.lm, body.ids, body.begin, body.top)
            return {"tokens": [{"id": choice.id} | _alternatives(model.tokenizer, choice) for choice in choices]}

        return await bench.do(work)

    @routes.post("/look")
    async def look(body: LookRequest) -> dict[str, Any]:
        """weights: float32, little-endian, base64: of each layer, of each head, one number for each token before."""

        def work() -> dict[str, Any]:
            model = find(body)
            _check(model, body, body.ids, position=body.position)
            rows = rows_around(model.lm, body.ids, body.position)
            maps = _maps(model, tuple(body.ids), rows, frozenset(body.factors.items()))
            row = looked_at(maps, body.position)
            layers, heads, keys = row.shape
            weights = base64.b64encode(row.numpy().astype(np.dtype("<f4")).tobytes()).decode("ascii")
            return {"layers": layers, "heads": heads, "keys": keys, "weights": weights}

        return await bench.do(work)

    return routes


def _check(model: Model, body: ChangedModel, ids: list[int], **places: int) -> None:
    """Raises ApiError for ids, heads and places in the text that there are not."""
    for name, place in places.items():
        if place >= len(ids):
            raise ApiError(400, f"{name}: {place} is not among the {len(ids)} ids: they count from 0")
    if len(ids) > model.context_length:
        message = f"this model sees {model.context_length} tokens, and these are {len(ids)}: shorten the text"
        raise ApiError(400, message, "context_length_exceeded")
    text_ids(model, ids)
    try:
        with scaled(model.lm, body.factors):
            pass
    except ValueError as error:
        raise ApiError(400, f"heads: {error}") from None


def _answer(model: Model, body: AnswerRequest, most: int) -> Generator[dict[str, Any]]:
    """The events of an answer: {"prompt": [tokens]}, {"token": …} each, {"end": "stop" or "length"}.

    A token's text is what it adds to the text: "" for a special token, and for a part of a character until its last
    one; its label is one readable string for the token alone. Tokens of the answer and the end say what they add to
    its thoughts and to its content, the end also its tool calls.
    """
    if body.prompt is not None:
        prompt = text_ids(model, body.prompt)
    else:
        prompt = chat_ids(model, [message.model_dump(exclude_defaults=True) for message in body.messages or []])
    tokenizer, answer = model.tokenizer, list(body.answer_ids)
    _check(model, body, ids := [*prompt, *answer])
    written, reply = TextStream(tokenizer), Reply(tokenizer, prompt, tools=True, is_chat=model.is_chat)

    def shown(token: int) -> dict[str, Any]:
        return {"id": token, "text": written.add(token), "label": readable_tokens(tokenizer, [token])[0]}

    def of_answer(token: int) -> dict[str, Any]:
        was_thinking = reply.thinking
        new = Delta("", "") if token in tokenizer.stop_ids else reply.add(token)
        return shown(token) | new._asdict() | {"is_thought": was_thinking or reply.thinking}

    def has_ended() -> bool:
        return bool(answer) and answer[-1] in tokenizer.stop_ids

    room = 0 if has_ended() else room_for(model, ids, None, min(body.max_tokens, most))
    yield {"prompt": [shown(token) for token in prompt], "answer": [of_answer(token) for token in answer]}
    if room:
        with scaled(model.lm, body.factors):
            for choice in choose(model.lm, ids, room, body.sampling, tokenizer.stop_ids, body.seed, body.top):
                answer.append(choice.id)
                yield {"token": of_answer(choice.id) | _alternatives(tokenizer, choice)}
    end = "stop" if has_ended() else "length"
    yield {"end": end} | reply.end()._asdict() | {"tool_calls": reply.tool_calls}


def _alternatives(tokenizer: Tokenizer, choice: Choice) -> dict[str, Any]:
    """How likely a token was, and what might have been written instead."""
    labels = readable_tokens(tokenizer, [token for token, _ in choice.top])
    top = zip(choice.top, labels, strict=True)
    return {
        "log_prob": finite(choice.log_prob),
        "top": [{"id": token, "label": label, "log_prob": finite(value)} for (token, value), label in top],
    }


@lru_cache(maxsize=1)  # the next token that somebody looks at is most often of the same text
def _maps(
    model: Model, ids: tuple[int, ...], rows: tuple[int, int], factors: frozenset[tuple[Head, float]]
) -> AttentionMaps:
    """What the rows from the first to the end look at, from one capture."""
    with scaled(model.lm, dict(factors)):
        return capture_from(model.lm, ids[: rows[1]], rows[0])
