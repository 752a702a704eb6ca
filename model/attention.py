r"""Attention: every token asks (q), every token answers (k), and what was asked for is copied (v).

    output_i = Σ_j softmax_j( q_i · k_j / sqrt(D) ) v_j          over the tokens j ≤ i

H query heads ask in parallel; H_kv key/value heads answer, each shared by H / H_kv query heads:

    MHA  H_kv = H          GQA  1 < H_kv < H          MQA  H_kv = 1
    q q q q q q q q        q q q q q q q q            q q q q q q q q
    | | | | | | | |        \_\_/_/ \_\_/_/            \_\_\_\_/_/_/_/
    k k k k k k k k           k       k                      k

Fewer key/value heads mean a smaller cache while decoding: 2 * H_kv * D numbers a token and layer.
Vaswani et al. 2017 (arXiv 1706.03762), Shazeer 2019 (1911.02150), Ainslie et al. 2023 (2305.13245);
QK-norm: Henry et al. 2020 (2010.04245), per head as in Qwen3, or over all heads as in OLMo 2.

`eager` below is the formula. The other backends (model/backends/) compute the same numbers faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.kv_cache import KVCache
from model.linear import make_linear, side_by_side, zero_biases
from model.masks import Mask, mean_keys
from model.norm import HeadsNorm, RMSNorm
from model.positions.rope import apply_rotary, not_rotated

QK_NORM_GAIN = 1.5

# attend(q, k, v, mask, dropout) -> output (B, H, T, D); the mask is of the kind that this backend reads
AttentionFunction = Callable[[Tensor, Tensor, Tensor, Any, float], Tensor]
# rotate(x, cos, sin) -> x turned by RoPE, (B, heads, T, D)
Rotation = Callable[[Tensor, Tensor, Tensor], Tensor]
# recorder(layer_index, q, k, v, output): eval.attention.capture puts one into a layer
Recorder = Callable[[int, Tensor, Tensor, Tensor, Tensor], None]


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """Give every query head its key/value head: (B, H_kv, S, D) -> (B, H_kv * groups, S, D).

    Head h of the result is head h // groups of x: 0 0 1 1 …, not 0 1 0 1 …
    """
    if groups == 1:
        return x
    batch, kv_heads, length, head_dim = x.shape
    x = x[:, :, None].expand(batch, kv_heads, groups, length, head_dim)
    return x.reshape(batch, kv_heads * groups, length, head_dim)


def attention_scores(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """q kᵀ / sqrt(D), with the lowest number of the dtype where the mask forbids: (B, H, T, S)."""
    k = repeat_kv(k, q.shape[1] // k.shape[1])
    scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def normalise(scores: Tensor, mask: Tensor) -> Tensor:
    """softmax over the keys, in float32 or better; zeros in a row that may attend to nothing, never NaN."""
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax of the scores in float32, with zeros where the mask (None: causal) forbids: (B, H, T, S)."""
    if mask is None:
        queries, keys = q.shape[2], k.shape[2]
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    return normalise(attention_scores(q, k, mask), mask)


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """The formula, line by line. q (B, H, T, D), k and v (B, H_kv, S, D), mask (B or 1, 1, T, S) -> (B, H, T, D)."""
    weights = attention_weights(q, k, mask).to(q.dtype)
    weights = F.dropout(weights, dropout, training=dropout > 0)
    return weights @ repeat_kv(v, q.shape[1] // v.shape[1])


def make_qk_norm(config: ModelConfig, size: int) -> nn.Module:
    """The norm of queries or keys (B, T, heads, D), which are `size` numbers a token: one per head, or one for all."""
    if config.qk_norm == "whole":
        return HeadsNorm(size, config.rms_norm_eps, QK_NORM_GAIN)
    return RMSNorm(config.head_size, config.rms_norm_eps, QK_NORM_GAIN) if config.qk_norm else nn.Identity()


def undivided(rotate: Rotation, head_dim: int) -> Rotation:
    """Queries are longer by sqrt(D), the number that every backend divides by: what is left is q kᵀ alone."""

    def rotate_and_lengthen(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(q, cos, sin) * math.sqrt(head_dim)

    return rotate_and_lengthen


class Attention(nn.Module):
    """Project, normalise, rotate, attend, project back. Shapes: B batch, T tokens, H heads, D head_dim."""

    optimizer_group = "matrix"
    part = "attention"

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        self.layer_index = layer_index
        self.head_dim = config.head_size
        self.window = config.windows[layer_index]
        self.attention_dropout = config.attention_dropout
        self.attend: AttentionFunction = eager  # LanguageModel.set_attn_implementation sets another one
        self.recorder: Recorder | None = None
        query_size = config.num_attention_heads * self.head_dim
        kv_size = config.kv_heads * self.head_dim
        qkv_bias = config.qkv_bias or config.attention_bias
        linear = make_linear(config)
        self.q_proj = linear(config.hidden_size, query_size, bias=qkv_bias)
        self.k_proj = linear(config.hidden_size, kv_size, bias=qkv_bias)
        self.v_proj = linear(config.hidden_size, kv_size, bias=qkv_bias)
        self.o_proj = linear(query_size, config.hidden_size, bias=config.attention_bias)
        self.q_norm: nn.Module = make_qk_norm(config, query_size)
        self.k_norm: nn.Module = make_qk_norm(config, kv_size)
        self.rotate = apply_rotary if config.rotates[layer_index] else not_rotated
        self.rotate_q = self.rotate if config.scale_attn_weights else undivided(self.rotate, self.head_dim)

    def forward(
        self,
        x: Tensor,  # (B, T, hidden_size)
        cos: Tensor,  # (B, 1, T, D)
        sin: Tensor,
        mask: Mask,
        kv_cache: KVCache | None = None,
    ) -> Tensor:
        """-> (B, T, hidden_size). With a cache, the T tokens also see what it holds of this layer: S keys in all."""
        B, T, _ = x.shape
        q, k, v = side_by_side(x, self.q_proj, self.k_proj, self.v_proj)
        q = self.q_norm(q.view(B, T, -1, self.head_dim)).transpose(1, 2)  # (B, H, T, D)
        k = self.k_norm(k.view(B, T, -1, self.head_dim)).transpose(1, 2)  # (B, H_kv, T, D)
        v = v.view(B, T, -1, self.head_dim).transpose(1, 2)  # (B, H_kv, T, D)
        q, k = self.rotate_q(q, cos, sin), self.rotate(k, cos, sin)
        if kv_cache is not None:
            k, v = kv_cache.update(self.layer_index, k, v)  # now S ≥ T tokens
        out = self.attend(q, k, v, mask, self.attention_dropout if self.training else 0.0)  # (B, H, T, D)
        if self.recorder is not None:
            self.recorder(self.layer_index, q, k, v, out)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))

    def reset_parameters(self) -> None:
        """Random q, k and v; a zero output projection, so that the layer adds nothing at first; zero biases.

        With QK-norm at a gain of 1, no score exceeds sqrt(D), which is too flat to look at one token alone: the norms
        start at QK_NORM_GAIN.
        """
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.normal_(projection.weight, std=1 / math.sqrt(projection.in_features))
        nn.init.zeros_(self.o_proj.weight)
        zero_biases(self.q_proj, self.k_proj, self.v_proj, self.o_proj)
        for norm in (self.q_norm, self.k_norm):
            if isinstance(norm, RMSNorm):
                norm.reset_parameters()

    def flops_per_token(self, sequence_length: int) -> float:
        """Of a forward pass: the four projections, and q · k and weights @ v for every key that a token sees."""
        matrices = (self.q_proj, self.k_proj, self.v_proj, self.o_proj)
        keys = mean_keys(sequence_length, self.window)
        return 2 * sum(m.weight.numel() for m in matrices) + 4 * self.o_proj.in_features * keys
