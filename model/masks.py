"""Attention masks: small predicates that combine. Boolean everywhere, `True` = may attend.

`build_mask` returns None when plain causal attention says it all, because kernels have a fast path for that.
"""

from __future__ import annotations

import torch
from torch import Tensor


def causal(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """A token sees itself and what came before. (T,), (S,) -> (T, S)

        key   0 1 2 3
    query 0   x . . .
          1   x x . .
          2   x x x .
          3   x x x x
    """
    return query_positions[:, None] >= key_positions[None, :]


def same_document(query_documents: Tensor, key_documents: Tensor) -> Tensor:
    """Equal document ids may see each other. (B, T), (B, S) -> (B, 1, T, S)

    documents   0 0 1 1
            0   x x . .
            0   x x . .
            1   . . x x
            1   . . x x
    """
    return (query_documents[:, :, None] == key_documents[:, None, :])[:, None]


def not_padding(attention_mask: Tensor) -> Tensor:
    """Keys that are real tokens. attention_mask (B, S), 1 or True = real -> (B, 1, 1, S)

    attention_mask   1 1 1 0
                     x x x .
    """
    return attention_mask.bool()[:, None, None, :]


def build_mask(
    query_length: int,
    key_length: int,
    *,
    attention_mask: Tensor | None = None,
    document_ids: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor | None:
    """Combine the predicates that apply into one boolean mask (B or 1, 1, T, S), or None for plain causal.

    query_length T, key_length S: the queries are the last T of the S positions (S > T while decoding).
    attention_mask (B, S), document_ids (B, S): both cover every key, cached ones included.
    """
    alone = query_length == 1 or query_length == key_length
    if attention_mask is None and document_ids is None and alone:
        return None
    keys = torch.arange(key_length, device=device)
    mask = causal(keys[key_length - query_length :], keys)[None, None]
    if attention_mask is not None:
        mask = mask & not_padding(attention_mask)
    if document_ids is not None:
        mask = mask & same_document(document_ids[:, key_length - query_length :], document_ids)
    return mask
