"""Decoding: one token after the other, with a key-value cache, greedy or sampled, streamed or all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.backends.compiled_step import compiled_step
from model.kv_cache import KVCache
from model.transformer import LanguageModel
from model.variants.caches import StaticCache, make_cache

STATIC_BLOCK = 64  # a static cache has room for a multiple of this, so that similar calls share compiled code
LEAST, MOST = 1e-6, 1e6  # of a temperature: float32 still divides by them, and tells tokens apart


@dataclass(frozen=True)
class Sampling:
    """How to draw. The filters apply in this order, to logits / temperature; temperature 0 takes the likeliest token.

    repetition_penalty  makes every id that occurred less likely: positive logits / penalty, negative ones * penalty
                        (Keskar et al. 2019, CTRL, arXiv 1909.05858); 1.0 changes nothing
    top_k               keeps the k likeliest
    top_p               keeps the smallest set whose probabilities reach p (Holtzman et al. 2019, arXiv 1904.09751)
    min_p               keeps what is at least min_p times as likely as the likeliest (Nguyen et al. 2024, 2407.01082)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature != 0 and not LEAST <= self.temperature <= MOST:
            raise ValueError(f"temperature ({self.temperature}) must be 0 (greedy), or {LEAST:g} to {MOST:g}")
        ranges = {"top_k": (1, MOST), "top_p": (LEAST, 1), "min_p": (0, 1), "repetition_penalty": (LEAST, MOST)}
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is outside of every range
                raise ValueError(f"{name} ({value}) must be {low:g} to {high:g}")


def generate(
    lm: LanguageModel,
    input_ids: Tensor,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop_ids: Collection[int] | None = None,
    seed: int | None = None,
    *,
    num_return_sequences: int = 1,
    **settings: Any,
) -> Tensor:
    """Continue every prompt of a batch: input_ids (B, T) -> output_ids (B * n, T + up to max_new_tokens).
    temperature to repetition_penalty: see `Sampling`. settings: all others of `stream`."""
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    settings["num_return_sequences"] = num_return_sequences
    new = [ids[:, None] for ids in stream(lm, input_ids, max_new_tokens, sampling, stop_ids, seed, **settings)]
    return torch.cat([input_ids.repeat_interleave(num_return_sequences, dim=0), *new], dim=1)


@torch.no_grad()
def stream(
    lm: LanguageModel,
    input_ids: Tensor,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    stop_ids: Collection[int] | None = None,
    seed: int | None = None,
    *,
    attention_mask: Tensor | None = None,
    num_return_sequences: int = 1,
    kv_cache: KVCache | str | None = "dynamic",
    compile: bool = False,
    log_probs: list[Tensor] | None = None,
    uniform: Tensor | None = None,
) -> Iterator[Tensor]:
    """`generate`, a token at a time: yields the next ids (B * n,) as soon as they are known.

    A row that has produced one of stop_ids (None: the config's end tokens; (): none) is filled up with that id.
    Generation ends when every row has, or where the context (max_position_embeddings) is full. With a seed the result
    depends on nothing else. The global random state is left alone either way.

    attention_mask (B, T): 0 = padding, for prompts of different lengths; pad on the left (`left_pad`).
    num_return_sequences: n continuations of every prompt, next to each other; the prompt is read once.
    kv_cache: dynamic | static | offloaded | int8; None reads all tokens again at every token. Or a cache of an earlier
    call: what it holds of the same beginning is not read again, and it is emptied if it holds something else.
    compile: torch.compile the step of one token. It needs kv_cache="static" and pays off over many tokens.
    log_probs: a list to which each step adds (B * n,) float32, ln of the probability with which its token was drawn,
    after temperature and filters; 0 where nothing was drawn: at temperature 0 and behind a row's stop.
    uniform (B * n, max_new_tokens): the random number in [0, 1) that draws each token, in place of a
    seed. Then a row does not depend on the other rows.
    """
    if input_ids.ndim != 2 or input_ids.shape[1] == 0:
        raise ValueError(f"input_ids has shape {tuple(input_ids.shape)}: give (batch, tokens) with at least one token")
    count, longest = input_ids.shape[1], lm.config.max_position_embeddings
    if count > longest:
        raise ValueError(f"the prompt has {count} tokens, more than max_position_embeddings ({longest}): shorten it")
    if attention_mask is not None and not attention_mask[:, -1].all():
        raise ValueError("attention_mask ends in padding: pad on the left")
    if compile and kv_cache != "static" and not isinstance(kv_cache, StaticCache):
        raise ValueError('compile needs kv_cache="static"')
    if compile and lm.config.num_experts is not None:
        raise ValueError("a mixture of experts is not compiled: leave compile out")
    sampling, device = sampling or Sampling(), input_ids.device
    stop = torch.tensor([*(lm.config.end_ids if stop_ids is None else stop_ids)], dtype=torch.long, device=device)
    generator = torch.Generator(device=device)
    generator.manual_seed(seed) if seed is not None else generator.seed()
    width = min(count + max_new_tokens, longest)  # tokens in the end
    cache = _cache_for(lm, input_ids, width, attention_mask, kv_cache)
    # with a static cache every mask is as wide as that, so that prompts of all lengths share compiled code
    is_static, columns = isinstance(cache, StaticCache), getattr(cache, "capacity", width)
    if columns < width:
        raise ValueError(f"the static cache has room for {columns} tokens, and {width} are needed")

    stopped, seen, was_training = None, cache.length if cache is not None else 0, lm.training
    written = F.pad(input_ids, (0, columns - count))
    padding: dict[str, Tensor] = {}  # what the model needs to know of it, for all tokens to come
    if attention_mask is not None:
        real = attention_mask.bool()
        mask = F.pad(real, (0, columns - count), value=True)
        padding = {"attention_mask": mask, "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)}
        # padding does not belong to the prompt, so the repetition penalty must not see it
        written[:, :count] = torch.where(real, input_ids, input_ids[:, -1:])
    try:
        for step in range(width - count):
            # 1. read the tokens that the model has not seen
            unread = slice(seen, count)
            slices = {"attention_mask": slice(columns if is_static else count), "position_ids": unread}
            given = {name: x[:, slices[name]] for name, x in padding.items()}
            forward = partial(compiled_step(device.type), lm) if compile and count - seen == 1 else lm
            if was_training:  # not always: it visits every module
                lm.eval()
            logits = forward(written[:, unread], kv_cache=cache, logits_to_keep=1, **given)[:, -1].float()
            if was_training:
                lm.train()
            seen = count if cache is not None else 0
            if step == 0 and num_return_sequences > 1:  # the prompt is read once for all its continuations
                logits, written = (x.repeat_interleave(num_return_sequences, dim=0) for x in (logits, written))
                padding = {name: x.repeat_interleave(num_return_sequences, dim=0) for name, x in padding.items()}
                if cache is not None:
                    cache.repeat_interleave(num_return_sequences)
            # 2. draw the next one of every row
            numbers = None if uniform is None else uniform[:, step]
            # (rows,), (rows, V)
            ids, probabilities = next_token(logits, written[:, :count], sampling, generator, numbers)
            if log_probs is not None:
                drawn = torch.zeros(ids.shape, device=device)
                if probabilities is not None:
                    drawn = probabilities.gather(1, ids[:, None])[:, 0].log() - probabilities.sum(dim=-1).log()
                log_probs.append(drawn if stopped is None else drawn.masked_fill(stopped, 0.0))
            # 3. write it down; a row that has stopped repeats its last id
            if len(stop):
                if stopped is not None:
                    ids = torch.where(stopped, written[:, count - 1], ids)
                stopped = torch.isin(ids, stop)
            written[:, count] = ids
            count += 1
            yield ids
            if stopped is not None and bool(stopped.all()):
                break
    finally:
        if was_training:  # also after an error
            lm.train()
        if cache is not None:
            cache.token_ids = written[:, : cache.length] if attention_mask is None else None


def _cache_for(
    lm: LanguageModel, input_ids: Tensor, width: int, attention_mask: Tensor | None, kv_cache: KVCache | str | None
) -> KVCache | None:
    """A new cache of the requested kind, or the given one, cut back to what these prompts begin with."""
    if isinstance(kv_cache, str):
        capacity = min(-(-width // STATIC_BLOCK) * STATIC_BLOCK, lm.config.max_position_embeddings)
        return make_cache(kv_cache, lm.config, len(input_ids), capacity, next(lm.parameters()))
    if kv_cache is not None:
        read, same = kv_cache.token_ids, 0
        if read is not None and attention_mask is None and len(read) == len(input_ids):
            both = min(read.shape[1], input_ids.shape[1] - 1)  # at least one token is read, for its logits
            same = int((read[:, :both] == input_ids[:, :both]).all(dim=0).long().cumprod(dim=0).sum())
        kv_cache.crop(same)
    return kv_cache


def next_token(
    logits: Tensor,
    seen_ids: Tensor,
    sampling: Sampling,
    generator: torch.Generator,
    uniform: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Draw the next token of every row: logits (B, V), the ids so far (B, T) -> ids (B,), and the probabilities (B, V)
    that they were drawn from, up to a factor; None at temperature 0. Raises ValueError for NaN and infinity.

    uniform (B,): numbers in [0, 1) to draw by, in place of the generator.
    """
    if not bool(logits.amax(dim=-1).isfinite().all()):  # NaN anywhere makes the maximum NaN
        raise ValueError("the model's logits are non-finite: its weights are damaged, or its training diverged")
    if (penalty := sampling.repetition_penalty) != 1.0:
        seen = logits.gather(1, seen_ids)
        logits = logits.scatter(1, seen_ids, torch.where(seen > 0, seen / penalty, seen * penalty))
    if sampling.temperature == 0:
        return logits.argmax(dim=-1), None
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / sampling.temperature  # at most 0, so nothing overflows
    if sampling.top_k is not None:
        kth = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p is not None:
        sorted_logits, order = logits.sort(descending=True)
        probabilities = sorted_logits.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities  # the likeliest token is always kept
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, before >= sampling.top_p)
        logits = logits.masked_fill(drop, -torch.inf)
    probabilities = logits.softmax(dim=-1)
    if sampling.min_p is not None:
        floor = sampling.min_p * probabilities.amax(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    if uniform is None:
        return torch.multinomial(probabilities, num_samples=1, generator=generator)[:, 0], probabilities
    # Lay the probabilities end to end: a number draws the token whose part of the line it falls on.
    # A GPU adds up in any order. In float32 its rounding could be a part for a token of probability 0.
    dtype = torch.float32 if logits.device.type == "mps" else torch.float64
    ends = probabilities.cumsum(dim=-1, dtype=dtype)
    return torch.searchsorted(ends, uniform[:, None] * ends[:, -1:], right=True)[:, 0], probabilities


def left_pad(prompts: Sequence[Sequence[int]], pad_id: int = 0) -> tuple[Tensor, Tensor]:
    """Prompts of different lengths -> input_ids and attention_mask, both (B, longest), padded on the left."""
    if not prompts or not all(map(len, prompts)):
        raise ValueError("there must be a prompt, and none may be empty")
    rows = [torch.tensor(prompt, dtype=torch.long) for prompt in prompts]
    real = [torch.ones(len(prompt), dtype=torch.bool) for prompt in prompts]
    return pad_sequence(rows, True, pad_id, "left"), pad_sequence(real, True, False, "left")


def random_numbers(rngs: Iterable[Random], count: int) -> Tensor:
    """Return `uniform` for `stream`: (rows, count) float32, each row from a generator of its own."""
    # 24 bits, which float32 holds exactly: none of them is rounded to 1
    return torch.tensor([[rng.getrandbits(24) / 2**24 for _ in range(count)] for rng in rngs])
