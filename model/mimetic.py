"""First weights with which a head looks at tokens like its own and copies them, before anything is learned.

In trained transformers queries and keys are much alike, and so are what a head reads and what it writes. Weights that
begin so learn sooner (Trockman & Kolter 2023, "Mimetic Initialization of Self-Attention Layers", arXiv 2305.09828).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from model.attention import Attention

STRENGTH = 0.7  # of what is copied, beside the token itself


@torch.no_grad()
def start_mimetic(layers: Iterable[nn.Module]) -> None:
    """Every key matrix (H_kv * D, hidden_size) becomes that of its first query head, and every output matrix
    (hidden_size, H * D) the transpose of its value matrix, times STRENGTH. Biases and norms stay.
    """
    for layer in layers:
        attention = layer.self_attn
        assert isinstance(attention, Attention)
        q, k, v = (getattr(attention, f"{name}_proj").weight for name in "qkv")
        groups = q.shape[0] // k.shape[0]
        k.copy_(q.unflatten(0, (-1, groups, attention.head_dim))[:, 0].flatten(0, 1))
        of_heads = v.unflatten(0, (-1, attention.head_dim)).repeat_interleave(groups, dim=0).flatten(0, 1)
        attention.o_proj.weight.copy_(STRENGTH * of_heads.T)
