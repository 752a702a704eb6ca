"""Check the functions that readers write in notebook 09, and hold their caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from model import LanguageModel, ModelConfig, generate
from model.kv_cache import KVCache
from notebooks.checks.compare import same

Function = Callable[..., Any]
PIECES = (7, 1, 1, 1, 20, 1)  # a text is read in pieces of so many tokens


class YourCache(KVCache):
    """A cache in which a function `keep(store, layer, k, v)` decides what stays."""

    def __init__(self, keep: Function, config: ModelConfig | None = None):
        super().__init__(config)
        self.keep = keep
        self.store: dict[Any, Any] = {}

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.keep(self.store, layer, k, v)
        return keys, values


@torch.no_grad()
def read(lm: LanguageModel, story: Tensor, cache: KVCache | None = None) -> Tensor:
    """Return the logits (T, V) of a story's beginning, with a cache in pieces, else at once."""
    parts = story[:, : sum(PIECES)].split(PIECES if cache else sum(PIECES), dim=1)
    return torch.cat([lm(part, kv_cache=cache)[0] for part in parts])


def keep_all(keep: Function, lm: LanguageModel, story: Tensor) -> None:
    store: dict[Any, Any] = {}
    numbers = torch.arange(12.0).view(1, 1, 3, 4)
    for seen, new in ((2, slice(0, 2)), (3, slice(2, 3))):  # two tokens, then one
        for layer in (0, 1):
            k = (1 + layer) * numbers[:, :, :seen]
            got = keep(store, layer, k[:, :, new], k[:, :, new] + 0.5)
            same(f"keep_all(store, {layer}, k, v) after {seen} tokens", got, (k, k + 0.5))
    with_cache = read(lm, story, YourCache(keep))
    same("the logits of a story that is read with keep_all", with_cache, read(lm, story), 1e-3)


def newest(x: Tensor, count: int) -> Tensor:
    """Return the last `count` tokens of x (B, H_kv, S, D)."""
    return x[:, :, max(0, x.shape[2] - count) :]


def last_tokens(last: Function) -> None:
    numbers = torch.arange(10.0).view(1, 1, 5, 2)  # five tokens
    for count in (3, 1, 5, 0, 9):
        same(f"last_tokens(x of 5 tokens, {count})", last(numbers, count), newest(numbers, count))


def tokens_read(lm: LanguageModel, prompt: Tensor, count: int) -> tuple[int, int]:
    """Return the tokens that go through a model which writes `count`, without and with a cache."""
    read: list[int] = []
    hook = lm.model.register_forward_pre_hook(lambda module, ids: read.append(ids[0].numel()))
    generate(lm, prompt, max_new_tokens=count, stop_ids=(), kv_cache=None)
    without = sum(read)
    generate(lm, prompt, max_new_tokens=count, stop_ids=(), kv_cache="dynamic")
    hook.remove()
    return without, sum(read) - without


def even_tokens(tokens: Function) -> None:
    for N, kv_heads, D in ((12_845_056, 16, 64), (11_010_048, 2, 64), (1_000_000, 1, 32)):
        one_token = torch.empty(2, kv_heads, D, device="meta")  # only a shape
        expected = 4 * N / one_token.nbytes
        same(f"even_tokens({N}, {kv_heads}, {D})", tokens(N, kv_heads, D), expected, 1e-3)
