"""OpenAI's API: /v1/models, /v1/chat/completions, /v1/completions. Clients that know theirs know this one."""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from configs.command import InputError
from data.tokenizer import Tokenizer
from serve.answers import Answer, Piece, Question, answers, chat_ids, room_for, text_ids
from serve.batching import Token
from serve.errors import ApiError
from serve.events import event
from serve.library import Library, Served
from serve.limits import Limits, unless_gone, within
from serve.protocol import Asked, ChatRequest, CompletionRequest

SEED_STEP = 1_000_003  # between the seeds of two answers to one question


def router(library: Library, limits: Limits) -> APIRouter:
    """The three routes."""
    routes = APIRouter(prefix="/v1")

    @routes.get("/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(library, name) for name in library.runs()]}

    @routes.get("/models/{name}")
    def model(name: str) -> dict[str, Any]:
        if name not in library.runs():
            raise _unknown(library, name)
        return _model(library, name)

    @routes.post("/chat/completions")
    async def chat(asked: ChatRequest, request: Request) -> Response:
        served = await _open(library, asked.model)
        tools = [] if asked.tool_choice == "none" else asked.tools or []
        ids = chat_ids(served, asked.messages, tools, asked.template, bool(asked.continue_final_message))
        room = asked.most_tokens(limits.max_new_tokens)
        question = _question(served, asked, ids, room, asked.top, has_tools=bool(tools))
        shape = _Chat(served, f"chatcmpl-{secrets.token_hex(12)}", asked.top is not None)
        return await _respond(library, served, [question], asked, shape, request, limits)

    @routes.post("/completions")
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        served = await _open(library, asked.model)
        try:
            prompts = asked.prompts or [[served.tokenizer.bos_id]]
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        every = [text_ids(served, prompt) for prompt in prompts]
        room = asked.max_tokens, limits.max_new_tokens
        questions = [_question(served, asked, ids, room, asked.logprobs, of_prompt=bool(asked.echo)) for ids in every]
        said = [p if isinstance(p, str) else served.tokenizer.decode(p) for p in prompts] if asked.echo else []
        shape = _Text(served, f"cmpl-{secrets.token_hex(12)}", asked.logprobs is not None, said, asked.n or 1)
        return await _respond(library, served, questions, asked, shape, request, limits)

    return routes


async def _open(library: Library, name: str) -> Served:
    """The model, loaded in a thread so that others are answered meanwhile. Raises ApiError."""
    try:
        return await asyncio.to_thread(library.find, name)
    except KeyError:
        raise _unknown(library, name) from None
    except InputError as error:
        raise ApiError(503, str(error), "server_error") from None


def _unknown(library: Library, name: str) -> ApiError:
    known = ", ".join(library.runs())
    return ApiError(404, f"The model {name[:100]!r} does not exist. There are: {known}", code="model_not_found")


def _model(library: Library, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": library.changed_at(name), "owned_by": "headlight"}


def _question(
    served: Served,
    asked: Asked,
    ids: list[int],
    room: tuple[int | None, int],
    top: int | None,
    has_tools: bool = False,
    of_prompt: bool = False,
) -> Question:
    try:
        sampling = asked.sampling
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    new, least = room_for(served, ids, *room), asked.min_tokens or 0
    if least > new:
        raise ApiError(400, f"min_tokens: {least} are more than the {new} tokens that may be written")
    stop_ids = frozenset(text_ids(served, asked.stop_token_ids, "stop_token_ids") if asked.stop_token_ids else ())
    stop_ids |= frozenset(() if asked.ignore_eos else served.tokenizer.stop_ids)
    n, seed = asked.n or 1, asked.seed
    seeds = [None if seed is None else (seed + SEED_STEP * number) % 2**63 for number in range(n)]
    return Question(ids, new, sampling, seeds, stop_ids, asked.stops, top, has_tools, of_prompt, least)


# ---------------------------------------------------------------------------------------------------------
# the form of a response


class _Shape(ABC):
    """What the two kinds of response have in common."""

    whole = part = ""  # the name of the object: a response, and a piece of a streamed one

    def __init__(self, served: Served, number: str, with_log_probs: bool):
        self.number, self.tokenizer, self.with_log_probs = number, served.tokenizer, with_log_probs
        self.model, self.created = served.name, int(time.time())

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.number, "object": kind, "created": self.created, "model": self.model}

    @abstractmethod
    def choice(self, answer: Answer) -> dict[str, Any]:
        """One answer of a whole response."""

    @abstractmethod
    def delta(self, piece: Piece, is_first: bool) -> dict[str, Any]:
        """What is new of one answer, in a streamed response."""


class _Chat(_Shape):
    whole, part = "chat.completion", "chat.completion.chunk"

    def choice(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.written.text, "refusal": None}
        if calls := answer.written.tool_calls():
            message |= {"tool_calls": calls, "content": answer.written.text or None}
        log_probs = {"content": _listed(answer.tokens, self.tokenizer)} if self.with_log_probs else None
        reason = _reason(answer, calls)
        return {"index": answer.index, "message": message, "logprobs": log_probs, "finish_reason": reason}

    def delta(self, piece: Piece, is_first: bool) -> dict[str, Any]:
        answer, calls = piece.answer, list[dict[str, Any]]()
        changed: dict[str, Any] = {"role": "assistant"} if is_first else {}
        if piece.text or is_first:
            changed["content"] = piece.text
        if answer.finish_reason is not None and (calls := answer.written.tool_calls()):
            changed["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        log_probs = {"content": _listed(piece.tokens, self.tokenizer)} if self.with_log_probs else None
        reason = _reason(answer, calls)
        return {"index": answer.index, "delta": changed, "logprobs": log_probs, "finish_reason": reason}


class _Text(_Shape):
    whole = part = "text_completion"

    def __init__(self, served: Served, number: str, with_log_probs: bool, said: list[str], n: int):
        super().__init__(served, number, with_log_probs)
        self.said, self.n = said, n

    def choice(self, answer: Answer) -> dict[str, Any]:
        return self._choice(answer, answer.written.text, answer.tokens, with_prompt=True)

    def delta(self, piece: Piece, is_first: bool) -> dict[str, Any]:
        return self._choice(piece.answer, piece.text, piece.tokens, with_prompt=is_first)

    def _choice(self, answer: Answer, text: str, tokens: list[Token], with_prompt: bool) -> dict[str, Any]:
        said, log_probs = self.said[answer.index // self.n] if self.said else "", None
        if self.with_log_probs:
            # the token that ended the answer is listed too: lm-evaluation-harness takes the last entry to be what was
            # written after its text, whatever that was
            written = [token._replace(offset=len(said) + token.offset) for token in (*tokens, *answer.ended_by)]
            every = answer.read * with_prompt + written
            log_probs = {
                "tokens": [_named(self.tokenizer, token.id) for token in every],
                "token_logprobs": [_finite(token.log_prob) for token in every],
                "top_logprobs": [self._top(token) for token in every],
                "text_offset": [token.offset for token in every],
            }
        text = said * with_prompt + text
        return {"index": answer.index, "text": text, "logprobs": log_probs, "finish_reason": answer.finish_reason}

    def _top(self, token: Token) -> dict[str, float | None] | None:
        """The likeliest tokens by their text; one whose text is taken, by a likelier one, has its id for a name."""
        if token.log_prob is None:
            return None
        top: dict[str, float | None] = {}
        for likely, log_prob in token.top:
            name = _named(self.tokenizer, likely)
            top[f"token_id:{likely}" if name in top else name] = _finite(log_prob)
        return top


def _reason(answer: Answer, calls: list[dict[str, Any]]) -> str | None:
    """A tool call that could not be read is none."""
    return "stop" if answer.finish_reason == "tool_calls" and not calls else answer.finish_reason


def _listed(tokens: list[Token], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Tokens with their log-probabilities, as OpenAI lists them."""

    def one(token: int, log_prob: float | None) -> dict[str, Any]:
        own = list(tokenizer.decode_bytes([token]))
        return {"token": _named(tokenizer, token), "logprob": _finite(log_prob), "bytes": own}

    return [
        one(token.id, token.log_prob) | {"top_logprobs": [one(*likely) for likely in token.top]} for token in tokens
    ]


def _named(tokenizer: Tokenizer, token: int) -> str:
    """A token as text. One that holds a part of a character has its bytes for a name, as OpenAI writes it."""
    if token in tokenizer.special_ids:
        return tokenizer.decode([token], skip_special_tokens=False)
    own = tokenizer.decode_bytes([token])
    text = own.decode("utf-8", "backslashreplace")
    return text if text.encode() == own else f"bytes:{text}"


def _finite(log_prob: float | None) -> float | None:
    """JSON has no infinity."""
    return None if log_prob is None else max(log_prob, -9999.0)


# ---------------------------------------------------------------------------------------------------------
# whole, or streamed


async def _respond(
    library: Library,
    served: Served,
    questions: list[Question],
    asked: Asked,
    shape: _Shape,
    request: Request,
    limits: Limits,
) -> Response:
    pieces = answers(library, served, questions)
    prompt_tokens = sum(len(question.token_ids) for question in questions)
    if asked.stream:
        first = await within(anext(pieces), limits.seconds)  # what is refused has its status before anything is sent
        with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        events = _events(first, pieces, shape, prompt_tokens if with_usage else None, limits)
        return StreamingResponse(events, media_type="text/event-stream")
    found: dict[int, Answer] = {}

    async def collect() -> None:
        async with aclosing(pieces):
            async for piece in pieces:
                found[piece.answer.index] = piece.answer

    await within(unless_gone(collect(), request), limits.seconds)
    every = [found[index] for index in sorted(found)]
    body = shape.head(shape.whole) | {"choices": [shape.choice(one) for one in every]}
    return JSONResponse(body | {"usage": _usage(prompt_tokens, every)})


async def _events(
    first: Piece, pieces: AsyncGenerator[Piece], shape: _Shape, prompt_tokens: int | None, limits: Limits
) -> AsyncGenerator[str]:
    """The events of a streamed response. prompt_tokens: for the usage at the end; None: none is wanted."""
    found: dict[int, Answer] = {}
    head, until = shape.head(shape.part), asyncio.get_running_loop().time() + limits.seconds
    usage = {} if prompt_tokens is None else {"usage": None}
    async with aclosing(pieces):
        try:
            piece: Piece | None = first
            while piece is not None:
                answer = piece.answer
                is_first = answer.index not in found
                found[answer.index] = answer
                if piece.text or piece.tokens or answer.finish_reason or is_first:
                    yield event(head | {"choices": [shape.delta(piece, is_first)]} | usage)
                piece = await within(anext(pieces, None), until - asyncio.get_running_loop().time())
        except ApiError as error:  # the status was sent long ago
            yield event(error.body())
            return
    if prompt_tokens is not None:
        yield event(head | {"choices": [], "usage": _usage(prompt_tokens, [*found.values()])})
    yield "data: [DONE]\n\n"


def _usage(prompt_tokens: int, every: list[Answer]) -> dict[str, int]:
    written = sum(len(one.tokens) for one in every)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": written, "total_tokens": prompt_tokens + written}
