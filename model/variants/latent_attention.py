r"""Multi-head latent attention (MLA): the cache keeps one small vector a token, and every head makes its keys of it.

    x ──┬── q_proj ──────────────┬── q_nope   H heads
        │                        └── q_rot    H heads, turned by RoPE
        └── kv_a_proj_with_mqa ──┬── c ── kv_b_proj ──┬── k_nope   H heads
                                 │                    └── v        H heads
                                 └── k_rot    one for all heads, turned by RoPE

    x  (B, T, hidden_size)     c  the latent (B, T, kv_lora_rank)     k_rot  the rotary part (B, T, qk_rope_head_dim)
    The cache keeps c and k_rot of every token, and nothing that is made of them.

    k_nope_h = K_h c        v_h = V_h c        (K_h and V_h are the rows of kv_b_proj that belong to head h)
    score_h  = (q_nope_h · k_nope_h + q_rot_h · k_rot) / sqrt(qk_nope_head_dim + qk_rope_head_dim)

RoPE does not fit into the latent, because a rotation stands between query and key: so a few numbers carry the position,
apart from it.

**Decoding by absorbed matrices.** To read one token, the keys of all earlier ones need not be made again:

    q_nope_h · (K_h c) = (K_hᵀ q_nope_h) · c        Σ_j w_j (V_h c_j) = V_h (Σ_j w_j c_j)

K and V move over to the query and to the output, and what is left is MQA: H queries, one key (c, k_rot), one value c.
The plain form is what transformers computes, to the last bit, with a cache and without. The absorbed form adds in
another order; `attention.absorbs = False` (for attention in lm.attention_modules()) switches it off.

DeepSeek-AI 2024, DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C; 2024, DeepSeek-V3 (2412.19437).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from model.attention import AttentionFunction, Recorder, eager
from model.config import ModelConfig
from model.kv_cache import KVCache
from model.masks import Mask
from model.norm import RMSNorm, initialize
from model.rope import apply_rotary

LATENT_EPS = 1e-6  # of the norms of the latents: transformers takes this one, whatever rms_norm_eps is


class LatentAttention(nn.Module):
    """Shapes: B batch, T tokens, S tokens with those of the cache, H heads, R kv_lora_rank."""

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        self.layer_index = layer_index
        self.attention_dropout = config.attention_dropout
        self.attend: AttentionFunction = eager  # LanguageModel.set_attn_implementation sets another one
        self.recorder: Recorder | None = None
        self.absorbs = True  # one token behind a cache is read by absorbed matrices
        self.interleaved = config.rope_interleave
        self.rotates = config.rotates[layer_index]
        self.heads, self.rotary, self.value = config.num_attention_heads, config.rotary_size, config.value_size
        self.nope = config.head_size - self.rotary
        (_, self.rank), _ = config.cache_shapes
        self.q_rank, hidden, query_size = config.q_lora_rank, config.hidden_size, self.heads * config.head_size
        if self.q_rank is None:
            self.q_proj = nn.Linear(hidden, query_size, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden, self.q_rank, bias=config.attention_bias)
            self.q_a_layernorm = RMSNorm(self.q_rank, LATENT_EPS)
            self.q_b_proj = nn.Linear(self.q_rank, query_size, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, self.rank + self.rotary, bias=config.attention_bias)
        self.kv_a_layernorm = RMSNorm(self.rank, LATENT_EPS)
        self.kv_b_proj = nn.Linear(self.rank, self.heads * (self.nope + self.value), bias=False)
        self.o_proj = nn.Linear(self.heads * self.value, hidden, bias=config.attention_bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Mask, kv_cache: KVCache | None = None) -> Tensor:
        """x (B, T, hidden_size), cos and sin (B, 1, T, qk_rope_head_dim) -> (B, T, hidden_size), as in attention.py."""
        B, T, _ = x.shape
        q = self.q_proj(x) if self.q_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(B, T, self.heads, -1).transpose(1, 2)  # (B, H, T, nope + rotary)
        latent, k_rot = self.kv_a_proj_with_mqa(x)[:, None].split((self.rank, self.rotary), dim=-1)
        latent = self.kv_a_layernorm(latent)  # (B, 1, T, R)
        q_nope, q_rot = q.split((self.nope, self.rotary), dim=-1)
        q_rot, k_rot = self.rotate(q_rot, cos, sin), self.rotate(k_rot, cos, sin)  # (B, H or 1, T, rotary)
        if kv_cache is not None:
            latent, k_rot = kv_cache.update(self.layer_index, latent, k_rot)  # now S ≥ T tokens
        if self.absorbs and T == 1 and kv_cache is not None and (mask is None or isinstance(mask, Tensor)):
            out = self.absorbed(q_nope, q_rot, latent, k_rot, mask)  # (B, H, 1, value)
        else:
            out = self.plain(q_nope, q_rot, latent, k_rot, mask)  # (B, H, T, value)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.interleaved:  # pairs are neighbours, not numbers of two halves: a b a b -> a a b b
            x = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
        return apply_rotary(x, cos, sin) if self.rotates else x

    def plain(self, q_nope: Tensor, q_rot: Tensor, latent: Tensor, k_rot: Tensor, mask: Mask) -> Tensor:
        """Keys and values of every head from the latents (B, 1, S, R), then attention as ever: (B, H, T, value)."""
        B, _, S, _ = latent.shape
        made = self.kv_b_proj(latent).view(B, S, self.heads, -1).transpose(1, 2)  # (B, H, S, nope + value)
        k_nope, v = made.split((self.nope, self.value), dim=-1)
        q = torch.cat((q_nope, q_rot), dim=-1)
        k = torch.cat((k_nope, k_rot.expand(-1, self.heads, -1, -1)), dim=-1)  # (B, H, S, nope + rotary)
        out = self.attend(q, k, v, mask, self.attention_dropout if self.training else 0.0)
        if self.recorder is not None:
            self.recorder(self.layer_index, q, k, v, out)
        return out

    def absorbed(self, q_nope: Tensor, q_rot: Tensor, latent: Tensor, k_rot: Tensor, mask: Tensor | None) -> Tensor:
        """One query (T = 1) of every head on the latents themselves, by the formula: (B, H, 1, value).

        The H queries become the rows of one head. A longer query makes up for the other sqrt in the formula.
        """
        to_key, to_value = self.kv_b_proj.weight.view(self.heads, -1, self.rank).split((self.nope, self.value), dim=1)
        q = torch.cat((q_nope @ to_key, q_rot), dim=-1)  # (B, H, 1, R + rotary)
        q = q * math.sqrt(q.shape[-1] / (self.nope + self.rotary))
        k = torch.cat((latent, k_rot), dim=-1)  # (B, 1, S, R + rotary)
        if mask is None:
            mask = torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool, device=k.device)
        mixed = eager(q.transpose(1, 2), k, latent, mask, 0.0).transpose(1, 2)  # (B, H, 1, R)
        if self.recorder is not None:
            self.recorder(self.layer_index, q, k, latent, mixed)
        return mixed @ to_value.mT

    def reset_parameters(self) -> None:
        initialize(self)
        nn.init.zeros_(self.o_proj.weight)  # drawn like the others first, so that a seed means what it did
