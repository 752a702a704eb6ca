r"""Attention: a token compares its query (q) with keys (k), and copies a mixture of values (v).

    output_i = Σ_j softmax_j( q_i · k_j / sqrt(D) ) v_j          over the tokens j ≤ i

H query heads work in parallel. Each key/value head, of H_kv, serves H / H_kv of them:

    MHA  H_kv = H          GQA  1 < H_kv < H          MQA  H_kv = 1
    q q q q q q q q        q q q q q q q q            q q q q q q q q
    | | | | | | | |        \_\_/_/ \_\_/_/            \_\_\_\_/_/_/_/
    k k k k k k k k           k       k                      k

Fewer key/value heads mean a smaller cache while decoding: 2 * H_kv * D numbers a token and layer.
Vaswani et al. 2017 (arXiv 1706.03762), Shazeer 2019 (1911.02150), Ainslie et al. 2023 (2305.13245);
QK-norm: Henry et al. 2020 (2010.04245), per head as in Qwen3, or over all heads as in OLMo 2.

`eager` is the formula, `fused` the same numbers from a fast kernel; model/backends/ has more.
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
from model.loss import compute_dtype
from model.masks import Mask
from model.norm import HeadsNorm, RMSNorm, initialize
from model.rope import apply_rotary

# With a gain of 1, no score exceeds sqrt(D): too flat to attend to one token alone.
QK_NORM_GAIN = 1.5
# The copied token has this weight, the token itself 1.
MIMETIC_STRENGTH = 0.7

# attend(q, k, v, mask, dropout) -> output (B, H, T, D), with a mask in this backend's form
AttentionFunction = Callable[[Tensor, Tensor, Tensor, Any, float], Tensor]
# recorder(layer_index, q, k, v, output), which eval.attention.capture puts into a layer
Recorder = Callable[[int, Tensor, Tensor, Tensor, Tensor], None]
# clamp(v, output) -> output, in which some heads look elsewhere (eval/attention/clamp.py)
Clamp = Callable[[Tensor, Tensor], Tensor]


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """Give every query head its key/value head: (B, H_kv, S, D) -> (B, H_kv * groups, S, D)."""
    if groups == 1:  # MHA
        return x
    B, H_kv, S, D = x.shape
    # the copies of a head are neighbours: query head h reads head h // groups, 0 0 1 1, not 0 1 0 1
    x = x[:, :, None].expand(B, H_kv, groups, S, D)
    return x.reshape(B, H_kv * groups, S, D)


def smear_keys(k: Tensor, share: Tensor, has_previous: Tensor) -> Tensor:
    """Return share * k_j + (1 - share) * k_{j-1}, Olsson et al. 2022 (arXiv 2209.11895).

    k (B, H_kv, S, D), after RoPE; share (H_kv,); has_previous (B or 1, S): False leaves a key alone

    Each key has been turned by its own position, so the scores mix as the keys do: the share of
    the score of token j, and the rest of that of token j - 1. In the paper, too, a key has its own
    position in it.
    """
    shares = torch.where(has_previous[:, None], share[:, None], 1.0)[..., None]  # (B, H_kv, S, 1)
    previous = F.pad(k[:, :, :-1], (0, 0, 1, 0))  # one token later, and zeros in front
    return (shares * k + (1 - shares) * previous).to(k.dtype)


def attention_scores(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """Return q kᵀ / sqrt(D), with the dtype's lowest number for hidden keys: (B, H, T, S)."""
    k = repeat_kv(k, q.shape[1] // k.shape[1])  # (B, H, S, D)
    # a sum of D products grows with sqrt(D); undivided, it would make the softmax one-hot
    scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5  # (B, H, T, S)
    # not minus infinity: the softmax of a row that is hidden completely would be NaN
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def normalise(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the keys, in float32 or better; zeros, not NaN, if a row sees no key."""
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax of the scores in float32 (B, H, T, S). mask: None = causal."""
    if mask is None:
        T = q.shape[2]
        S = k.shape[2]
        # the queries are the last T of the S tokens: a cache holds those before
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
    return normalise(attention_scores(q, k, mask), mask)


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """The formula: q (B, H, T, D), k, v (B, H_kv, S, D), mask (B or 1, 1, T, S) -> (B, H, T, D)."""
    weights = attention_weights(q, k, mask).to(q.dtype)  # (B, H, T, S)
    weights = F.dropout(weights, dropout, training=dropout > 0)
    return weights @ repeat_kv(v, q.shape[1] // v.shape[1])  # (B, H, T, S) @ (B, H, S, D)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """The same numbers from PyTorch's kernels. Without a mask they are causal.

    Flash attention never stores the T x S scores (Dao et al. 2022, arXiv 2205.14135).
    """
    B, H, T, D = q.shape
    H_kv, S = k.shape[1:3]
    groups = H // H_kv
    shape = (B, H, T, v.shape[3])
    out_dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = in_kernel_dtype(q, k, v)
        if T == 1 < S and groups > 1:
            # decoding: the queries of a group become rows of one head, so k and v are read once
            q = q.reshape(B, H_kv, groups, D)  # (B, H_kv, H / H_kv, D)
            groups = 1
        elif q.is_cuda and (mask is not None or q.dtype == torch.float32):
            # no fast kernel of a GPU takes grouped heads here; PyTorch would use the formula
            k = repeat_kv(k, groups)  # (B, H, S, D)
            v = repeat_kv(v, groups)
            groups = 1
        # note: PyTorch's flag lets query i see keys 0 … i, so one query would see only the first
        is_causal = mask is None and T > 1
        out = F.scaled_dot_product_attention(
            q, k, v, mask, dropout, is_causal, enable_gqa=groups > 1
        )
    return out.reshape(shape).to(out_dtype)


def in_kernel_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast all three to one dtype: under autocast, RoPE leaves q and k in float32."""
    dtype = compute_dtype(v)
    if q.device.type == "cpu":
        # PyTorch's kernel is two to three times faster than in bfloat16 (FINDINGS.md#backends)
        dtype = torch.promote_types(q.dtype, torch.float32)
    return q.to(dtype), k.to(dtype), v.to(dtype)


class Attention(nn.Module):
    """Project, normalise, rotate, attend, project back: B batch, T tokens, H heads, D head_dim."""

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        self.layer_index = layer_index
        self.head_dim = config.head_size
        self.rotates = config.rotates[layer_index]
        self.divides = config.scale_attn_weights
        self.mimetic = config.initialization == "mimetic"
        self.attention_dropout = config.attention_dropout
        # LanguageModel.set_attn_implementation chooses another backend
        self.attend: AttentionFunction = eager
        self.recorder: Recorder | None = None
        self.clamp: Clamp | None = None
        query_size = config.num_attention_heads * self.head_dim
        (key_heads, _), (value_heads, _) = config.cache_shapes  # they differ with kv_sharing
        key_size = key_heads * self.head_dim
        qkv_bias = config.qkv_bias or config.attention_bias
        # one matrix makes the vectors of all heads
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, value_heads * self.head_dim, bias=qkv_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.attention_bias)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        eps = config.rms_norm_eps
        if config.qk_norm == "whole":  # over all heads of a token, as in OLMo 2
            self.q_norm = HeadsNorm(query_size, eps, QK_NORM_GAIN)
            self.k_norm = HeadsNorm(key_size, eps, QK_NORM_GAIN)
        elif config.qk_norm:  # each head alone, with one weight for all heads, as in Qwen3
            self.q_norm = RMSNorm(self.head_dim, eps, QK_NORM_GAIN)
            self.k_norm = RMSNorm(self.head_dim, eps, QK_NORM_GAIN)
        self.smear: nn.Parameter | None = None
        if config.smear_keys:  # zero: half of each key is the one before
            self.smear = nn.Parameter(torch.zeros(key_heads))

    def forward(
        self,
        x: Tensor,  # (B, T, hidden_size)
        cos: Tensor,  # (B, 1, T, D)
        sin: Tensor,
        mask: Mask,
        kv_cache: KVCache | None = None,
    ) -> Tensor:
        """Return (B, T, hidden_size). With a cache, the T tokens see S ≥ T keys."""
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, -1, self.head_dim)  # (B, T, H, D)
        k = self.k_proj(x).view(B, T, -1, self.head_dim)  # (B, T, H_kv, D)
        v = self.v_proj(x).view(B, T, -1, self.head_dim)  # (B, T, H_kv, D)
        # heads come before tokens: then each head is one matrix product
        q = self.q_norm(q).transpose(1, 2)  # (B, H, T, D)
        k = self.k_norm(k).transpose(1, 2)  # (B, H_kv, T, D)
        v = v.transpose(1, 2)  # (B, H_kv, T, D)
        if self.rotates:  # without RoPE, only the mask shows the order (NoPE, arXiv 2305.19466)
            q = apply_rotary(q, cos, sin)
            k = apply_rotary(k, cos, sin)
        if not self.divides:
            q = q * math.sqrt(self.head_dim)  # cancels the 1 / sqrt(D) of every backend
        if kv_cache is not None:
            # after RoPE: cached keys are rotated already, each by its own position
            k, v = kv_cache.update(self.layer_index, k, v)  # (B, H_kv, S, D)
        if self.smear is not None:
            # behind the cache: it keeps every key as it is, so the next one can mix with it
            mask, has_previous = mask
            k = smear_keys(k, self.smear.sigmoid(), has_previous)
        if k.shape[1] != v.shape[1]:  # kv_sharing: a backend takes equally many of both
            k = repeat_kv(k, q.shape[1] // k.shape[1])  # (B, H, S, D)
            v = repeat_kv(v, q.shape[1] // v.shape[1])
        dropout = self.attention_dropout if self.training else 0.0
        out = self.attend(q, k, v, mask, dropout)  # (B, H, T, D)
        if self.clamp is not None:
            out = self.clamp(v, out)
        if self.recorder is not None:
            self.recorder(self.layer_index, q, k, v, out)
        # the heads side by side, (B, T, H * D); o_proj mixes them
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))

    def reset_parameters(self) -> None:
        """Draw the matrices. mimetic: heads attend to similar tokens and copy them from the start.

        Trockman & Kolter 2023 (arXiv 2305.09828).
        """
        initialize(self, output="o_proj")
        if self.mimetic:
            query_size = self.q_proj.out_features
            groups = query_size // self.k_proj.out_features
            value_groups = query_size // self.v_proj.out_features
            with torch.no_grad():
                # keys equal the queries of the first head that they serve
                queries = self.q_proj.weight.unflatten(0, (-1, groups, self.head_dim))
                self.k_proj.weight.copy_(queries[:, 0].flatten(0, 1))
                # the output is the transposed values: together nearly the identity
                values = self.v_proj.weight.unflatten(0, (-1, self.head_dim))  # (H_kv, D, in)
                values = values.repeat_interleave(value_groups, dim=0).flatten(0, 1)  # (H * D, in)
                self.o_proj.weight.copy_(MIMETIC_STRENGTH * values.T)
