"""Decoding: one token after the other, with a key-value cache, greedy or sampled, streamed or all at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from model.decoding.compiled import compiled_reader
from model.decoding.kv_cache import KVCache, StaticCache, make_cache
from model.decoding.sampling import Sampling, log_probabilities, next_token
from model.transformer import LanguageModel

STATIC_BLOCK = 64  # a static cache has room for a multiple of this, so that similar calls share compiled code


@overload
def generate(*args: Any, return_log_probs: Literal[False] = False, **settings: Any) -> Tensor: ...
@overload
def generate(*args: Any, return_log_probs: Literal[True], **settings: Any) -> tuple[Tensor, Tensor]: ...
def generate(  # type: ignore[misc]  # the two lines above stand for the whole signature
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
    attention_mask: Tensor | None = None,
    num_return_sequences: int = 1,
    kv_cache: KVCache | str | None = "dynamic",
    compile: bool = False,
    return_log_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Continue every prompt of a batch: input_ids (B, T) -> output_ids (B * n, T + up to max_new_tokens).

    temperature 0 is greedy. A row that has produced one of stop_ids (None: the config's end tokens; (): none) is
    filled up with that id. Generation ends when every row has, or where the context (max_position_embeddings) is
    full. With a seed the result depends on nothing else. The global random state is left alone either way.

    attention_mask (B, T): 0 = padding, for prompts of different lengths; pad on the left (`left_pad`).
    num_return_sequences: n continuations of every prompt, next to each other; the prompt is read once.
    kv_cache: dynamic | static | offloaded | int8; None reads all tokens again at every token. Or a cache of an earlier
    call: what it holds of the same beginning is not read again, and it is emptied if it holds something else.
    compile: torch.compile the step of one token. It needs kv_cache="static" and pays off over many tokens.
    return_log_probs: also return (B * n, new tokens) float32, ln of the probability with which each token was drawn:
    after repetition penalty, temperature, top_k, top_p and min_p, that is, of the policy that sampled. For the
    model's own probabilities sample with temperature 1 and no filter. 0 where nothing was drawn: at temperature 0
    and behind a row's stop.

    Raises ValueError for an empty prompt, ids outside the vocabulary and settings out of range.
    """
    log_probs: list[Tensor] = []
    steps = stream(
        lm,
        input_ids,
        max_new_tokens,
        Sampling(temperature, top_k, top_p, min_p, repetition_penalty),
        stop_ids,
        seed,
        attention_mask=attention_mask,
        num_return_sequences=num_return_sequences,
        kv_cache=kv_cache,
        compile=compile,
        log_probs=log_probs if return_log_probs else None,
    )
    output = [input_ids.repeat_interleave(num_return_sequences, dim=0), *[ids[:, None] for ids in steps]]
    if not return_log_probs:
        return torch.cat(output, dim=1)
    nothing = torch.zeros(len(output[0]), 0, device=input_ids.device)
    return torch.cat(output, dim=1), torch.cat([nothing, *[column[:, None] for column in log_probs]], dim=1)


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
    watch: Callable[[Tensor], object] | None = None,
) -> Iterator[Tensor]:
    """`generate`, a token at a time: yields the next ids (B * n,) as soon as they are known.

    log_probs: a list to which their log-probabilities (B * n,) are appended. watch: called with the model's own logits
    (B * n, V), float32, before each token is drawn.
    """
    sampling = sampling or Sampling()
    if stop_ids is None:
        end = lm.config.eos_token_id
        stop_ids = [] if end is None else [end] if isinstance(end, int) else end
    check_request(lm, input_ids, max_new_tokens, attention_mask, num_return_sequences, kv_cache, compile)
    device = input_ids.device
    stop = torch.tensor([int(i) for i in stop_ids], dtype=torch.long, device=device)
    generator = torch.Generator(device=device)
    generator.manual_seed(seed) if seed is not None else generator.seed()
    room = min(max_new_tokens, lm.config.max_position_embeddings - input_ids.shape[1])
    cache = _cache_for(lm, input_ids, room, attention_mask, kv_cache)
    read_one = compiled_reader(lm) if compile else lm
    is_static = isinstance(cache, StaticCache)
    # with a static cache every width is the cache's, so that prompts of all lengths share compiled code
    width = cache.capacity if isinstance(cache, StaticCache) else input_ids.shape[1] + room

    def tokens() -> Iterator[Tensor]:
        padding: dict[str, Tensor] = {}  # what the model needs to know of it, for all tokens to come
        stopped = None
        count, seen = input_ids.shape[1], cache.length if cache is not None else 0
        written = F.pad(input_ids, (0, width - count))
        if attention_mask is not None:
            real = attention_mask.bool()
            mask = F.pad(real, (0, width - count), value=True)
            padding = {"attention_mask": mask, "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)}
            # padding does not belong to the prompt, so the repetition penalty must not see it
            written[:, :count] = torch.where(real, input_ids, input_ids[:, -1:])
        try:
            for step in range(room):
                # 1. read the tokens that the model has not seen
                unread = slice(seen, count)
                slices = {"attention_mask": slice(width if is_static else count), "position_ids": unread}
                given = {name: x[:, slices[name]] for name, x in padding.items()}
                forward = read_one if count - seen == 1 else lm
                logits = _last_logits(lm, forward, written[:, unread], cache, given)
                seen = count if cache is not None else 0
                if step == 0 and num_return_sequences > 1:  # the prompt is read once for all its continuations
                    logits, written = (x.repeat_interleave(num_return_sequences, dim=0) for x in (logits, written))
                    if cache is not None:
                        cache.repeat_interleave(num_return_sequences)
                    padding = {name: x.repeat_interleave(num_return_sequences, 0) for name, x in padding.items()}
                if watch is not None:
                    watch(logits)
                # 2. draw the next one of every row
                ids, probabilities = next_token(logits, written[:, :count], sampling, generator)  # (rows,), (rows, V)
                if log_probs is not None:
                    drawn = log_probabilities(ids, probabilities)
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
            if cache is not None:
                cache.token_ids = written[:, : cache.length] if attention_mask is None else None

    return tokens()


def check_request(
    lm: LanguageModel,
    input_ids: Tensor,
    max_new_tokens: int,
    attention_mask: Tensor | None,
    num_return_sequences: int,
    kv_cache: KVCache | str | None,
    compile: bool,
) -> None:
    """Raises ValueError, before any computation, for a request that cannot be served."""
    if input_ids.ndim != 2 or input_ids.shape[1] == 0:
        raise ValueError(f"input_ids has shape {tuple(input_ids.shape)}: give (batch, tokens) with at least one token")
    (rows, count), longest = input_ids.shape, lm.config.max_position_embeddings
    low, high, vocab_size = int(input_ids.min()), int(input_ids.max()), lm.lm_head.out_features
    needed = min(count + max_new_tokens, longest)
    if low < 0 or high >= vocab_size:
        wrong = f"token id {low if low < 0 else high} is outside the vocabulary (0 to {vocab_size - 1}): use the "
        wrong += "tokenizer that this model was trained with"
    elif count > longest:
        wrong = f"the prompt has {count} tokens, more than max_position_embeddings ({longest}): shorten it"
    elif max_new_tokens < 0:
        wrong = f"max_new_tokens ({max_new_tokens}) must be 0 or more"
    elif num_return_sequences < 1:
        wrong = f"num_return_sequences ({num_return_sequences}) must be 1 or more"
    elif compile and kv_cache != "static" and not isinstance(kv_cache, StaticCache):
        wrong = 'compile needs kv_cache="static"'
    elif compile and lm.config.num_experts is not None:
        wrong = "a mixture of experts is not compiled: leave compile out"
    elif isinstance(kv_cache, KVCache) and num_return_sequences > 1:
        wrong = "a cache of an earlier call holds one row per prompt: leave num_return_sequences at 1"
    elif attention_mask is not None and attention_mask.shape != input_ids.shape:
        wrong = f"attention_mask has shape {tuple(attention_mask.shape)}, input_ids {(rows, count)}"
    elif attention_mask is not None and not attention_mask[:, -1].all():
        wrong = "attention_mask ends in padding: pad on the left"
    elif isinstance(kv_cache, StaticCache) and kv_cache.capacity < needed:
        wrong = f"the static cache has room for {kv_cache.capacity} tokens, and {needed} are needed: make it with a "
        wrong += "larger capacity, or lower max_new_tokens"
    elif isinstance(kv_cache, StaticCache) and kv_cache.batch_size != rows:
        wrong = f"the static cache is for {kv_cache.batch_size} rows, these are {rows}"
    else:
        return
    raise ValueError(wrong)


def _cache_for(
    lm: LanguageModel, input_ids: Tensor, room: int, attention_mask: Tensor | None, kv_cache: KVCache | str | None
) -> KVCache | None:
    """A new cache of the requested kind, or the given one, cut back to what these prompts begin with."""
    if kv_cache is None:
        return None
    count = input_ids.shape[1]
    if isinstance(kv_cache, str):
        capacity = min(-(-(count + room) // STATIC_BLOCK) * STATIC_BLOCK, lm.config.max_position_embeddings)
        return make_cache(kv_cache, lm.config, len(input_ids), capacity, next(lm.parameters()))
    read = kv_cache.token_ids
    if read is None or attention_mask is not None or len(read) != len(input_ids):
        kv_cache.clear()
        return kv_cache
    both = min(read.shape[1], count - 1)  # at least one token is read, for its logits
    same = (read[:, :both] == input_ids[:, :both]).all(dim=0).long().cumprod(dim=0)
    try:
        kv_cache.crop(int(same.sum()))
    except ValueError:  # a sliding window has forgotten what would be needed
        kv_cache.clear()
    return kv_cache


@torch.no_grad()
def _last_logits(
    lm: LanguageModel, forward: Callable[..., Tensor], ids: Tensor, cache: KVCache | None, given: dict[str, Tensor]
) -> Tensor:
    """The logits of the next token (rows, V) in float32, in evaluation mode; the model's mode is restored."""
    was_training = lm.training
    if was_training:
        lm.eval()
    try:
        return forward(ids, kv_cache=cache, logits_to_keep=1, **given)[:, -1].float()
    finally:
        if was_training:
            lm.train()


def left_pad(prompts: Sequence[Sequence[int]], pad_id: int = 0) -> tuple[Tensor, Tensor]:
    """Prompts of different lengths -> input_ids and attention_mask, both (B, longest), padded on the left."""
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise ValueError(f"prompt {[len(p) for p in prompts].index(0)} is empty" if prompts else "there is no prompt")
    longest = max(len(prompt) for prompt in prompts)
    pad = partial(F.pad, value=pad_id)
    rows = [pad(torch.tensor(prompt, dtype=torch.long), (longest - len(prompt), 0)) for prompt in prompts]
    real = [F.pad(torch.ones(len(prompt), dtype=torch.bool), (longest - len(prompt), 0)) for prompt in prompts]
    return torch.stack(rows), torch.stack(real)
