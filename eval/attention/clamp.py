"""Hold the patterns of some heads: whatever their queries and keys are, they look where you say.

    uniform    every visible token, equally
    previous   the token just before; the first one looks at itself
    itself     the token itself
    a model    what this head of another model, of the same shape, looks at in the same text

Only values and output of such a head can learn. Singh et al. 2024 (arXiv 2404.07129) clamp parts of
a network while it trains, and see which part must come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.attention.controls import Head, check_heads
from model import LanguageModel
from model.attention import Attention, attention_weights, repeat_kv
from model.kv_cache import KVCache
from model.masks import MaskSpec, boolean_mask, specs_of_layers

Pattern = str | LanguageModel


@dataclass
class ClampedHeads:
    """The patterns of a layer's clamped heads in this forward pass: head -> (B or 1, T, S)."""

    weights: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # as a decorator, this would import the compiler for `train.fork --help`, too
        self.not_compiled = torch.compiler.disable(self.replaced)

    def __call__(self, v: Tensor, out: Tensor) -> Tensor:
        return self.not_compiled(v, out)

    def replaced(self, v: Tensor, out: Tensor) -> Tensor:
        """Return the outputs with those of these heads. v (B, H_kv, S, D), out (B, H, T, D)."""
        # A copy: the kernel's backward pass may need its own output.
        out = out.clone()
        groups = out.shape[1] // v.shape[1]
        for head, weights in self.weights.items():
            missing = v.shape[2] - weights.shape[-1]  # a cache may have room for later tokens
            out[:, head] = F.pad(weights, (0, missing)).to(v.dtype) @ v[:, head // groups]
        return out


@contextmanager
def clamped(lm: LanguageModel, patterns: Mapping[Head, Pattern]) -> Iterator[None]:
    """Hold the patterns of these (layer, head) within this context, in training and evaluation.

    Raises ValueError for a head that does not exist, or that makes no pattern of its own.
    """
    check_heads(lm, patterns)
    modules = lm.attention_modules()
    clamps = {layer: ClampedHeads() for layer, _ in patterns}
    for layer in clamps:
        if not isinstance(modules[layer], Attention):
            kind = type(modules[layer]).__name__
            raise ValueError(f"layer {layer} is {kind}: only patterns of Attention are clamped")
    others = [_Reader(pattern) for pattern in patterns.values() if not isinstance(pattern, str)]
    readers = {reader.lm: reader for reader in others}

    def prepare(_decoder: nn.Module, inputs: tuple) -> None:
        input_ids, attention_mask, document_ids, _, kv_cache, *_ = inputs
        specs = specs_of_layers(lm.config, input_ids, attention_mask, document_ids, kv_cache)
        for reader in readers.values():
            reader.read(inputs)
        for (layer, head), pattern in patterns.items():
            # of this layer: with a window, a head cannot look further back, even if it is held
            mask = boolean_mask(specs[layer])
            assert mask is not None  # specs_of_layers
            if isinstance(pattern, str):
                weights = fixed_pattern(pattern, mask[:, 0], specs[layer])
            else:
                weights = readers[pattern].weights(layer, head, mask)
            clamps[layer].weights[head] = weights

    with ExitStack() as on_exit:
        on_exit.enter_context(lm.model.register_forward_pre_hook(prepare))
        for layer, clamp in clamps.items():
            modules[layer].clamp = clamp
            on_exit.callback(setattr, modules[layer], "clamp", None)
        yield


def fixed_pattern(name: str, mask: Tensor, spec: MaskSpec) -> Tensor:
    """Return a pattern by its name, (B or 1, T, S). mask: the keys that a query sees."""
    if name == "uniform":
        return mask / mask.sum(-1, keepdim=True).clamp(min=1)  # zeros where a query sees nothing
    # by position: with a cache, the first query is not the first token
    distance = spec.query_positions[:, None] - spec.key_positions  # (T, S)
    own = mask & (distance == 0)
    if name == "itself":
        return own.float()
    previous = mask & (distance == 1)
    return (previous | own & ~previous.any(-1, keepdim=True)).float()


class _Reader:
    """Another model, which reads what the clamped one reads."""

    def __init__(self, lm: LanguageModel):
        # It only shows where to look: no dropout, and nothing in it learns.
        self.lm = lm.eval().requires_grad_(False)
        # The clamped model's cache -> this model's, with the same tokens.
        self.caches: WeakKeyDictionary[KVCache, KVCache] = WeakKeyDictionary()
        self.seen: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> q, k

    def read(self, inputs: tuple) -> None:
        def keep(layer: int, q: Tensor, k: Tensor, *_: Any) -> None:
            self.seen[layer] = q, k

        ids, attention_mask, document_ids, position_ids, cache, *starts = inputs
        if cache is not None:
            own = self.caches.setdefault(cache, KVCache(self.lm.config))
            if own.length != cache.length:
                raise ValueError("a pattern of another model: this cache was changed meanwhile")
            # the same tokens, but keys and values of this model
            cache = own
        for module in self.lm.attention_modules():
            module.recorder = keep
        with torch.no_grad():
            self.lm.model(ids, attention_mask, document_ids, position_ids, cache, *starts)

    def weights(self, layer: int, head: int, mask: Tensor) -> Tensor:
        q, k = self.seen[layer]
        k = repeat_kv(k, q.shape[1] // k.shape[1])
        one = slice(head, head + 1)
        with torch.no_grad():
            return attention_weights(q[:, one], k[:, one], mask[..., : k.shape[2]])[:, 0]
