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

`eager` below is the formula, `fused` the same numbers from a fast kernel. model/backends/ has more of those.
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

QK_NORM_GAIN = 1.5  # with 1, no score exceeds sqrt(D), which is too flat to look at one token alone
MIMETIC_STRENGTH = 0.7  # of what is copied, beside the token itself

# attend(q, k, v, mask, dropout) -> output (B, H, T, D); the mask is of the kind that this backend reads
AttentionFunction = Callable[[Tensor, Tensor, Tensor, Any, float], Tensor]
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


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """The same numbers from PyTorch's kernels, of which flash attention never writes the T x S scores down (Dao et al.
    2022, arXiv 2205.14135). Without a mask it is causal; grouped heads go in as they are.
    """
    (batch, heads, queries, head_dim), (kv_heads, keys) = q.shape, k.shape[1:3]
    shape, out_dtype, groups = (*q.shape[:3], v.shape[3]), v.dtype, heads // kv_heads
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = in_kernel_dtype(q, k, v)
        if queries == 1 < keys and groups > 1:  # decoding: the queries of a group become rows of one head
            q, groups = q.reshape(batch, kv_heads, groups, head_dim), 1
        elif q.is_cuda and (mask is not None or q.dtype == torch.float32):
            # no fast kernel of a GPU takes grouped heads here; PyTorch would fall back to the formula
            k, v, groups = repeat_kv(k, groups), repeat_kv(v, groups), 1
        is_causal = mask is None and queries > 1
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, enable_gqa=groups > 1)
    return out.reshape(shape).to(out_dtype)


def in_kernel_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One dtype for all three; under autocast, RoPE leaves q and k in float32 and v in bfloat16. On a GPU it is
    autocast's, on a CPU float32, where PyTorch's kernel is two to three times faster than in bfloat16
    (FINDINGS.md#backends)."""
    dtype = torch.promote_types(q.dtype, torch.float32) if q.device.type == "cpu" else compute_dtype(v)
    return q.to(dtype), k.to(dtype), v.to(dtype)


class Attention(nn.Module):
    """Project, normalise, rotate, attend, project back. Shapes: B batch, T tokens, H heads, D head_dim."""

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        self.layer_index = layer_index
        self.head_dim = config.head_size
        self.rotates = config.rotates[layer_index]
        self.divides = config.scale_attn_weights
        self.mimetic = config.initialization == "mimetic"
        self.attention_dropout = config.attention_dropout
        # the choice; LanguageModel.set_attn_implementation makes it in a model, and model/backends has more
        self.attend: AttentionFunction = fused if config.attn_implementation == "flash" else eager
        self.recorder: Recorder | None = None
        query_size = config.num_attention_heads * self.head_dim
        kv_size = config.kv_heads * self.head_dim
        qkv_bias = config.qkv_bias or config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=qkv_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.attention_bias)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if config.qk_norm:
            # one norm over all heads of a token, as in OLMo 2, or one that every head shares, as in Qwen3
            over_all_heads = config.qk_norm == "whole"
            norm, eps = (HeadsNorm if over_all_heads else RMSNorm), config.rms_norm_eps
            self.q_norm = norm(query_size if over_all_heads else self.head_dim, eps, QK_NORM_GAIN)
            self.k_norm = norm(kv_size if over_all_heads else self.head_dim, eps, QK_NORM_GAIN)

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
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = self.q_norm(q.view(B, T, -1, self.head_dim)).transpose(1, 2)  # (B, H, T, D)
        k = self.k_norm(k.view(B, T, -1, self.head_dim)).transpose(1, 2)  # (B, H_kv, T, D)
        v = v.view(B, T, -1, self.head_dim).transpose(1, 2)  # (B, H_kv, T, D)
        if self.rotates:  # a layer without RoPE sees positions by the mask alone (NoPE, arXiv 2305.19466)
            q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        if not self.divides:
            q = q * math.sqrt(self.head_dim)  # cancels the 1 / sqrt(D) of every backend: what is left is q kᵀ alone
        if kv_cache is not None:
            k, v = kv_cache.update(self.layer_index, k, v)  # now S ≥ T tokens
        out = self.attend(q, k, v, mask, self.attention_dropout if self.training else 0.0)  # (B, H, T, D)
        if self.recorder is not None:
            self.recorder(self.layer_index, q, k, v, out)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))

    def reset_parameters(self) -> None:
        """mimetic: keys begin as the queries of the first head that they serve, what a head writes as what it reads. So
        heads look at tokens like their own and copy them before anything is learned, as trained heads do (Trockman &
        Kolter 2023, arXiv 2305.09828).
        """
        initialize(self, output="o_proj")
        if self.mimetic:
            q, k, v, out = self.q_proj, self.k_proj, self.v_proj, self.o_proj
            groups = q.out_features // k.out_features
            with torch.no_grad():
                k.weight.copy_(q.weight.unflatten(0, (-1, groups, self.head_dim))[:, 0].flatten(0, 1))
                of_heads = v.weight.unflatten(0, (-1, self.head_dim)).repeat_interleave(groups, dim=0).flatten(0, 1)
                out.weight.copy_(MIMETIC_STRENGTH * of_heads.T)
