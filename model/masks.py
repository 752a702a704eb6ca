"""Attention masks: small predicates that combine. Boolean everywhere, `True` = may attend.

A `MaskSpec` has the predicates of a forward pass. Each backend turns it into the form that it needs
(`boolean_mask`, model/backends/kernels.py). A query that may attend to nothing gets zeros from
every backend, never NaN.

Positions are places in the sequence, cached tokens included. `position_ids` only rotate RoPE, and
`document_ids` separate documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from model.config import ModelConfig
from model.kv_cache import KVCache

# A boolean tensor (B or 1, 1, T, S), or another form that a backend needs; None = causal alone.
Mask = Any


def causal(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Let a token see itself and all earlier ones.

        key   0 1 2 3
    query 0   x . . .
          1   x x . .
          2   x x x .
          3   x x x x
    """
    return query_positions >= key_positions


def within_window(query_positions: Tensor, key_positions: Tensor, sliding_window: int) -> Tensor:
    """Let a token see the last `sliding_window` tokens, itself included; drawn with `causal`.

    window 2, key   0 1 2 3
          query 0   x . . .
                1   x x . .
                2   . x x .
                3   . . x x

    Beltagy et al. 2020, Longformer (arXiv 2004.05150); Jiang et al. 2023, Mistral (2310.06825).
    """
    return query_positions - key_positions < sliding_window


def same_document(query_documents: Tensor, key_documents: Tensor) -> Tensor:
    """Let tokens with equal document ids see each other.

    documents   0 0 1 1
            0   x x . .
            0   x x . .
            1   . . x x
            1   . . x x
    """
    return query_documents == key_documents


def not_padding(attention_mask: Tensor) -> Tensor:
    """Hide padding (0 or False) from every query.

    right padding   1 1 1 0      left padding   0 1 1 1
                    x x x .                     . x x x
    """
    return attention_mask.bool()


@dataclass(frozen=True)
class MaskSpec:
    """The predicates of one kind of layer in one forward pass: B rows, T queries, S keys."""

    # places in the sequence: (T,) and (S,)
    query_positions: Tensor
    key_positions: Tensor
    batch_size: int = 1
    # (B, tokens so far): 1 = real token
    attention_mask: Tensor | None = None
    # (B, T): packed rows, T = S
    document_ids: Tensor | None = None
    sliding_window: int | None = None
    # every query sees every key up to itself: a kernel's causal flag is enough
    all_visible: bool = False
    # (B, N): beginnings of documents, filled up with T; None = search for them
    document_starts: Tensor | None = None

    def of_layers(
        self, windows: Sequence[int | None], cache: KVCache | None
    ) -> dict[int | None, MaskSpec]:
        """Complete this with the keys of each kind of layer: window -> spec. windows: by layer."""
        queries = self.query_positions
        count = len(queries)
        # such a cache returns keys that are not written yet, which only a mask hides
        has_spare_keys = cache is not None and cache.has_room
        is_plain = self.attention_mask is None and self.document_ids is None and not has_spare_keys
        specs: dict[int | None, MaskSpec] = {}
        for layer, window in enumerate(windows):
            if window in specs:
                continue
            keys = queries
            if cache is not None:
                keys = cache.key_positions(layer, count, queries.device)
            # the window hides no key: with one query, it may be as long as the keys
            fits = window is None or len(keys) < window + (count == 1)
            # a causal flag is right for one query, or for as many queries as keys
            all_visible = is_plain and fits and count in (1, len(keys))
            specs[window] = replace(
                self, key_positions=keys, sliding_window=window, all_visible=all_visible
            )
        return specs

    @property
    def real_keys(self) -> Tensor | None:
        """The columns of attention_mask for these keys: (B, S); None = all are real tokens."""
        if self.attention_mask is None:
            return None
        # a static cache has room for later tokens; causality hides them
        missing = len(self.key_positions) - self.attention_mask.shape[1]
        mask = F.pad(self.attention_mask, (0, max(0, missing)), value=1)
        if mask.shape[1] == len(self.key_positions):
            return mask
        return mask[:, self.key_positions]


def boolean_mask(spec: MaskSpec) -> Tensor | None:
    """Combine the predicates: (B or 1, 1, T, S), or None if the causal flag is enough."""
    if spec.all_visible:
        return None
    # broadcasting compares every query with every key
    queries = spec.query_positions[:, None]  # (T, 1)
    keys = spec.key_positions[None, :]  # (1, S)
    mask = causal(queries, keys)  # (T, S)
    if spec.sliding_window is not None:
        mask = mask & within_window(queries, keys, spec.sliding_window)
    mask = mask[None, None]  # (1, 1, T, S)
    real_keys = spec.real_keys
    if real_keys is not None:
        mask = mask & not_padding(real_keys)[:, None, None, :]  # (B, 1, T, S)
    documents = spec.document_ids  # (B, T), and T = S
    if documents is not None:
        # (B, T, 1) with (B, 1, T), and a dimension for the heads
        mask = mask & same_document(documents[:, :, None], documents[:, None, :])[:, None]
    return mask


def has_previous(spec: MaskSpec) -> Tensor:
    """Mark the keys that have a token before them in their document: (B or 1, S).

    documents       0 0 1 1      left padding    0 1 1 1
                    . x . x                      . . x x
    """
    marked = spec.key_positions[None] > 0  # (1, S)
    if spec.real_keys is not None:
        marked = marked & F.pad(spec.real_keys.bool()[:, :-1], (1, 0))  # (B, S)
    if spec.document_ids is not None:
        marked = marked & F.pad(spec.document_ids.diff(dim=1) == 0, (1, 0))
    return marked


def specs_of_layers(
    config: ModelConfig,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    document_ids: Tensor | None = None,
    kv_cache: KVCache | None = None,
) -> dict[int, MaskSpec]:
    """Return each layer's spec: layer -> spec. `boolean_mask` makes a tensor of it, never None."""
    cache = KVCache() if kv_cache is None else kv_cache
    positions = cache.positions(input_ids.shape[1], input_ids.device)
    spec = MaskSpec(positions, positions, len(input_ids), attention_mask, document_ids)
    by_window = spec.of_layers(config.windows, cache)
    return {
        layer: replace(by_window[window], all_visible=False)
        for layer, window in enumerate(config.windows)
    }


def real_tokens(
    config: ModelConfig, input_ids: Tensor, attention_mask: Tensor | None
) -> Tensor | None:
    """Mark the tokens that are not padding, (B, T), for experts; None: all, or no experts."""
    if not config.num_experts:
        return None
    if attention_mask is not None:  # without columns for cached tokens
        return attention_mask[:, -input_ids.shape[1] :]
    return None if config.pad_token_id is None else input_ids != config.pad_token_id


def check_inputs(
    config: ModelConfig,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    position_ids: Tensor | None,
    kv_cache: KVCache | None,
) -> None:
    """Raise ValueError for shapes and ids that a kernel would read without an error."""
    B, T = input_ids.shape
    longest = config.max_position_embeddings
    total = T if kv_cache is None else T + kv_cache.length  # cached tokens included
    # a packed row may be longer, because each of its documents counts its own positions
    if total > longest and (document_ids is None or position_ids is None):
        raise ValueError(
            f"the sequence has {total} tokens, more than max_position_embeddings ({longest})"
        )
    if document_ids is not None and kv_cache is not None:
        raise ValueError("document_ids are for packed rows, a kv_cache for one document: give one")
    capacity = getattr(kv_cache, "capacity", total)  # a mask may be as wide as a static cache
    for name, tensor, shapes in (
        ("attention_mask", attention_mask, ((B, total), (B, capacity))),
        ("document_ids", document_ids, ((B, T),)),
        ("position_ids", position_ids, ((B, T), (1, T))),
    ):
        if tensor is not None and (tensor.shape not in shapes or tensor.is_floating_point()):
            shape = tuple(tensor.shape)
            raise ValueError(f"{name} has shape {shape}: give integers or booleans {shapes[0]}")
    if input_ids.device.type == "cpu":  # on a GPU this would be a sync point
        vocab_size = config.vocab_size or 0
        wrong = input_ids[(input_ids < 0) | (input_ids >= vocab_size)]
        if len(wrong):
            limit = vocab_size - 1
            raise ValueError(f"token id {int(wrong[0])} is outside the vocabulary (0 to {limit})")
