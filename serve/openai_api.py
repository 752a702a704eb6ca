"""OpenAI's API: /v1/models, /v1/chat/completions, /v1/completions. Clients that know theirs know this one.

A field that this server does not know is refused, never ignored: a client that asks for JSON must not believe that it
has it. Excepted are those that never change an answer (`HARMLESS`), and null, which means that a field is not given.

The page's chat asks here too, with one field more, `inspect`: any checkpoint, adapters, changed heads, an answer that
is begun. Then `logprobs` also says the ids of tokens, and the first part of an answer has the tokens of the prompt.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from data.chat import Delta, Reply
from data.tokenizer import Tokenizer
from eval.attention.controls import Head
from eval.attention.probes import readable_tokens
from model.generation import Sampling
from serve import batching
from serve.answers import Answer, Piece, answer_all, chat_ids, finite, room_for, text_ids
from serve.batching import Token
from serve.library import Library, Model
from serve.limits import TOO_LONG, ApiError, Limits, error_body
from serve.structured import make_form

MOST_ANSWERS = 16
MOST_TOP = 20  # likeliest tokens beside each token, as OpenAI
HARMLESS = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prediction"}
DEFAULTS: dict[str, Any] = {  # of fields that are not supported: they change nothing, and some clients send them
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "suffix": "",
    "best_of": 1,
}
SEED_STEP = 1_000_003  # between the seeds of two answers to one prompt

# ---------------------------------------------------------------------------------------------------------
# what may be asked for: checked before anything is computed

Text = Annotated[str, Field(min_length=1)]


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


class GenerationRequest(BaseModel):
    """What both kinds of request have."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=300)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)
    n: int = Field(1, ge=1, le=MOST_ANSWERS)
    stop: Annotated[list[Text], BeforeValidator(_as_list), Field(max_length=4)] = []  # 4, as OpenAI
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stream: bool = False
    stream_options: dict[Literal["include_usage", "include_obfuscation"], bool | None] = {}
    top_k: int | None = Field(None, ge=1)  # this and those that follow: as vLLM and others have them
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=100)  # beside the model's own
    ignore_eos: bool = False  # the model's own stop ids end nothing
    _sampling: Sampling

    @model_validator(mode="before")
    @classmethod
    def _without_what_changes_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        given = {name: value for name, value in body.items() if value is not None and name not in HARMLESS}
        return {name: value for name, value in given.items() if name not in DEFAULTS or value != DEFAULTS[name]}

    @model_validator(mode="after")
    def _set_sampling(self) -> GenerationRequest:
        """How tokens are drawn. Raises ValueError for numbers that are too small to compute with."""
        is_greedy = self.temperature == 0 or self.top_p == 0  # top_p 0: the likeliest token alone
        top_p, penalty = None if self.top_p == 1 else self.top_p, self.repetition_penalty
        filters = (0.0, None, None, None) if is_greedy else (self.temperature, self.top_k, top_p, self.min_p)
        self._sampling = Sampling(*filters, penalty)
        return self


class WhichModel(BaseModel):
    """A checkpoint of the run (None: the newest), a run with adapters for it, and heads that are changed: each a layer,
    a head, and the factor by which its output is multiplied. 0 = off, 1 = as it was trained."""

    model_config = ConfigDict(extra="forbid")

    step: int | None = None
    adapter: str | None = None
    heads: list[tuple[int, int, Annotated[float, Field(ge=-10, le=10)]]] = []

    async def find(self, library: Library, name: str) -> tuple[Model, dict[Head, float]]:
        """The model, loaded if need be, and the factors of its heads. Raises ApiError."""
        model = await asyncio.to_thread(library.find, name, self.step, self.adapter)  # others are answered meanwhile
        layers, heads = model.lm.config.num_hidden_layers, model.lm.config.num_attention_heads
        for layer, head, _ in self.heads:
            if layer not in range(layers) or head not in range(heads):
                raise ApiError(400, f"heads: layer {layer} of this model has no head {head}")
        return model, {(layer, head): factor for layer, head, factor in self.heads}


class Inspect(WhichModel):
    """`inspect`, which is not OpenAI's. answer_ids: tokens with which the answer begins. With max_completion_tokens: 0
    nothing is added to them."""

    answer_ids: list[int] = []


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1000)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MOST_TOP)
    tools: list[dict[str, Any]] = Field(default=[], max_length=100)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = {}  # this and the next one: as vLLM has them
    continue_final_message: bool = False
    reasoning_effort: str | None = Field(None, max_length=100)
    inspect: Inspect | None = None
    _form: tuple[str, dict[str, Any] | None, list[dict[str, Any]]] | None = None

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.max_completion_tokens == 0 and not (self.inspect and self.inspect.answer_ids):
            raise ValueError("max_completion_tokens: 0 leaves nothing to answer")
        return self

    @model_validator(mode="after")
    def _set_form(self) -> ChatRequest:
        """Find what the answer must be: the field that says so, a schema, and functions that may be called."""
        functions = [tool["function"] for tool in self.usable_tools if isinstance(tool.get("function"), dict)]
        must_call = self.tool_choice not in ("none", "auto")
        schema: dict[str, Any] | None = None
        match self.tool_choice:
            case {"type": "function", "function": {"name": name}}:
                functions = [function for function in functions if function.get("name") == name]
            case dict():
                functions = []
        if must_call and not functions:
            raise ValueError("tool_choice must be none, auto, required, or name a function of tools")
        if functions and not must_call and not self.parallel_tool_calls:
            raise ValueError("parallel_tool_calls: false works with tool_choice: required only")
        match self.response_format:
            case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
                pass
            case {"type": "json_object", **others} if not others:
                schema = {"type": "object"}
            case dict():
                raise ValueError("response_format must be text, json_object, or json_schema with its schema")
        if must_call:
            self._form = ("tool_choice", None, functions)
        elif schema is not None:
            self._form = ("response_format", schema, functions)
        if self._form and (self.inspect or self.continue_final_message):
            raise ValueError(f"{self._form[0]} is for whole answers, and this one is begun")
        return self

    @property
    def usable_tools(self) -> list[dict[str, Any]]:
        return [] if self.tool_choice == "none" else self.tools

    @property
    def template(self) -> dict[str, Any]:
        """Values of the chat template's variables. No effort means no thinking, for which templates have a switch."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return ({"enable_thinking": False} if self.reasoning_effort == "none" else effort) | self.chat_template_kwargs

    def most_tokens(self, limit: int) -> tuple[int | None, int]:
        """Of the answer: how many there must be room for (None: what there is), and how many it may have at most.

        max_completion_tokens is an upper bound, as OpenAI says: front-ends send 1,000 for a title, whatever the model.
        """
        if self.max_completion_tokens is None:
            return self.max_tokens, limit
        return None if self.max_completion_tokens else 0, min(self.max_completion_tokens, limit)

    @property
    def top(self) -> int | None:
        """Likeliest tokens to tell with each token; None: no log-probabilities."""
        return self.top_logprobs if self.logprobs else None


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]] | None = None  # None: as a document begins
    max_tokens: int = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MOST_TOP)
    echo: bool = False

    @model_validator(mode="after")
    def _check_counts(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 needs echo: true, else there is nothing to answer")
        if self.prompt == [] or len(self.prompts) * self.n > MOST_ANSWERS:
            raise ValueError(f"prompt: give 1 to {MOST_ANSWERS} prompts, times n")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as text or as token ids; none if it was left out."""
        given: Any = self.prompt
        is_one = isinstance(given, str) or (given and isinstance(given[0], int))
        return [given] if is_one else list(given or [])

    def most_tokens(self, limit: int) -> tuple[int | None, int]:
        return self.max_tokens, limit

    @property
    def top(self) -> int | None:
        return self.logprobs


# ---------------------------------------------------------------------------------------------------------
# the routes


def router(library: Library, limits: Limits) -> APIRouter:
    """The three routes."""
    routes = APIRouter(prefix="/v1")

    @routes.get("/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [model(name) for name in library.runs()]}

    @routes.get("/models/{name}")
    def model(name: str) -> dict[str, Any]:
        run = library.run(name)
        latest = run / "checkpoints/latest"
        created = int((latest if latest.is_file() else run).stat().st_mtime)
        return {"id": name, "object": "model", "created": created, "owned_by": "headlight"}

    @routes.post("/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        inspect = body.inspect or Inspect()
        model, heads = await inspect.find(library, body.model)
        ids = chat_ids(model, body.messages, body.usable_tools, body.template, body.continue_final_message)
        ids = text_ids(model, [*ids, *inspect.answer_ids], "answer_ids")
        answers = _answers(model, body, [ids], limits, heads, len(inspect.answer_ids))
        if body._form is not None:
            field, schema, functions = body._form
            rows = model.lm.lm_head.out_features
            try:
                form = await asyncio.to_thread(make_form, model.tokenizer, rows, ids, schema, functions)
            except ImportError:
                raise ApiError(400, f"{field} needs the library llguidance: pip install llguidance") from None
            except (ValueError, RecursionError) as error:
                raise ApiError(400, f"{field}: {error}") from None
            for answer in answers:
                answer.request.form = replace(form, matcher=form.matcher.deep_copy())
        return await _respond(model, answers, body, request, limits)

    @routes.post("/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        model, heads = await Inspect().find(library, body.model)
        prompts = body.prompts or [[model.tokenizer.bos_id]]
        answers = _answers(model, body, [text_ids(model, prompt) for prompt in prompts], limits, heads)
        if body.echo:
            texts = [prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt) for prompt in prompts]
            for answer in answers:
                answer.echo = texts[answer.index // body.n]
        return await _respond(model, answers, body, request, limits)

    @routes.api_route("/responses", methods=["GET", "POST"])
    def responses() -> None:
        raise ApiError(404, "the Responses API is not served here: use /v1/chat/completions")

    return routes


def _answers(
    model: Model,
    body: ChatRequest | CompletionRequest,
    prompts: list[list[int]],
    limits: Limits,
    heads: dict[Head, float],
    begun: int = 0,
) -> list[Answer]:
    """The answers to be written, n to each prompt. begun: of its ids the last so many are the answer's. Raises
    ApiError."""
    answers, tokenizer, is_chat = list[Answer](), model.tokenizer, isinstance(body, ChatRequest)
    stop_ids = frozenset(text_ids(model, body.stop_token_ids, "stop_token_ids") if body.stop_token_ids else ())
    stop_ids |= frozenset(() if body.ignore_eos else tokenizer.stop_ids)
    is_inspected = isinstance(body, ChatRequest) and body.inspect is not None
    with_tools = is_inspected or (isinstance(body, ChatRequest) and bool(body.usable_tools))
    of_prompt = begun > 0 or (isinstance(body, CompletionRequest) and body.echo)
    for ids in prompts:
        has_ended = begun and ids[-1] in stop_ids
        room = room_for(model, ids, *((0, 0) if has_ended else body.most_tokens(limits.max_new_tokens)))
        for number in range(body.n):
            seed = None if body.seed is None else (body.seed + SEED_STEP * number) % 2**63
            request = batching.Request(ids, room, body._sampling, stop_ids, seed=seed, heads=heads)
            request.top_log_probs, request.of_prompt = body.top, of_prompt
            read = ids[: len(ids) - begun]
            reply = Reply(tokenizer, read, stops=body.stop, tools=with_tools, is_chat=is_chat and model.is_chat)
            answers.append(Answer(len(answers), request, reply, begun, of_prompt or is_inspected))
    return answers


async def _respond(
    model: Model, answers: list[Answer], body: ChatRequest | CompletionRequest, request: Request, limits: Limits
) -> Response:
    """Whole, or streamed: what goes wrong before the first event has its status, later it is an event."""
    is_chat = isinstance(body, ChatRequest)
    name, short = ("chat.completion", "chatcmpl") if is_chat else ("text_completion", "cmpl")
    head = {"id": f"{short}-{secrets.token_hex(12)}", "object": name, "created": int(time.time()), "model": body.model}
    pieces = answer_all(model.batcher, answers, limits.seconds)

    def choice(piece: Piece, is_whole: bool) -> dict[str, Any]:
        if isinstance(body, ChatRequest):
            return _chat_choice(model.tokenizer, body, piece, is_whole)
        return _text_choice(model.tokenizer, body.top is not None, piece)

    def usage() -> dict[str, int]:
        read = sum(len(answer.request.token_ids) - answer.begun for answer in answers[:: body.n])
        written = sum(len(answer.tokens) for answer in answers)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    async def events(piece: Piece | None) -> AsyncGenerator[str]:
        of_part = head | ({"object": f"{name}.chunk"} if is_chat else {})
        with_usage = body.stream_options.get("include_usage")
        async with aclosing(pieces):
            try:
                while piece is not None:
                    yield event(of_part | {"choices": [choice(piece, False)]} | ({"usage": None} if with_usage else {}))
                    piece = await anext(pieces, None)
                if with_usage:
                    yield event(of_part | {"choices": [], "usage": usage()})
                yield "data: [DONE]\n\n"
            except TimeoutError:
                yield event(error_body(ApiError(503, TOO_LONG)))
            except ApiError as error:
                yield event(error_body(error))

    if body.stream:
        return StreamingResponse(events(await anext(pieces)), media_type="text/event-stream")
    async with aclosing(pieces):
        async for _ in pieces:
            if await request.is_disconnected():
                raise ApiError(499, "the client went away")  # nobody reads it
    complete = [
        Piece(answer, Delta(answer.reply.reasoning_content, answer.reply.content), answer.tokens) for answer in answers
    ]
    return JSONResponse(head | {"choices": [choice(piece, True) for piece in complete], "usage": usage()})


def event(body: dict[str, Any]) -> str:
    """One server-sent event: JSON has no line end of its own."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


# ---------------------------------------------------------------------------------------------------------
# what came of one answer, in OpenAI's form


def _chat_choice(tokenizer: Tokenizer, body: ChatRequest, piece: Piece, is_whole: bool) -> dict[str, Any]:
    answer, calls, is_inspected = piece.answer, list[dict[str, Any]](), body.inspect is not None
    message: dict[str, Any] = {"role": "assistant", "content": ""} if piece.is_first else {}
    message |= {name: text for name, text in piece.new._asdict().items() if text}
    for number, call in enumerate(answer.reply.tool_calls if answer.finish_reason is not None else ()):
        place = {} if is_whole else {"index": number}
        calls.append(place | {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": call})
    if calls:
        message["tool_calls"] = calls
    if is_whole:
        message |= {"refusal": None} | ({"content": message["content"] or None} if calls else {})
    name, ended = "message" if is_whole else "delta", answer.finish_reason
    choice = {"index": answer.index, name: message, "logprobs": None, "finish_reason": ended}
    if body.top is not None:
        tokens = [*piece.tokens, *answer.end] if is_inspected else piece.tokens
        choice["logprobs"] = {"content": [_listed(tokenizer, token, is_inspected) for token in tokens]}
    if is_inspected and piece.is_first:
        choice["prompt"] = [
            {"id": token.id, "text": token.text, "label": _label(tokenizer, token.id)} for token in answer.prompt
        ]
    return choice


def _text_choice(tokenizer: Tokenizer, with_log_probs: bool, piece: Piece) -> dict[str, Any]:
    answer, log_probs = piece.answer, None
    if with_log_probs:
        # the token that ended the answer is listed too: lm-evaluation-harness takes the last entry to be what was
        # written after its text, whatever that was
        written = [token._replace(offset=len(answer.echo) + token.offset) for token in (*piece.tokens, *answer.end)]
        tokens = answer.prompt * piece.is_first + written
        log_probs = {
            "tokens": [_named(tokenizer, token.id) for token in tokens],
            "token_logprobs": [token.log_prob and finite(token.log_prob) for token in tokens],
            "top_logprobs": [_top(tokenizer, token) for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }
    text = answer.echo * piece.is_first + piece.new.content
    return {"index": answer.index, "text": text, "logprobs": log_probs, "finish_reason": answer.finish_reason}


def _top(tokenizer: Tokenizer, token: Token) -> dict[str, float | None] | None:
    """The likeliest tokens by their text; one whose text is taken, by a likelier one, has its id for a name."""
    if token.log_prob is None:
        return None
    top: dict[str, float | None] = {}
    for likely, log_prob in token.top:
        name = _named(tokenizer, likely)
        top[f"token_id:{likely}" if name in top else name] = finite(log_prob)
    return top


def _listed(tokenizer: Tokenizer, token: Token, is_inspected: bool) -> dict[str, Any]:
    """A token with its log-probability and the likeliest ones, as OpenAI lists them. is_inspected: also its id, a label
    that can be read alone, and what it adds to the text: "" for a special token, and for a part of a character until
    its last one."""

    def entry(token: int, log_prob: float) -> dict[str, Any]:
        own = list(tokenizer.decode_bytes([token]))
        more = {"id": token, "label": _label(tokenizer, token)} if is_inspected else {}
        return {"token": _named(tokenizer, token), "logprob": finite(log_prob), "bytes": own} | more

    more = {"text": token.text, "is_thought": token.is_thought} if is_inspected else {}
    return entry(token.id, token.log_prob or 0.0) | {"top_logprobs": [entry(*likely) for likely in token.top]} | more


def _label(tokenizer: Tokenizer, token: int) -> str:
    return readable_tokens(tokenizer, [token])[0]


def _named(tokenizer: Tokenizer, token: int) -> str:
    """A token as text. One that holds a part of a character has its bytes for a name, as OpenAI writes it."""
    if token in tokenizer.special_ids:
        return tokenizer.decode([token], skip_special_tokens=False)
    own = tokenizer.decode_bytes([token])
    text = own.decode("utf-8", "backslashreplace")
    return text if text.encode() == own else f"bytes:{text}"
