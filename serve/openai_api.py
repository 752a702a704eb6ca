"""OpenAI's API: /v1/models, /v1/chat/completions, /v1/completions. Clients that know theirs know this one."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from configs.command import InputError
from data.reply import Delta, Reply
from data.tokenizer import Tokenizer
from serve import batching
from serve.answers import Answer, Piece, answer_all, chat_ids, room_for, text_ids
from serve.batching import Batcher, Token
from serve.library import Library, Model, Served
from serve.limits import ApiError, Limits, event, streamed, unless_gone, within
from serve.protocol import ChatRequest, CompletionRequest

SEED_STEP = 1_000_003  # between the seeds of two answers to one prompt
Choice = Callable[[Piece, bool, bool], dict[str, Any]]  # (piece, is_first, is_whole) -> one of the choices


def router(library: Library, limits: Limits) -> APIRouter:
    """The three routes."""
    routes = APIRouter(prefix="/v1")

    def about(name: str) -> dict[str, Any]:
        run = library.runs()[name]
        latest = run / "checkpoints/latest"
        created = int((latest if latest.is_file() else run).stat().st_mtime)
        return {"id": name, "object": "model", "created": created, "owned_by": "headlight"}

    def unknown(name: str) -> ApiError:
        known = ", ".join(library.runs())
        return ApiError(404, f"The model {name[:100]!r} does not exist. There are: {known}", "model_not_found")

    async def find(name: str) -> Served:
        try:
            return await asyncio.to_thread(library.find, name)  # others are answered while it is loaded
        except KeyError:
            raise unknown(name) from None
        except InputError as error:
            raise ApiError(503, str(error)) from None

    @routes.get("/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [about(name) for name in library.runs()]}

    @routes.get("/models/{name}")
    def model(name: str) -> dict[str, Any]:
        if name not in library.runs():
            raise unknown(name)
        return about(name)

    @routes.post("/chat/completions")
    async def chat(asked: ChatRequest, request: Request) -> Response:
        model, tools = await find(asked.model), asked.tools if asked.tool_choice == "auto" else []
        ids = chat_ids(model, asked.messages, tools, asked.template, asked.continue_final_message)
        answers = _answers(model, asked, [ids], limits, is_chat=model.is_chat, tools=bool(tools))
        choice = partial(_chat_choice, model.tokenizer, asked.top is not None)
        return await _respond(model.batcher, answers, asked, choice, request, limits)

    @routes.post("/completions")
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        model = await find(asked.model)
        prompts = asked.prompts or [[model.tokenizer.bos_id]]
        answers = _answers(model, asked, [text_ids(model, prompt) for prompt in prompts], limits, is_chat=False)
        if asked.echo:
            texts = [prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt) for prompt in prompts]
            for answer in answers:
                answer.echo = texts[answer.index // asked.n]
        choice = partial(_text_choice, model.tokenizer, asked.top is not None)
        return await _respond(model.batcher, answers, asked, choice, request, limits)

    return routes


def _answers(
    model: Model, asked: ChatRequest | CompletionRequest, prompts: list[list[int]], limits: Limits, **kind: bool
) -> list[Answer]:
    """The answers to be written, n to each prompt. kind: as `Reply` takes it. Raises ApiError."""
    answers, least = list[Answer](), asked.min_tokens
    stop_ids = frozenset(text_ids(model, asked.stop_token_ids, "stop_token_ids") if asked.stop_token_ids else ())
    stop_ids |= frozenset(() if asked.ignore_eos else model.tokenizer.stop_ids)
    of_prompt = isinstance(asked, CompletionRequest) and asked.echo
    for ids in prompts:
        room = room_for(model, ids, *asked.most_tokens(limits.max_new_tokens))
        if least > room:
            raise ApiError(400, f"min_tokens: {least} are more than the {room} tokens that may be written")
        for number in range(asked.n):
            seed = None if asked.seed is None else (asked.seed + SEED_STEP * number) % 2**63
            options = {"seed": seed, "top_log_probs": asked.top, "of_prompt": of_prompt, "min_new_tokens": least}
            request = batching.Request(ids, room, asked.sampling, stop_ids, **options)  # type: ignore[arg-type]
            reply = Reply(model.tokenizer, ids, stops=asked.stop, least=least, **kind)
            answers.append(Answer(len(answers), request, reply))
    return answers


async def _respond(
    batcher: Batcher,
    answers: list[Answer],
    asked: ChatRequest | CompletionRequest,
    choice: Choice,
    request: Request,
    limits: Limits,
) -> Response:
    """Whole, or streamed."""
    name, short = ("chat.completion", "chatcmpl") if isinstance(asked, ChatRequest) else ("text_completion", "cmpl")
    head = {"id": f"{short}-{secrets.token_hex(12)}", "object": name, "created": int(time.time()), "model": asked.model}
    pieces = answer_all(batcher, answers)

    def usage() -> dict[str, int]:
        read = sum(len(answer.request.token_ids) for answer in answers[:: asked.n])
        written = sum(len(answer.tokens) for answer in answers)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    async def events() -> AsyncGenerator[str]:
        of_part = head | ({"object": f"{name}.chunk"} if isinstance(asked, ChatRequest) else {})
        with_usage = asked.stream_options.include_usage
        begun = set[int]()
        async with aclosing(pieces):
            async for piece in pieces:
                is_first = piece.answer.index not in begun
                begun.add(piece.answer.index)
                if any(piece.new) or piece.tokens or piece.answer.finish_reason or is_first:
                    part = of_part | {"choices": [choice(piece, is_first, False)]}
                    yield event(part | ({"usage": None} if with_usage else {}))
        if with_usage:
            yield event(of_part | {"choices": [], "usage": usage()})
        yield "data: [DONE]\n\n"

    async def finish() -> None:
        async with aclosing(pieces):
            async for _ in pieces:
                pass

    if asked.stream:
        return await streamed(events(), limits.seconds)
    await within(unless_gone(finish(), request), limits.seconds)
    whole = [Piece(one, Delta(one.reply.reasoning_content, one.reply.content), one.tokens) for one in answers]
    return JSONResponse(head | {"choices": [choice(piece, True, True) for piece in whole], "usage": usage()})


# ---------------------------------------------------------------------------------------------------------
# what came of one answer, in OpenAI's form


def _chat_choice(
    tokenizer: Tokenizer, with_log_probs: bool, piece: Piece, is_first: bool, is_whole: bool
) -> dict[str, Any]:
    answer, calls = piece.answer, list[dict[str, Any]]()
    message: dict[str, Any] = {"role": "assistant", "content": ""} if is_first else {}
    message |= {name: text for name, text in piece.new._asdict().items() if text}
    if answer.finish_reason is not None:
        for number, call in enumerate(answer.reply.tool_calls):
            place = {} if is_whole else {"index": number}
            calls.append(place | {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": call})
    message |= {"tool_calls": calls} if calls else {}
    if is_whole:
        message |= {"refusal": None} | ({"content": message["content"] or None} if calls else {})
    return {
        "index": answer.index,
        "message" if is_whole else "delta": message,
        "logprobs": {"content": _listed(piece.tokens, tokenizer)} if with_log_probs else None,
        "finish_reason": answer.finish_reason,
    }


def _text_choice(
    tokenizer: Tokenizer, with_log_probs: bool, piece: Piece, is_first: bool, is_whole: bool
) -> dict[str, Any]:
    answer, log_probs = piece.answer, None
    if with_log_probs:
        # the token that ended the answer is listed too: lm-evaluation-harness takes the last entry to be what was
        # written after its text, whatever that was
        written = [token._replace(offset=len(answer.echo) + token.offset) for token in (*piece.tokens, *answer.end)]
        tokens = answer.prompt * is_first + written
        log_probs = {
            "tokens": [_named(tokenizer, token.id) for token in tokens],
            "token_logprobs": [_finite(token.log_prob) for token in tokens],
            "top_logprobs": [_top(tokenizer, token) for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }
    text = answer.echo * is_first + piece.new.content
    return {"index": answer.index, "text": text, "logprobs": log_probs, "finish_reason": answer.finish_reason}


def _top(tokenizer: Tokenizer, token: Token) -> dict[str, float | None] | None:
    """The likeliest tokens by their text; one whose text is taken, by a likelier one, has its id for a name."""
    if token.log_prob is None:
        return None
    top: dict[str, float | None] = {}
    for likely, log_prob in token.top:
        name = _named(tokenizer, likely)
        top[f"token_id:{likely}" if name in top else name] = _finite(log_prob)
    return top


def _listed(tokens: list[Token], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Tokens with their log-probabilities, as OpenAI lists them."""

    def entry(token: int, log_prob: float | None) -> dict[str, Any]:
        own = list(tokenizer.decode_bytes([token]))
        return {"token": _named(tokenizer, token), "logprob": _finite(log_prob), "bytes": own}

    return [
        entry(token.id, token.log_prob) | {"top_logprobs": [entry(*pair) for pair in token.top]} for token in tokens
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
