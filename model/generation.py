"""Decoding: one token after the other, with a key-value cache, greedy or sampled."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.backends.compiled_step import compiled_step
from model.kv_cache import KVCache
from model.transformer import LanguageModel
from model.variants.caches import StaticCache, cache_for

# In this range, float32 logits that are divided by a temperature keep their differences.
LEAST = 1e-6
MOST = 1e6


@dataclass(frozen=True)
class Sampling:
    """The settings of a draw, in the order in which `next_token` applies them.

    repetition_penalty  makes earlier ids less likely; 1.0 changes nothing
    temperature         divides all logits; 0 takes the likeliest token
    top_k               keeps the k likeliest tokens
    top_p               keeps the smallest set whose probabilities reach p
    min_p               keeps tokens that are at least min_p times as likely as the likeliest
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature != 0 and not LEAST <= self.temperature <= MOST:
            raise ValueError(f"temperature ({self.temperature}) must be 0 or {LEAST:g} to {MOST:g}")
        ranges = {"top_k": (1, MOST), "top_p": (LEAST, 1), "min_p": (0, 1)}
        ranges["repetition_penalty"] = (LEAST, MOST)
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # also catches NaN
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
    """Continue every prompt of a batch: input_ids (B, T) -> (B * n, T + up to max_new_tokens).

    `Sampling` explains temperature to repetition_penalty, `stream` all other arguments.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    settings["num_return_sequences"] = num_return_sequences
    columns = [input_ids.repeat_interleave(num_return_sequences, dim=0)]
    for ids in stream(lm, input_ids, max_new_tokens, sampling, stop_ids, seed, **settings):
        columns.append(ids[:, None])
    return torch.cat(columns, dim=1)


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
    """Yield the next token of every row, (B * n,), as soon as it is drawn.

    A row that has produced a stop id repeats it. Generation ends when every row has stopped, or
    when the context (max_position_embeddings) is full.

    input_ids             (B, T)
    stop_ids              None: the config's end tokens; (): none
    seed                  makes the result repeatable
    attention_mask        (B, T), 0 = padding, for prompts of different lengths; see `left_pad`
    num_return_sequences  n continuations of each prompt, in adjacent rows
    kv_cache              dynamic | static | offloaded | int8 | the cache of an earlier call: an
                          equal beginning is not read again. None reads everything for every token
    compile               torch.compile the step of one token, for many tokens; needs a static cache
    log_probs             a list; each step appends the ln p of its tokens, (B * n,) float32, after
                          temperature and filters; 0 at temperature 0 and after a stop
    uniform               (B * n, max_new_tokens): numbers in [0, 1) to draw by, in place of a
                          seed, so that a row does not depend on the other rows
    """
    # note: a generator, so nothing below runs before the first token is taken
    if input_ids.ndim != 2 or input_ids.shape[1] == 0:
        raise ValueError("input_ids must be (batch, tokens), with at least one token in each row")
    count = input_ids.shape[1]
    longest = lm.config.max_position_embeddings
    if count > longest:
        raise ValueError(
            f"the prompt has {count} tokens, more than max_position_embeddings ({longest})"
        )
    if attention_mask is not None and not attention_mask[:, -1].all():
        raise ValueError("attention_mask ends in padding: pad on the left")
    if compile and kv_cache != "static" and not isinstance(kv_cache, StaticCache):
        raise ValueError('compile needs kv_cache="static"')
    if compile and lm.config.num_experts is not None:
        raise ValueError("a mixture of experts is not compiled: leave compile out")
    sampling = sampling or Sampling()
    device = input_ids.device
    stop_ids = lm.config.end_ids if stop_ids is None else stop_ids
    stop = torch.tensor([*stop_ids], dtype=torch.long, device=device)
    # torch's global generator stays as it is, and so does a training run
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    width = min(count + max_new_tokens, longest)  # number of tokens at the end
    cache = cache_for(lm, input_ids, width, attention_mask, kv_cache)
    is_static = isinstance(cache, StaticCache)
    # every mask is as wide as a static cache, so that prompts of all lengths share compiled code
    columns = getattr(cache, "capacity", width)
    if columns < width:
        raise ValueError(f"the static cache has room for {columns} tokens, and {width} are needed")

    stopped: Tensor | None = None
    seen = 0 if cache is None else cache.length  # tokens that the cache holds
    was_training = lm.training
    written = F.pad(input_ids, (0, columns - count))  # (B, columns): prompt and answer
    mask = positions = None  # with padding, both are (B, columns), for all tokens to come
    if attention_mask is not None:
        real = attention_mask.bool()
        mask = F.pad(real, (0, columns - count), value=True)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)  # 0 is the first real token
        # padding does not belong to the prompt, so the repetition penalty must not see it
        written[:, :count] = torch.where(real, input_ids, input_ids[:, -1:])
    try:
        for step in range(width - count):
            # 1. read what the model has not seen: the prompt, then one token a step
            unread = slice(seen, count)
            padding = {}
            if mask is not None and positions is not None:
                padding["attention_mask"] = mask if is_static else mask[:, :count]
                padding["position_ids"] = positions[:, unread]
            forward: Any = lm
            if compile and count - seen == 1:
                forward = partial(compiled_step(device.type), lm)
            # without dropout; only if needed, because this visits every module
            if was_training:
                lm.eval()
            logits = forward(written[:, unread], kv_cache=cache, logits_to_keep=1, **padding)
            logits = logits[:, -1].float()  # (B, V)
            if was_training:  # before the yield: the caller may train in between
                lm.train()
            seen = count if cache is not None else 0
            if step == 0 and num_return_sequences > 1:
                # the prompt was read once; from here on, each continuation has its own row
                logits = logits.repeat_interleave(num_return_sequences, dim=0)
                written = written.repeat_interleave(num_return_sequences, dim=0)
                if mask is not None and positions is not None:
                    mask = mask.repeat_interleave(num_return_sequences, dim=0)
                    positions = positions.repeat_interleave(num_return_sequences, dim=0)
                if cache is not None:
                    cache.repeat_interleave(num_return_sequences)
            # 2. draw the next token of every row: (rows,), and p (rows, V)
            numbers = None if uniform is None else uniform[:, step]
            ids, p = next_token(logits, written[:, :count], sampling, generator, numbers)
            if log_probs is not None:
                drawn = torch.zeros(ids.shape, device=device)
                if p is not None:
                    drawn = p.gather(1, ids[:, None])[:, 0].log() - p.sum(dim=-1).log()
                if stopped is not None:
                    drawn = drawn.masked_fill(stopped, 0.0)
                log_probs.append(drawn)
            # 3. write it; a row that has stopped repeats its last id
            if len(stop):
                if stopped is not None:
                    ids = torch.where(stopped, written[:, count - 1], ids)
                stopped = torch.isin(ids, stop)
            written[:, count] = ids
            count += 1
            yield ids
            # a sync point on a GPU, after the yield: the caller has the token already
            if stopped is not None and bool(stopped.all()):
                break
    finally:
        if was_training:  # also after an error
            lm.train()
        if cache is not None:
            cache.token_ids = written[:, : cache.length] if attention_mask is None else None


def next_token(
    logits: Tensor,
    seen_ids: Tensor,
    sampling: Sampling,
    generator: torch.Generator,
    uniform: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Draw the next token of every row from logits (B, V), by the generator or uniform (B,).

    Return the ids (B,) and the probabilities (B, V) that they were drawn from, not normalised;
    None at temperature 0. seen_ids (B, T): the ids so far. Raises ValueError for NaN or infinity.
    """
    if not bool(logits.amax(dim=-1).isfinite().all()):  # NaN anywhere makes the maximum NaN
        raise ValueError("non-finite logits: the weights are damaged, or training diverged")
    # CTRL (Keskar et al. 2019, arXiv 1909.05858): both ways make an id less likely
    penalty = sampling.repetition_penalty
    if penalty != 1.0:
        seen = logits.gather(1, seen_ids)  # (B, T)
        seen = torch.where(seen > 0, seen / penalty, seen * penalty)
        logits = logits.scatter(1, seen_ids, seen)
    if sampling.temperature == 0:
        return logits.argmax(dim=-1), None
    # without their maximum, all logits are at most 0, and a small temperature overflows nothing
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / sampling.temperature
    if sampling.top_k is not None:
        kth = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < kth, -torch.inf)
    # nucleus sampling (Holtzman et al. 2019, arXiv 1904.09751)
    if sampling.top_p is not None:
        sorted_logits, order = logits.sort(descending=True)  # (B, V), likeliest first
        probabilities = sorted_logits.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities  # 0 for the likeliest: always kept
        drop = torch.zeros_like(logits, dtype=torch.bool)
        drop = drop.scatter(1, order, before >= sampling.top_p)
        logits = logits.masked_fill(drop, -torch.inf)
    probabilities = logits.softmax(dim=-1)  # (B, V)
    # min-p (Nguyen et al. 2024, arXiv 2407.01082)
    if sampling.min_p is not None:
        floor = sampling.min_p * probabilities.amax(dim=-1, keepdim=True)  # (B, 1)
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    if uniform is None:
        ids = torch.multinomial(probabilities, num_samples=1, generator=generator)[:, 0]
        return ids, probabilities
    # Lay the probabilities end to end: a number draws the token whose part of the line it falls on.
    # Not in float32: a GPU adds up in any order, and a token of probability 0 could get a part.
    dtype = torch.float32 if logits.device.type == "mps" else torch.float64
    ends = probabilities.cumsum(dim=-1, dtype=dtype)  # (B, V)
    ids = torch.searchsorted(ends, uniform[:, None] * ends[:, -1:], right=True)[:, 0]
    return ids, probabilities


def left_pad(prompts: Sequence[Sequence[int]], pad_id: int = 0) -> tuple[Tensor, Tensor]:
    """Pad prompts on the left: return input_ids and attention_mask, both (B, longest)."""
    # nothing could predict the first new token of an empty prompt
    if not prompts or not all(map(len, prompts)):
        raise ValueError("there must be a prompt, and none may be empty")
    rows = [torch.tensor(prompt, dtype=torch.long) for prompt in prompts]
    real = [torch.ones(len(prompt), dtype=torch.bool) for prompt in prompts]
    # on the left, because the last column of every row must be a token that is continued
    return pad_sequence(rows, True, pad_id, "left"), pad_sequence(real, True, False, "left")
