"""Continuous batching: requests join and leave a running batch between two tokens.

A language model on its own writes one token a pass, and reads all its weights for it. Reading them for many requests at
once costs little more. But requests come and end at any time, so the batch changes between two tokens (Yu et al. 2022,
Orca, OSDI). One round, over and over (`step`):

    1. requests whose client went away leave; their blocks are free at once
    2. waiting requests join while there are blocks for all that they may write; the first to come is the first to join
    3. prompts are read, a chunk at a time, so that a long one does not hold up the others
    4. one token for every request whose prompt is read, all in one pass; those that are done leave

Keys and values are in a paged cache (model/decoding/paged_cache.py). A request gets all its blocks when it joins, so
nothing that runs is ever thrown out, and memory is bounded.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from model import LanguageModel
from model.decoding.paged_cache import PagedCache, Table
from model.decoding.sampling import Sampling, next_token

MEMORY = 2**29  # bytes of a cache, if not told otherwise
Reason = Literal["stop", "length", "cancelled", "error"]


class TooManyRequests(RuntimeError):
    """As many requests wait as may."""


class Token(NamedTuple):
    """One token of an answer. log_prob: ln p of the model itself; top: the likeliest ids with theirs, if asked for."""

    id: int
    log_prob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class End(NamedTuple):
    """The end of an answer. stop: by a stop id, which is not part of it. message: what went wrong."""

    reason: Reason
    message: str = ""


@dataclass(eq=False)
class Request:
    """What is asked for. emit: called in the batcher's thread with every Token, and once with an End.

    top_log_probs: how many likeliest ids come with each token; None: no log-probabilities.
    """

    token_ids: list[int]
    max_new_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    emit: Callable[[Token | End], None]
    seed: int | None = None
    top_log_probs: int | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        """Nobody waits for the answer any more. Its blocks are free before the next token."""
        self.cancelled = True


@dataclass(eq=False)
class Running:
    """A request that joined."""

    request: Request
    table: Table
    generator: torch.Generator

    @property
    def prompt(self) -> int:
        """Tokens to read."""
        return len(self.request.token_ids)

    @property
    def written(self) -> int:
        """Tokens of the answer so far."""
        return len(self.table.token_ids) - self.prompt

    @property
    def reads_prompt(self) -> bool:
        """Whether more than the newest token is unread."""
        return self.table.length < self.prompt


class Batcher:
    """One model and the requests that it serves. `submit` from any thread; `start` the thread that answers, or `step`.

    blocks: of the cache; by default half a gigabyte of them, but never fewer than a full context needs four times, nor
    more than max_running times. max_running: requests in one pass. max_waiting: more
    are refused. chunk: tokens of prompts that are read between two tokens.
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
        blocks = blocks or _blocks_within(MEMORY, lm, block_size, max_running)
        self.cache = PagedCache(lm.config, blocks, like, block_size)
        self.device, self.max_running, self.max_waiting, self.chunk = like.device, max_running, max_waiting, chunk
        self.waiting: deque[Request] = deque()
        self.running: list[Running] = []
        self.rounds = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.running and not self.waiting

    def submit(self, request: Request) -> None:
        """Put a request into the queue. Raises ValueError for one that can never be served, and TooManyRequests."""
        longest, tokens = self.lm.config.max_position_embeddings, len(request.token_ids) + request.max_new_tokens
        if not request.token_ids or request.max_new_tokens < 1:
            raise ValueError("there must be at least one token to read and one to write")
        if tokens > longest:
            raise ValueError(
                f"{len(request.token_ids)} tokens to read and {request.max_new_tokens} to write are {tokens}, and this "
                f"model sees {longest}: shorten the prompt, or ask for fewer tokens"
            )
        if self.cache.blocks_for(tokens) > len(self.cache.users):
            raise ValueError(f"{tokens} tokens do not fit into the server's cache: ask for fewer")
        with self._changed:
            if self._stopping:
                raise TooManyRequests("the server is stopping")
            if len(self.waiting) >= self.max_waiting:
                raise TooManyRequests(f"{len(self.waiting)} requests are waiting: try again later")
            self.waiting.append(request)
            self._changed.notify()

    @torch.no_grad()
    def step(self) -> bool:
        """One round. False if there was nothing to do."""
        self._drop_cancelled()
        left = self.chunk
        while left > 0 and (one := self._reading() or self._admit()):  # one after the other: the next may share pages
            left -= self._read_prompt(one, left)
        if not self.running:
            return False
        self.rounds += 1
        writing = [one for one in self.running if not one.reads_prompt]
        if writing:
            view = self.cache.view([one.table for one in writing], 1)
            ids = torch.tensor([[one.table.token_ids[-1]] for one in writing], device=self.device)
            logits = self.lm(ids, attention_mask=view.attention_mask, position_ids=view.position_ids, kv_cache=view)
            for one in writing:
                self.cache.read(one.table, 1)
            self._write(writing, logits[:, -1].float())
        return True

    def _reading(self) -> Running | None:
        """The request whose prompt is read in part."""
        return next((one for one in self.running if one.reads_prompt), None)

    def _read_prompt(self, one: Running, most: int) -> int:
        """Read the next chunk of a prompt, `most` tokens at most; at its end, the first token. -> tokens read."""
        count = min(most, one.prompt - one.table.length)
        view = self.cache.view([one.table], count)
        ids = torch.tensor([one.table.token_ids[one.table.length : one.table.length + count]], device=self.device)
        logits = self.lm(ids, position_ids=view.position_ids, kv_cache=view, logits_to_keep=1)
        self.cache.read(one.table, count)
        if not one.reads_prompt:
            self._write([one], logits[:, -1].float())
        return count

    def _admit(self) -> Running | None:
        """The request that waits for longest joins, if there is room for it. Those behind it never pass it."""
        with self._changed:
            if not self.waiting or len(self.running) >= self.max_running:
                return None
            request = self.waiting[0]
            room = len(request.token_ids) + request.max_new_tokens
            if self.cache.blocks_for(room) > self.cache.free_blocks:
                return None
            self.waiting.popleft()
        generator = torch.Generator(device=self.device)
        generator.manual_seed(request.seed) if request.seed is not None else generator.seed()
        one = Running(request, self.cache.begin(request.token_ids, room), generator)
        self.running.append(one)
        return one

    def _drop_cancelled(self) -> None:
        with self._changed:
            gone = [request for request in self.waiting if request.cancelled]
            for request in gone:
                self.waiting.remove(request)
        for request in gone:
            request.emit(End("cancelled"))
        for one in [one for one in self.running if one.request.cancelled]:
            self._leave(one, End("cancelled"))

    def _write(self, rows: list[Running], logits: Tensor) -> None:
        """The next token of each row: logits (rows, V) float32. Rows that are done leave."""
        usable = logits.amax(-1).isfinite().tolist()
        greedy = logits.argmax(-1).tolist()
        for row, one in enumerate(rows):
            request = one.request
            if not usable[row]:
                self._leave(one, End("error", "the model's logits are non-finite: its weights are damaged"))
                continue
            token = greedy[row]
            if request.sampling != Sampling(temperature=0):
                seen = torch.tensor([one.table.token_ids], device=self.device)
                token = int(next_token(logits[row : row + 1], seen, request.sampling, one.generator)[0])
            if token in request.stop_ids:
                self._leave(one, End("stop"))
                continue
            one.table.token_ids.append(token)
            request.emit(self._described(token, logits[row], request.top_log_probs))
            if one.written == request.max_new_tokens:
                self._leave(one, End("length"))

    def _described(self, token: int, logits: Tensor, top: int | None) -> Token:
        if top is None:
            return Token(token)
        log_probs = logits.log_softmax(-1)
        best = log_probs.topk(top) if top else None
        listed = zip(best.indices.tolist(), best.values.tolist(), strict=True) if best is not None else ()
        return Token(token, log_probs[token].item(), tuple(listed))

    def _leave(self, one: Running, end: End) -> None:
        self.running.remove(one)
        self.cache.free(one.table)
        one.request.emit(end)

    # -----------------------------------------------------------------------------------------------------
    # the thread

    def start(self) -> None:
        """Answer requests in a thread of its own, until `stop`."""
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self.waiting and not self.running:
                    if self._stopping:
                        return
                    self._changed.wait()
            try:
                self.step()
            except Exception as error:  # every client learns of it, and the server lives on
                for one in [*self.running]:
                    self._leave(one, End("error", f"{type(error).__name__}: {error}"))

    def stop(self, finish: bool = True) -> None:
        """Take no more requests; finish those that there are, or cancel them. Waits for the thread."""
        with self._changed:
            self._stopping = True
            if not finish:
                for request in [*self.waiting, *(one.request for one in self.running)]:
                    request.cancel()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()


def _blocks_within(memory: int, lm: LanguageModel, block_size: int, max_running: int) -> int:
    """Blocks of this many bytes in all, for 4 to max_running full contexts."""
    config, size = lm.config, next(lm.parameters()).element_size()
    of_token = config.num_hidden_layers * sum(heads * width for heads, width in config.cache_shapes) * size
    context = -(-config.max_position_embeddings // block_size)
    return min(max(memory // (of_token * block_size), 4 * context), max(4, max_running) * context)
