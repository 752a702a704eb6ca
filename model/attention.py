"""Attention: every token asks (q), every token answers (k), and what was asked for is copied (v).

    output_i = Σ_j softmax_j( q_i · k_j / sqrt(D) ) v_j          over the tokens j ≤ i

H query heads ask in parallel; H_kv key/value heads answer, each shared by H / H_kv query heads:

    MHA  H_kv = H          GQA  1 < H_kv < H          MQA  H_kv = 1
    q q q q q q q q        q q q q q q q q            q q q q q q q q
    | | | | | | | |        \\_\\_/_/ \\_\\_/_/            \\_\\_\\_\\_/_/_/_/
    k k k k k k k k           k       k                      k

Fewer key/value heads mean a smaller cache while decoding: 2 * H_kv * D numbers a token and layer.
Vaswani et al. 2017 (arXiv 1706.03762), Shazeer 2019 (1911.02150), Ainslie et al. 2023 (2305.13245);
QK-norm: Henry et al. 2020 (2010.04245), here per head as in Qwen3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from model.backends.choice import BACKENDS, repeat_kv
from model.config import ModelConfig
from model.decoding.kv_cache import KVCache
from model.norm import RMSNorm
from model.rope import apply_rotary

__all__ = ["Attention", "repeat_kv"]

# recorder(layer_index, q, k, v, output): what eval.attention.capture hangs into a layer
Recorder = Callable[[int, Tensor, Tensor, Tensor, Tensor], None]


class Attention(nn.Module):
    """Project, normalise, rotate, attend, project back. Shapes: B batch, T tokens, H heads, D head_dim."""

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        self.layer_index = layer_index
        self.head_dim = config.head_size
        self.attention_dropout = config.attention_dropout
        self.backend: str = "sdpa" if config.attn_implementation == "auto" else config.attn_implementation
        self.recorder: Recorder | None = None
        query_size = config.num_attention_heads * self.head_dim
        kv_size = config.kv_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)
        if config.qk_norm:
            self.q_norm: nn.Module = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm: nn.Module = RMSNorm(self.head_dim, config.rms_norm_eps)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(
        self,
        x: Tensor,  # (B, T, hidden_size)
        cos: Tensor,  # (B, 1, T, D)
        sin: Tensor,
        mask: Any,  # in the backend's form: (B or 1, 1, T, S) with True = may attend, for most; None = causal
        kv_cache: KVCache | None = None,
    ) -> Tensor:
        """-> (B, T, hidden_size). With a cache, the T tokens also see what it holds of this layer: S keys in all."""
        B, T, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(B, T, -1, self.head_dim)).transpose(1, 2)  # (B, H, T, D)
        k = self.k_norm(self.k_proj(x).view(B, T, -1, self.head_dim)).transpose(1, 2)  # (B, H_kv, T, D)
        v = self.v_proj(x).view(B, T, -1, self.head_dim).transpose(1, 2)  # (B, H_kv, T, D)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        if kv_cache is not None:
            k, v = kv_cache.update(self.layer_index, k, v)  # now S ≥ T tokens
        dropout = self.attention_dropout if self.training else 0.0
        out = BACKENDS[self.backend].compute(q, k, v, mask, dropout)  # (B, H, T, D)
        if self.recorder is not None:
            self.recorder(self.layer_index, q, k, v, out)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))
