"""Attention masks: small predicates that combine. Boolean everywhere, `True` = may attend.

`MaskSpec` says which predicates apply to a forward pass; each backend turns it into what it needs: `boolean_mask`
below, or a form of its own (model/backends/kernels.py). A row that may attend to nothing (padding, as a query) gets
zeros from every backend, never NaN.

Positions here are places in the sequence, cached tokens included. They are not `position_ids`, which only rotate RoPE:
only `document_ids` separate documents. They are never guessed from positions that start again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from model.config import ModelConfig
from model.kv_cache import KVCache

Mask = Any  # a boolean tensor (B or 1, 1, T, S), or what else a backend makes of a MaskSpec; None = causal alone


def causal(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """A token sees itself and what came before.

        key   0 1 2 3
    query 0   x . . .
          1   x x . .
          2   x x x .
          3   x x x x
    """
    return query_positions >= key_positions


def within_window(query_positions: Tensor, key_positions: Tensor, sliding_window: int) -> Tensor:
    """A token sees the last `sliding_window` tokens, itself included; drawn with causality, window 2.

        key   0 1 2 3
    query 0   x . . .
          1   x x . .
          2   . x x .
          3   . . x x

    Beltagy et al. 2020, Longformer (arXiv 2004.05150); Jiang et al. 2023, Mistral (2310.06825).
    """
    return query_positions - key_positions < sliding_window


def same_document(query_documents: Tensor, key_documents: Tensor) -> Tensor:
    """Equal document ids may see each other.

    documents   0 0 1 1
            0   x x . .
            0   x x . .
            1   . . x x
            1   . . x x
    """
    return query_documents == key_documents


def not_padding(attention_mask: Tensor) -> Tensor:
    """Keys that are real tokens (1 or True), for every query.

    right padding   1 1 1 0      left padding   0 1 1 1
                    x x x .                     . x x x
    """
    return attention_mask.bool()


@dataclass(frozen=True)
class MaskSpec:
    """Which predicates limit one kind of layer in one forward pass of B rows, T queries over S keys each.

    query_positions (T,), key_positions (S,): places in the sequence. attention_mask (B, tokens so far): 1 = real token.
    document_ids (B, T): packed rows, T = S. document_starts (B, most of a row): where each begins, filled up with T;
    None = look for it. sliding_window: tokens seen, or None.
    all_visible: every query sees every key up to itself, so that a kernel's own causal flag says it all.
    """

    query_positions: Tensor
    key_positions: Tensor
    batch_size: int = 1
    attention_mask: Tensor | None = None
    document_ids: Tensor | None = None
    sliding_window: int | None = None
    all_visible: bool = False
    document_starts: Tensor | None = None

    def of_layers(self, windows: Sequence[int | None], cache: KVCache | None) -> dict[int | None, MaskSpec]:
        """This, with keys and window of each kind of layer, by its window. windows: of every layer."""
        specs: dict[int | None, MaskSpec] = {}
        queries, real, documents = self.query_positions, self.attention_mask, self.document_ids
        count, plain = len(queries), real is None and documents is None and (cache is None or not cache.has_room)
        for layer, window in enumerate(windows):
            if window not in specs:
                keys = queries if cache is None else cache.key_positions(layer, count, queries.device)
                fits = window is None or len(keys) < window or (count == 1 and len(keys) <= window)
                causal_alone, starts = plain and fits and count in (1, len(keys)), self.document_starts
                specs[window] = MaskSpec(queries, keys, self.batch_size, real, documents, window, causal_alone, starts)
        return specs

    @property
    def real_keys(self) -> Tensor | None:
        """The columns of attention_mask that belong to these keys: (B, S); None = all are real tokens."""
        if self.attention_mask is None:
            return None
        to_come = len(self.key_positions) - self.attention_mask.shape[1]  # room of a static cache; causality hides it
        mask = F.pad(self.attention_mask, (0, max(0, to_come)), value=1)
        return mask if mask.shape[1] == len(self.key_positions) else mask[:, self.key_positions]


def boolean_mask(spec: MaskSpec) -> Tensor | None:
    """Every predicate that applies, written out: (B or 1, 1, T, S), or None if the causal flag says it all."""
    if spec.all_visible:
        return None
    queries, keys = spec.query_positions[:, None], spec.key_positions[None, :]
    mask = causal(queries, keys)
    if spec.sliding_window is not None:
        mask = mask & within_window(queries, keys, spec.sliding_window)
    mask = mask[None, None]  # (1, 1, T, S)
    if (real := spec.real_keys) is not None:
        mask = mask & not_padding(real)[:, None, None, :]
    if (documents := spec.document_ids) is not None:
        mask = mask & same_document(documents[:, :, None], documents[:, None, :])[:, None]
    return mask


def check_inputs(
    config: ModelConfig,
    input_ids: Tensor,
    kv_cache: KVCache | None,
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    position_ids: Tensor | None,
) -> None:
    """Raise ValueError for shapes and ids that a kernel would read without a word."""
    B, T = input_ids.shape
    longest = config.max_position_embeddings
    total = T if kv_cache is None else T + kv_cache.length
    # packed rows may be longer: no document in them is, where each counts its own positions
    if total > longest and (document_ids is None or position_ids is None):
        raise ValueError(f"the sequence has {total} tokens, more than max_position_embeddings ({longest})")
    if document_ids is not None and kv_cache is not None:
        raise ValueError("document_ids are for packed rows, a kv_cache is for one document: give one of them")
    capacity = getattr(kv_cache, "capacity", total)
    for name, tensor, shapes in (
        ("attention_mask", attention_mask, ((B, total), (B, capacity))),
        ("document_ids", document_ids, ((B, T),)),
        ("position_ids", position_ids, ((B, T), (1, T))),
    ):
        if tensor is not None and (tensor.shape not in shapes or tensor.is_floating_point()):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: give integers or booleans {shapes[0]}")
    if input_ids.device.type == "cpu":  # on a GPU this would wait for it
        vocab_size = config.vocab_size or 0
        wrong = input_ids[(input_ids < 0) | (input_ids >= vocab_size)]
        if len(wrong):
            raise ValueError(f"token id {int(wrong[0])} is outside the vocabulary (0 to {vocab_size - 1})")
