"""Continuous batching: requests join and leave a running batch between two tokens.

A language model on its own writes one token a pass, and reads all its weights for it. Reading them for many requests at
once costs little more. But requests come and end at any time, so the batch changes between two tokens (Yu et al. 2022,
Orca, OSDI). One round, over and over (`step`):

    1. requests whose client went away leave; their blocks are free at once
    2. waiting requests join while there are blocks for all that they may write; the first to come is the first to join
    3. prompts are read, a chunk at a time, so that a long one does not hold up the others
    4. one token for every request whose prompt is read, all in one pass; those that are done leave

Keys and values are in a paged cache (model/variants/paged_cache.py). A request gets all its blocks when it joins, so
nothing that runs is ever thrown out, and memory is bounded.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from eval.attention.controls import Head, scaled
from model import LanguageModel
from model.generation import Sampling, next_token
from model.variants.paged_cache import PagedCache, PagedView, Table
from serve.structured import Form

MEMORY = 2**29  # bytes of a cache, if not told otherwise


class TooManyRequests(RuntimeError):
    """As many requests wait as may."""


class Token(NamedTuple):
    """One token. log_prob: ln p of the model itself; top: the likeliest ids with theirs, if asked for.

    The batcher knows no texts; serve/answers.py fills in the others. offset: where the token begins in its text, in
    characters; text: what it adds to it; is_thought: whether it belongs to the answer's thoughts.
    """

    id: int
    log_prob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    offset: int = 0
    text: str = ""
    is_thought: bool = False


class End(NamedTuple):
    """The end of an answer. stop: by a stop id, `token`, which is not part of it. message: what went wrong."""

    reason: Literal["stop", "length", "cancelled", "error"]
    message: str = ""
    token: Token | None = None


Event = Token | End


@dataclass(eq=False)
class Request:
    """What is asked for. emit: called in the batcher's thread with every Token, and at the end with an End.

    top_log_probs: how many likeliest ids come with each token; None: no log-probabilities. of_prompt: the prompt's
    tokens have them too, in `read`, before the first Token.
    heads: heads of the model whose outputs are multiplied by a factor, for this request alone.
    form: what the answer must look like; None: anything.
    """

    token_ids: list[int]
    max_new_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    emit: Callable[[Event], None] = lambda event: None
    seed: int | None = None
    top_log_probs: int | None = None
    of_prompt: bool = False
    heads: dict[Head, float] = field(default_factory=dict)
    form: Form | None = None
    cancelled: bool = False  # by whoever asked: its blocks are free before the next token
    # once it has joined:
    table: Table = field(init=False)
    generator: torch.Generator = field(init=False)
    read: list[Token] = field(default_factory=list, init=False)  # nothing predicts the first of them

    @property
    def reads_prompt(self) -> bool:
        """Whether more than the newest token is unread."""
        return self.table.length < len(self.token_ids)

    def tell(self, event: Event) -> None:
        """A receiver that fails, say because its event loop is closed, is gone: the other requests go on."""
        try:
            self.emit(event)
        except Exception:
            logging.getLogger(__name__).exception("who asked cannot be told: the request is cancelled")
            self.cancelled = True


class Batcher:
    """One model and the requests that it serves. `submit` from any thread; `start` the thread that answers, or `step`.

    blocks: of the cache; by default half a gigabyte of them, for 4 to max_running full contexts. max_running: requests
    in one pass. max_waiting: more are refused. chunk: tokens of prompts that are read between two tokens.
    """

    def __init__(
        self,
        lm: LanguageModel,
        blocks: int | None = None,
        block_size: int = 16,
        max_running: int = 64,
        max_waiting: int = 256,
        chunk: int = 512,
    ):
        self.lm = lm.eval()
        like = next(lm.parameters())
        numbers = lm.config.num_hidden_layers * sum(heads * width for heads, width in lm.config.cache_shapes)
        context = -(-lm.config.max_position_embeddings // block_size)  # blocks
        in_memory = MEMORY // (numbers * like.element_size() * block_size)
        blocks = blocks or min(max(in_memory, 4 * context), max(4, max_running) * context)
        self.cache = PagedCache(lm.config, blocks, like, block_size)
        self.device, self.max_running, self.max_waiting, self.chunk = like.device, max_running, max_waiting, chunk
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.jobs: deque[tuple[Future, Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self.running or self.waiting or self.jobs)

    def submit(self, request: Request) -> None:
        """Put a request into the queue. Raises ValueError for one that can never be served, and TooManyRequests."""
        reads, writes, longest = len(request.token_ids), request.max_new_tokens, self.lm.config.max_position_embeddings
        fits = reads + writes <= longest and self.cache.blocks_for(reads + writes) <= len(self.cache.users)
        if not fits or reads < 1 or writes < (0 if request.of_prompt else 1):
            raise ValueError(f"{reads} tokens to read and {writes} to write do not fit: this model sees {longest}")
        self._put(self.waiting, request)

    def do(self, job: Callable[[], Any]) -> Future[Any]:
        """What a job returns that is run between two tokens: for as long as it lasts, the model is the job's alone.
        Raises TooManyRequests."""
        future = Future[Any]()
        self._put(self.jobs, (future, job))
        return future

    def _put(self, queue: deque, item: object) -> None:
        with self._changed:
            if self._stopping:
                raise TooManyRequests("the server is stopping")
            if len(queue) >= self.max_waiting:
                raise TooManyRequests(f"{len(queue)} requests are waiting: try again later")
            queue.append(item)
            self._changed.notify()

    @torch.no_grad()
    def step(self) -> bool:
        """One round. False if there was nothing to do."""
        with self._changed:  # 1. who went away leaves
            self.waiting = deque(request for request in self.waiting if not request.cancelled)
        for request in [request for request in self.running if request.cancelled]:
            self._leave(request, End("cancelled"))
        left = self.chunk
        while left > 0:  # 2. and 3. one after the other: the next to join may share the blocks of the one before
            reading = next((request for request in self.running if request.reads_prompt), None) or self._admit()
            if reading is None:
                break
            left -= self._read_prompt(reading, left)
        if not self.running:
            return False
        writing = [request for request in self.running if not request.reads_prompt]  # 4. a token for each of them
        if writing:
            self._write(writing, self._forward(writing, 1)[:, -1])
        return True

    def _admit(self) -> Request | None:
        """The request that waits for longest joins, if there is room for it. Those behind it never pass it."""
        with self._changed:
            if not self.waiting or len(self.running) >= self.max_running:
                return None
            request = self.waiting[0]
            room = len(request.token_ids) + request.max_new_tokens
            if self.cache.blocks_for(room) > self.cache.free_blocks:
                return None
            self.waiting.popleft()
        request.generator = torch.Generator(device=self.device)
        request.generator.manual_seed(request.seed) if request.seed is not None else request.generator.seed()
        # shared blocks are not read again, so they give no log-probabilities; keys and values behind a changed head are
        # others, and shared by those with the same change alone
        apart = repr(sorted(request.heads.items())).encode() if request.heads else b""
        request.table = self.cache.begin(request.token_ids, room, share=not request.of_prompt, apart=apart)
        self.running.append(request)
        return request

    def _read_prompt(self, request: Request, most: int) -> int:
        """Read the next chunk of a prompt, `most` tokens at most; at its end, the first token. -> tokens read."""
        table = request.table
        count = min(most, len(request.token_ids) - table.length)
        logits = self._forward([request], count, keep=0 if request.of_prompt else 1)
        if request.of_prompt:
            request.read = request.read or [Token(request.token_ids[0])]
            predicted = request.token_ids[len(request.read) : table.length + 1]  # the last of all predicts no token
            request.read += _described(predicted, logits[0, : len(predicted)], request.top_log_probs)
        if not request.reads_prompt:
            self._write([request], logits[:, -1])
        return count

    def _forward(self, rows: Sequence[Request], count: int, keep: int = 1) -> Tensor:
        """Read the next `count` tokens of these requests -> logits (rows, keep, V) float32; keep: as `logits_to_keep`.

        A head that any row changes is scaled for that row; 1 leaves the bits of the other rows as they are."""
        tables, factors = [row.table for row in rows], {}
        for head in {head for row in rows for head in row.heads}:
            column = torch.tensor([row.heads.get(head, 1.0) for row in rows], device=self.device)
            factors[head] = column[:, None, None]  # (B, 1, 1)
        view = PagedView(self.cache, tables, count)
        ids = torch.tensor([x.token_ids[x.length : x.length + count] for x in tables], device=self.device)
        inputs = {"attention_mask": view.attention_mask, "position_ids": view.position_ids, "kv_cache": view}
        with scaled(self.lm, factors):
            logits = self.lm(ids, **inputs, logits_to_keep=keep)
        for table in tables:
            self.cache.read(table, count)
        return logits.float()

    def _write(self, requests: list[Request], logits: Tensor) -> None:
        """The next token of each request: logits (requests, V) float32. Those that are done leave."""
        usable = logits.amax(-1).isfinite().tolist()
        greedy = logits.argmax(-1).tolist()
        for row, request in enumerate(requests):
            scores, token = logits[row : row + 1], greedy[row]
            if not usable[row] or any(math.isnan(read.log_prob or 0.0) for read in request.read):
                self._leave(request, End("error", "the model's logits are non-finite: its weights are damaged"))
                continue
            if not request.max_new_tokens:
                self._leave(request, End("length"))
                continue
            candidates = scores
            if request.form is not None:
                try:
                    forbidden = ~request.form.allowed().to(self.device)
                except ValueError as error:
                    self._leave(request, End("error", f"the form of the answer: {error}"))
                    continue
                candidates = scores.masked_fill(forbidden, -torch.inf)
                token = int(candidates.argmax())
            if request.sampling != Sampling(temperature=0):
                seen = torch.tensor([request.table.token_ids], device=self.device)
                token = int(next_token(candidates, seen, request.sampling, request.generator)[0])
            (described,) = _described([token], scores, request.top_log_probs)
            if token in request.stop_ids:
                self._leave(request, End("stop", token=described))
                continue
            request.table.token_ids.append(token)
            request.tell(described)
            if request.form is not None and request.form.add(token):
                self._leave(request, End("stop"))
            elif len(request.table.token_ids) == len(request.token_ids) + request.max_new_tokens:
                self._leave(request, End("length"))

    def _leave(self, request: Request, end: End) -> None:
        self.running.remove(request)
        self.cache.free(request.table)
        request.tell(end)

    def start(self) -> None:
        """Answer requests in a thread of its own, until `stop`."""
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or not self.is_idle)
                if self.is_idle:
                    return
            while self.jobs:
                future, job = self.jobs.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    future.set_result(job())
                except Exception as error:
                    future.set_exception(error)
            try:
                self.step()
            except Exception as error:  # every client learns of it, and the server lives on
                for request in [*self.running]:
                    self._leave(request, End("error", f"{type(error).__name__}: {error}"))

    def stop(self) -> None:
        """Take no more requests, and finish those that there are. Waits for the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()


def _described(ids: list[int], logits: Tensor, top: int | None) -> list[Token]:
    """Tokens, and the logits (tokens, V) from which each was predicted."""
    if top is None or not ids:
        return [Token(token) for token in ids]
    log_probs = logits.log_softmax(-1).clamp(min=-9999.0)  # JSON has no infinity
    chosen = log_probs.gather(1, torch.tensor(ids, device=logits.device)[:, None])[:, 0].tolist()
    best = log_probs.topk(min(top, log_probs.shape[-1]))
    rows = zip(ids, chosen, best.indices.tolist(), best.values.tolist(), strict=True)
    return [Token(token, own, tuple(zip(*likely, strict=True))) for token, own, *likely in rows]
