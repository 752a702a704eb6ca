"""Continuous batching: requests join and leave a running batch between two tokens.

A language model reads all its weights to write one token. Reading them for many requests at once
costs little more (Yu et al. 2022, Orca, OSDI). Each round (`step`) does this:

    1. requests whose client went away leave; their blocks are free at once
    2. waiting requests join in their order, while there are blocks for all they may write
    3. prompts are read, a chunk at a time, so that a long one does not hold up the others
    4. every request whose prompt is read gets a token, all in one pass; finished ones leave

Keys and values are in a paged cache (model/variants/paged_cache.py). A request gets all its blocks
when it joins, so it never has to stop for lack of memory.
"""

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

# A cache has this many bytes by default, 512 MB.
MEMORY = 2**29
DAMAGED = "the model's logits are non-finite: its weights are damaged"


class TooManyRequests(RuntimeError):
    """The queue is full."""


class Token(NamedTuple):
    """One token. serve/answers.py, which has the texts, fills in the last three fields."""

    id: int
    # ln p of the model itself, before temperature
    log_prob: float | None = None
    # the likeliest ids with theirs
    top: tuple[tuple[int, float], ...] = ()
    # in characters of the answer
    offset: int = 0
    text: str = ""
    is_thought: bool = False


class End(NamedTuple):
    """The end of an answer. A stop id is its `token`, and no part of the answer."""

    reason: Literal["stop", "length", "cancelled", "error"]
    message: str = ""
    token: Token | None = None


Event = Token | End


@dataclass(eq=False)
class Request:
    """A prompt to continue. The batcher's thread calls `emit` with each Token, and then an End."""

    token_ids: list[int]
    max_new_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    emit: Callable[[Event], None] = lambda event: None
    seed: int | None = None
    # this many likely ids come with a token; None: no log_prob
    top_log_probs: int | None = None
    # the prompt's tokens have log-probabilities too, in `read`
    of_prompt: bool = False
    # head -> factor of its output
    heads: dict[Head, float] = field(default_factory=dict)
    # None: any answer is allowed
    form: Form | None = None
    # the client sets it; the blocks are free before the next token
    cancelled: bool = False
    # these are set when it joins
    table: Table = field(init=False)
    generator: torch.Generator = field(init=False)
    read: list[Token] = field(default_factory=list, init=False)

    @property
    def reads_prompt(self) -> bool:
        # until only the newest token is unread
        return self.table.length < len(self.token_ids)

    def send(self, event: Event) -> None:
        """Call `emit`. If it fails, cancel the request."""
        try:
            self.emit(event)
        except Exception:
            # its event loop may be closed
            logging.getLogger(__name__).exception("no token reaches the client: request cancelled")
            self.cancelled = True


class Batcher:
    """One model and its requests. Call `submit` in any thread, and `start` or `step`.

    - blocks: of the cache; by default MEMORY of them, for 4 to max_running full contexts
    - max_running: requests in one pass
    - max_waiting: more requests are refused
    - chunk: tokens of prompts that are read between two tokens
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
        # keys and values of one token in one layer
        numbers = sum(heads * width for heads, width in lm.config.cache_shapes)
        block_bytes = lm.config.num_hidden_layers * numbers * like.element_size() * block_size
        # the blocks of a full context, rounded up
        context = -(-lm.config.max_position_embeddings // block_size)
        if not blocks:
            blocks = min(max(MEMORY // block_bytes, 4 * context), max(4, max_running) * context)
        self.cache = PagedCache(lm.config, blocks, like, block_size)
        self.device = like.device
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.chunk = chunk
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.jobs: deque[tuple[Future, Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """True if no request or job runs or waits."""
        return not (self.running or self.waiting or self.jobs)

    def submit(self, request: Request) -> None:
        """Add a request. Raises TooManyRequests, and ValueError if it can never be served."""
        reads = len(request.token_ids)
        writes = request.max_new_tokens
        longest = self.lm.config.max_position_embeddings
        blocks = self.cache.blocks_for(reads + writes)
        # one that can never join would hold up all that wait behind it
        fits = reads + writes <= longest and blocks <= len(self.cache.users)
        if not fits or reads < 1 or writes < (0 if request.of_prompt else 1):
            raise ValueError(
                f"{reads} tokens to read and {writes} to write do not fit in {longest}"
            )
        self._put(self.waiting, request)

    def do(self, job: Callable[[], Any]) -> Future[Any]:
        """Run a job between two tokens, with the model to itself. Raises TooManyRequests."""
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
        """Do one round. Return False if there was nothing to do."""
        # 1. Cancelled requests leave.
        with self._changed:
            # under the lock, because other threads append to this queue
            self.waiting = deque(request for request in self.waiting if not request.cancelled)
        for request in [request for request in self.running if request.cancelled]:
            self._leave(request, End("cancelled"))
        # 2. and 3. One joins and is read, then the next, which may share the blocks of the first.
        left = self.chunk
        while left > 0:
            unread = [request for request in self.running if request.reads_prompt]
            reading = unread[0] if unread else self._admit()
            if reading is None:
                break
            left -= self._read_prompt(reading, left)
        if not self.running:
            return False
        # 4. The others get a token.
        writing = [request for request in self.running if not request.reads_prompt]
        if writing:
            self._write(writing, self._forward(writing, 1)[:, -1])
        return True

    def _admit(self) -> Request | None:
        # the next request joins if there is room; a later, shorter one never passes it
        with self._changed:
            if not self.waiting or len(self.running) >= self.max_running:
                return None
            request = self.waiting[0]
            room = len(request.token_ids) + request.max_new_tokens
            if self.cache.blocks_for(room) > self.cache.free_blocks:
                return None
            self.waiting.popleft()
        # its own: a seed gives the same answer, whatever other requests run beside it
        request.generator = torch.Generator(device=self.device)
        if request.seed is None:
            request.generator.seed()
        else:
            request.generator.manual_seed(request.seed)
        # A shared block is not read again, so it gives no log-probabilities. A changed head gives
        # other keys and values, so only requests with the same change share them.
        apart = repr(sorted(request.heads.items())).encode() if request.heads else b""
        share = not request.of_prompt
        request.table = self.cache.begin(request.token_ids, room, share=share, apart=apart)
        self.running.append(request)
        return request

    def _read_prompt(self, request: Request, most: int) -> int:
        # reads a chunk and returns its size; at the end of a prompt, writes the first token
        table = request.table
        count = min(most, len(request.token_ids) - table.length)
        logits = self._forward([request], count, keep=0 if request.of_prompt else 1)
        if request.of_prompt:
            # nothing predicts the first token
            if not request.read:
                request.read = [Token(request.token_ids[0])]
            predicted = request.token_ids[len(request.read) : table.length + 1]
            # the last logits of all predict a new token
            scores = logits[0, : len(predicted)]  # (tokens, V)
            request.read += _with_log_probs(predicted, scores, request.top_log_probs)
        if not request.reads_prompt:
            self._write([request], logits[:, -1])
        return count

    def _forward(self, rows: Sequence[Request], count: int, keep: int = 1) -> Tensor:
        # reads the next `count` tokens of requests; returns float32 logits (B, keep, V)
        tables = [row.table for row in rows]
        # a head that any row changes is scaled in all; a factor of 1 leaves a row's bits unchanged
        factors = {}
        for head in set().union(*(row.heads for row in rows)):
            column = torch.tensor([row.heads.get(head, 1.0) for row in rows], device=self.device)
            factors[head] = column[:, None, None]  # (B, 1, 1)
        view = PagedView(self.cache, tables, count)
        ids = [table.token_ids[table.length : table.length + count] for table in tables]
        masks = {"attention_mask": view.attention_mask, "position_ids": view.position_ids}
        # sequences are read for the first time alone, so either all have states or none
        for layer in tables[0].states:
            states = [table.states[layer] for table in tables]
            view.states[layer] = tuple(map(torch.cat, zip(*states, strict=True)))
        with scaled(self.lm, factors):
            batch = torch.tensor(ids, device=self.device)  # (B, count)
            logits = self.lm(batch, **masks, kv_cache=view, logits_to_keep=keep)
        for i, table in enumerate(tables):
            self.cache.read(table, count)
            for layer, state in view.states.items():
                table.states[layer] = tuple(x[i : i + 1] for x in state)
        return logits.float()

    def _write(self, requests: list[Request], logits: Tensor) -> None:
        # chooses the next token of each request from logits (B, V)
        # note: `tolist` waits for the GPU: once for all rows
        usable = logits.amax(-1).isfinite().tolist()
        greedy = logits.argmax(-1).tolist()
        for row, request in enumerate(requests):
            scores = logits[row : row + 1]  # (1, V)
            token = greedy[row]
            if not usable[row] or any(math.isnan(read.log_prob or 0.0) for read in request.read):
                self._leave(request, End("error", DAMAGED))
                continue
            # only the prompt's log-probabilities were requested
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
            # the greedy choice was made above, for all rows at once
            if request.sampling != Sampling(temperature=0):
                seen = torch.tensor([request.table.token_ids], device=self.device)
                ids, _ = next_token(candidates, seen, request.sampling, request.generator)
                token = int(ids[0])
            # of the model itself, without the form
            (chosen,) = _with_log_probs([token], scores, request.top_log_probs)
            if token in request.stop_ids:
                self._leave(request, End("stop", token=chosen))
                continue
            request.table.token_ids.append(token)
            request.send(chosen)
            written = len(request.table.token_ids) - len(request.token_ids)
            if request.form is not None and request.form.add(token):
                self._leave(request, End("stop"))
            elif written == request.max_new_tokens:
                self._leave(request, End("length"))

    def _leave(self, request: Request, end: End) -> None:
        self.running.remove(request)
        self.cache.free(request.table)
        request.send(end)

    def start(self) -> None:
        """Answer requests in a thread, until `stop`."""
        # a daemon: a model in the middle of a pass must not keep the process alive
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or not self.is_idle)
                if self.is_idle:
                    return
            # a job waits for one token at most
            while self.jobs:
                future, job = self.jobs.popleft()
                # its client went away while the job waited
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    future.set_result(job())
                except Exception as error:
                    future.set_exception(error)
            try:
                self.step()
            except Exception as error:
                # every client gets it, and the server goes on
                for request in [*self.running]:
                    self._leave(request, End("error", f"{type(error).__name__}: {error}"))

    def stop(self) -> None:
        """Take no more requests, finish the others, and wait for the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()


def _with_log_probs(ids: list[int], logits: Tensor, top: int | None) -> list[Token]:
    # logits (tokens, V): those that predicted the ids
    if top is None or not ids:
        return [Token(token) for token in ids]
    # JSON has no infinity
    log_probs = logits.log_softmax(-1).clamp(min=-9999.0)
    chosen = log_probs.gather(1, torch.tensor(ids, device=logits.device)[:, None])[:, 0].tolist()
    best = log_probs.topk(min(top, log_probs.shape[-1]))
    rows = zip(ids, chosen, best.indices.tolist(), best.values.tolist(), strict=True)
    tokens = []
    for token, log_prob, likely, likely_log_probs in rows:
        tokens.append(Token(token, log_prob, tuple(zip(likely, likely_log_probs, strict=True))))
    return tokens
