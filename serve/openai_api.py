"""Serve OpenAI's API: /v1/models, /v1/chat/completions and /v1/completions.

The page's chat uses it too, with one more field, `inspect` (serve/requests.py). Then `logprobs` has
the ids of tokens as well, and the first part of an answer has the tokens of the prompt.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from data.reply import Delta, Reply
from data.tokenizer import Tokenizer
from eval.attention.controls import Head
from serve import batching
from serve.answers import Answer, Piece, answer_all, chat_ids, room_for, text_ids
from serve.batching import Token
from serve.library import Library, Model
from serve.limits import TOO_LONG, ApiError, Limits, error_body
from serve.requests import ChatRequest, CompletionRequest, Inspect
from serve.structured import make_form

# The seeds of two answers to one prompt differ by this.
SEED_STEP = 1_000_003
Body = ChatRequest | CompletionRequest
Factors = dict[Head, float]


def router(library: Library, limits: Limits) -> APIRouter:
    """Return the routes of models, chats and texts."""
    routes = APIRouter(prefix="/v1")

    @routes.get("/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [model(name) for name in library.runs()]}

    @routes.get("/models/{name}")
    def model(name: str) -> dict[str, Any]:
        run = library.run(name)
        latest = run / "checkpoints/latest"
        # OpenAI's field; here the time of the newest checkpoint
        created = int((latest if latest.is_file() else run).stat().st_mtime)
        return {"id": name, "object": "model", "created": created, "owned_by": "headlight"}

    @routes.post("/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        # other clients than the page send no `inspect`: the newest checkpoint, all heads as they
        # are
        model, heads = await (body.inspect or Inspect()).find(library, body.model)
        ids = text_ids(model, [*chat_ids(model, body), *body.answer_ids], "answer_ids")
        # a chat is one prompt, from which n answers are drawn
        completion = Completion(model, body, [ids], heads, limits)
        if body._form is not None:
            field, schema, functions = body._form
            rows = model.lm.lm_head.out_features
            try:
                # a large schema takes seconds
                form = await asyncio.to_thread(
                    make_form, model.tokenizer, rows, ids, schema, functions
                )
            except ImportError:
                raise ApiError(400, f"{field} needs llguidance: pip install llguidance") from None
            except (ValueError, RecursionError) as error:
                raise ApiError(400, f"{field}: {error}") from None
            # each answer has its own place in the grammar
            for answer in completion.answers:
                answer.request.form = replace(form, matcher=form.matcher.deep_copy())
        return await completion.respond(request)

    @routes.post("/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        model, heads = await Inspect().find(library, body.model)
        # without a prompt, a document begins
        prompts = body.prompts or [[model.tokenizer.bos_id]]
        ids = [text_ids(model, prompt) for prompt in prompts]
        completion = Completion(model, body, ids, heads, limits)
        if body.echo:
            for answer in completion.answers:
                echo = prompts[answer.index // body.n]
                answer.echo = echo if isinstance(echo, str) else model.tokenizer.decode(echo)
        return await completion.respond(request)

    # Newer clients try this address first. An answer that names the other one saves a search.
    @routes.api_route("/responses", methods=["GET", "POST"])
    def responses() -> None:
        raise ApiError(404, "the Responses API is not served here: use /v1/chat/completions")

    return routes


class Completion:
    """The answers to one request, n to each prompt, in OpenAI's form. Raises ApiError."""

    def __init__(
        self, model: Model, body: Body, prompts: list[list[int]], heads: Factors, limits: Limits
    ):
        self.body = body
        self.tokenizer = model.tokenizer
        self.answers: list[Answer] = []
        self.is_inspected = isinstance(body, ChatRequest) and body.inspect is not None
        # how many tokens must fit (None: at least one), and the upper bound
        least = body.max_tokens
        most = limits.max_new_tokens
        if isinstance(body, ChatRequest):
            self.top = body.top_logprobs if body.logprobs else None
            begun = len(body.answer_ids)
            scores_prompt = begun > 0
            tools = self.is_inspected or bool(body.usable_tools)
            # max_completion_tokens is only a bound: front-ends send 1,000 for a title
            if body.max_completion_tokens is not None:
                least = None if body.max_completion_tokens else 0
                most = min(body.max_completion_tokens, most)
        else:
            self.top = body.logprobs
            begun = 0
            scores_prompt = body.echo
            tools = False
        # copied, because a request may add ids of its own
        stop_ids = set() if body.ignore_eos else {*self.tokenizer.stop_ids}
        if body.stop_token_ids:
            stop_ids.update(text_ids(model, body.stop_token_ids, "stop_token_ids"))
        # the answer has ended
        if begun and prompts[0][-1] in stop_ids:
            least = most = 0
        is_chat = isinstance(body, ChatRequest) and model.is_chat
        stops = [body.stop] if isinstance(body.stop, str) else body.stop
        for ids in prompts:
            room = room_for(model, ids, least, most)
            # thoughts and calls are read from the answer's first token on, wherever that is
            prompt = ids[: len(ids) - begun]
            for number in range(body.n):
                request = batching.Request(ids, room, body._sampling, frozenset(stop_ids))
                if body.seed is not None:
                    # n answers with one seed would be n times the same
                    request.seed = (body.seed + SEED_STEP * number) % 2**63
                request.top_log_probs = self.top
                request.of_prompt = scores_prompt
                request.heads = heads
                reply = Reply(self.tokenizer, prompt, stops=stops, tools=tools, is_chat=is_chat)
                shows_prompt = scores_prompt or self.is_inspected
                self.answers.append(Answer(len(self.answers), request, reply, begun, shows_prompt))
        self.pieces = answer_all(model.batcher, self.answers, limits.seconds)

    async def respond(self, request: Request) -> Response:
        """Send the answers. A stream sends an error as an event."""
        is_chat = isinstance(self.body, ChatRequest)
        head: dict[str, Any] = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": self.body.model,
        }
        if self.body.stream:
            # OpenAI's names differ: texts are streamed under the same one
            head["object"] += ".chunk" if is_chat else ""
            # an error before the first piece gets its own status
            events = self._events(head, await anext(self.pieces))
            return StreamingResponse(events, media_type="text/event-stream")
        async with aclosing(self.pieces):
            async for _ in self.pieces:
                # closing `pieces` frees the blocks
                if await request.is_disconnected():
                    raise ApiError(499, "the client went away")
        choices = []
        for answer in self.answers:
            text = Delta(answer.reply.reasoning_content, answer.reply.content)
            choices.append(self._choice(Piece(answer, text, answer.tokens), is_whole=True))
        return JSONResponse(head | {"choices": choices, "usage": self._usage()})

    async def _events(self, head: dict[str, Any], piece: Piece | None) -> AsyncGenerator[str]:
        with_usage = self.body.stream_options.get("include_usage")
        async with aclosing(self.pieces):
            try:
                while piece is not None:
                    part = head | {"choices": [self._choice(piece)]}
                    yield _event(part | {"usage": None} if with_usage else part)
                    piece = await anext(self.pieces, None)
                if with_usage:
                    yield _event(head | {"choices": [], "usage": self._usage()})
                yield "data: [DONE]\n\n"
            except TimeoutError:
                yield _event(error_body(ApiError(503, TOO_LONG)))
            except ApiError as error:
                yield _event(error_body(error))

    def _usage(self) -> dict[str, int]:
        # each prompt once, for all n answers
        read = sum(len(a.request.token_ids) - a.begun for a in self.answers[:: self.body.n])
        written = sum(len(a.tokens) for a in self.answers)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _choice(self, piece: Piece, is_whole: bool = False) -> dict[str, Any]:
        answer = piece.answer
        choice: dict[str, Any] = {"index": answer.index, "finish_reason": answer.finish_reason}
        if isinstance(self.body, CompletionRequest):
            choice["text"] = answer.echo * piece.is_first + piece.new.content
            choice["logprobs"] = None if self.top is None else self._text_log_probs(piece)
            return choice
        choice["message" if is_whole else "delta"] = _message(piece, is_whole)
        choice["logprobs"] = None
        if self.top is not None:
            tokens = [*piece.tokens, *answer.end] if self.is_inspected else piece.tokens
            choice["logprobs"] = {"content": [self._listed(token) for token in tokens]}
        if self.is_inspected and piece.is_first:
            choice["prompt"] = prompt = []
            for token in answer.prompt:
                label = self.tokenizer.token_labels([token.id])[0]
                prompt.append({"id": token.id, "text": token.text, "label": label})
        return choice

    def _text_log_probs(self, piece: Piece) -> dict[str, list]:
        answer = piece.answer
        tokens = [*answer.prompt] if piece.is_first else []
        # lm-evaluation-harness drops the last entry, so the ending token is listed too
        for token in (*piece.tokens, *answer.end):
            tokens.append(token._replace(offset=len(answer.echo) + token.offset))
        tops: list[dict[str, float] | None] = []
        for token in tokens:
            top: dict[str, float] = {}
            for token_id, log_prob in token.top:
                # of two tokens with the same text, the less likely one is listed by its id
                name = _name(self.tokenizer, token_id)
                top[f"token_id:{token_id}" if name in top else name] = log_prob
            tops.append(None if token.log_prob is None else top)
        return {
            "tokens": [_name(self.tokenizer, token.id) for token in tokens],
            "token_logprobs": [token.log_prob for token in tokens],
            "top_logprobs": tops,
            "text_offset": [token.offset for token in tokens],
        }

    def _listed(self, token: Token) -> dict[str, Any]:
        # a token and the likeliest ones with log-probabilities, in OpenAI's form; for the page
        # with ids, labels, and the text that the token adds
        def entry(token_id: int, log_prob: float) -> dict[str, Any]:
            name = _name(self.tokenizer, token_id)
            raw = [*self.tokenizer.decode_bytes([token_id])]
            values: dict[str, Any] = {"token": name, "logprob": log_prob, "bytes": raw}
            if self.is_inspected:
                values["id"] = token_id
                values["label"] = self.tokenizer.token_labels([token_id])[0]
            return values

        values = entry(token.id, token.log_prob or 0.0)
        values["top_logprobs"] = [entry(*likely) for likely in token.top]
        if self.is_inspected:
            values |= {"text": token.text, "is_thought": token.is_thought}
        return values


def _message(piece: Piece, is_whole: bool) -> dict[str, Any]:
    # the assistant's message, or the part that the piece adds
    answer = piece.answer
    message: dict[str, Any] = {"role": "assistant", "content": ""} if piece.is_first else {}
    for name, text in piece.new._asdict().items():
        if text:
            message[name] = text
    if is_whole:
        message["refusal"] = None
    if answer.reply.tool_calls and answer.finish_reason is not None:
        message["tool_calls"] = calls = []
        for number, function in enumerate(answer.reply.tool_calls):
            # a client sends this id back with the tool's answer
            call = {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
            calls.append(call if is_whole else {"index": number} | call)
        if is_whole:
            message["content"] = message["content"] or None
    return message


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    # a token as text; a part of a character by its bytes, as OpenAI does
    if token_id in tokenizer.special_ids:
        return tokenizer.decode([token_id], skip_special_tokens=False)
    raw = tokenizer.decode_bytes([token_id])
    text = raw.decode("utf-8", "backslashreplace")
    return text if text.encode() == raw else f"bytes:{text}"


def _event(body: dict[str, Any]) -> str:
    # an empty line ends an event, and JSON on one line has none
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
