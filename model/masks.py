"""Attention masks: small predicates that combine. Boolean everywhere, `True` = may attend.

A predicate compares a query with a key: their positions, their documents, or whether the key is padding. `MaskSpec`
says which predicates apply to a forward pass; each backend turns it into what it needs: `boolean_mask` below, a
block mask (`backends/kernels.py`) or cumulative lengths (`backends/kernels.py`). A row that may attend to nothing
(padding, as a query) gets zeros from every backend, never NaN.

Positions here are places in the sequence, cached tokens included. They are not `position_ids`, which only rotate RoPE:
only `document_ids` separate documents. They are never guessed from positions that start again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask


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
class Sequences:
    """Where each document begins among the queries and among the keys, rows laid end to end.

    cu_queries, cu_keys (documents + 1,) int32, cumulative lengths. max_queries, max_keys: an upper bound of a length.
    query_order, key_order: in which order the B * T and B * S tokens are laid, with padding last in each row; None = as
    they are. real_queries (B, T): which queries are real tokens; None = all.
    """

    cu_queries: Tensor
    cu_keys: Tensor
    max_queries: int
    max_keys: int
    window: tuple[int, int]  # tokens seen to the left and to the right; -1 = all
    query_order: Tensor | None = None
    key_order: Tensor | None = None
    real_queries: Tensor | None = None


class Band(NamedTuple):
    """A window's mask, for chunks of C queries that each see two chunks of keys (model/backends/kernels.py).

    visible (B * chunks, 1, C, 2 C) boolean; size: C.
    """

    visible: Tensor
    size: int


# What a backend reads: a boolean tensor (B or 1, 1, T, S), FlexAttention's blocks, lengths, a band; None = causal alone
Mask = Tensor | BlockMask | Sequences | Band | None


@dataclass(frozen=True)
class MaskSpec:
    """Which predicates limit one kind of layer in one forward pass of B rows, T queries over S keys each.

    query_positions (T,), key_positions (S,): places in the sequence. attention_mask (B, S): 1 = real token.
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


def boolean_mask(spec: MaskSpec) -> Tensor | None:
    """Every predicate that applies, written out: (B or 1, 1, T, S), or None if the causal flag says it all."""
    if spec.all_visible:
        return None
    queries, keys = spec.query_positions[:, None], spec.key_positions[None, :]
    mask = causal(queries, keys)
    if spec.sliding_window is not None:
        mask = mask & within_window(queries, keys, spec.sliding_window)
    mask = mask[None, None]  # (1, 1, T, S)
    if spec.attention_mask is not None:
        mask = mask & not_padding(spec.attention_mask)[:, None, None, :]
    if spec.document_ids is not None:
        mask = mask & same_document(spec.document_ids[:, :, None], spec.document_ids[:, None, :])[:, None]
    return mask


def real_tokens(attention_mask: Tensor | None, key_positions: Tensor) -> Tensor | None:
    """The columns of attention_mask (B, tokens so far) that belong to these keys: (B, S).

    A static cache has room for tokens that are still to come; causality hides those.
    """
    if attention_mask is None:
        return None
    room = key_positions.shape[0] - attention_mask.shape[1]
    if room > 0:
        attention_mask = F.pad(attention_mask, (0, room), value=1)
    return attention_mask[:, key_positions] if attention_mask.shape[1] != key_positions.shape[0] else attention_mask


def mean_keys(sequence_length: int, window: int | None = None) -> float:
    """How many keys a token sees on average: i of them at place i = 1 … T, at most `window`."""
    w = min(window or sequence_length, sequence_length)
    return (w * (w + 1) / 2 + (sequence_length - w) * w) / sequence_length
