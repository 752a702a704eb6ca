r"""Multi-head latent attention (MLA): the cache keeps one small vector per token for all heads.

    x ──┬── q_proj ──────────────┬── q_nope   H heads
        │                        └── q_rot    H heads, turned by RoPE
        └── kv_a_proj_with_mqa ──┬── c ── kv_b_proj ──┬── k_nope   H heads
                                 │                    └── v        H heads
                                 └── k_rot    one for all heads, turned by RoPE

    x (B, T, hidden_size)   latent c (B, T, kv_lora_rank)   rotary part k_rot (B, T, rotary size)
    The cache keeps c and k_rot of every token, and nothing else.

    k_nope_h = K_h c        v_h = V_h c        K_h, V_h: rows of kv_b_proj for head h
    score_h  = (q_nope_h · k_nope_h + q_rot_h · k_rot) / sqrt(qk_nope_head_dim + qk_rope_head_dim)

A few separate numbers, k_rot, carry the position, because a rotation between query and key would
not let K_h move to the query:

**Decoding by absorbed matrices.** To read one token, the keys of earlier ones are not needed:

    q_nope_h · (K_h c) = (K_hᵀ q_nope_h) · c        Σ_j w_j (V_h c_j) = V_h (Σ_j w_j c_j)

K moves to the query and V to the output, which leaves MQA: H queries, one key (c, k_rot), one
value c. The plain form equals transformers to the last bit, the absorbed form only nearly.

DeepSeek-V2 (2024, arXiv 2405.04434), section 2.1 and appendix C; DeepSeek-V3 (2024, 2412.19437).
"""

import math

import torch
from torch import Tensor, nn

from model.attention import AttentionFunction, Recorder, eager
from model.config import ModelConfig
from model.kv_cache import KVCache
from model.masks import Mask
from model.norm import RMSNorm, initialize
from model.rope import apply_rotary

# transformers normalises latents with this, whatever rms_norm_eps is.
LATENT_EPS = 1e-6


class LatentAttention(nn.Module):
    """Shapes: B batch, T tokens, S tokens with those of the cache, H heads, R kv_lora_rank."""

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        self.layer_index = layer_index
        self.attention_dropout = config.attention_dropout
        # LanguageModel.set_attn_implementation chooses another backend
        self.attend: AttentionFunction = eager
        self.recorder: Recorder | None = None
        # decode by absorbed matrices; False: as transformers, to the last bit
        self.absorbs = True
        self.interleaved = config.rope_interleave
        self.rotates = config.rotates[layer_index]
        self.heads = config.num_attention_heads
        self.rotary = config.rotary_size  # numbers of a query and of a key with RoPE
        self.nope = config.head_size - self.rotary  # and without
        self.value = config.value_size
        self.rank = config.kv_lora_rank or 0  # size of the latent
        self.q_rank = config.q_lora_rank
        hidden = config.hidden_size
        query_size = self.heads * config.head_size
        bias = config.attention_bias
        if self.q_rank is None:
            self.q_proj = nn.Linear(hidden, query_size, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden, self.q_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(self.q_rank, LATENT_EPS)
            self.q_b_proj = nn.Linear(self.q_rank, query_size, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, self.rank + self.rotary, bias=bias)
        self.kv_a_layernorm = RMSNorm(self.rank, LATENT_EPS)
        self.kv_b_proj = nn.Linear(self.rank, self.heads * (self.nope + self.value), bias=False)
        self.o_proj = nn.Linear(self.heads * self.value, hidden, bias=bias)

    def forward(
        self,
        x: Tensor,  # (B, T, hidden_size)
        cos: Tensor,  # (B, 1, T, qk_rope_head_dim)
        sin: Tensor,
        mask: Mask,
        kv_cache: KVCache | None = None,
    ) -> Tensor:
        B, T, _ = x.shape
        if self.q_rank is None:
            q = self.q_proj(x)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(B, T, self.heads, -1).transpose(1, 2)  # (B, H, T, nope + rotary)
        latent, k_rot = self.kv_a_proj_with_mqa(x)[:, None].split((self.rank, self.rotary), dim=-1)
        latent = self.kv_a_layernorm(latent)  # (B, 1, T, R)
        q_nope, q_rot = q.split((self.nope, self.rotary), dim=-1)
        q_rot = self.rotate(q_rot, cos, sin)  # (B, H, T, rotary)
        k_rot = self.rotate(k_rot, cos, sin)  # (B, 1, T, rotary)
        if kv_cache is not None:
            latent, k_rot = kv_cache.update(self.layer_index, latent, k_rot)  # now S ≥ T tokens
        is_decoding = T == 1 and kv_cache is not None
        if self.absorbs and is_decoding and (mask is None or isinstance(mask, Tensor)):
            out = self.absorbed(q_nope, q_rot, latent, k_rot, mask)  # (B, H, 1, value)
        else:
            out = self.plain(q_nope, q_rot, latent, k_rot, mask)  # (B, H, T, value)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.interleaved:  # pairs are neighbours: a b a b -> a a b b
            x = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
        return apply_rotary(x, cos, sin) if self.rotates else x

    def plain(
        self, q_nope: Tensor, q_rot: Tensor, latent: Tensor, k_rot: Tensor, mask: Mask
    ) -> Tensor:
        """Compute keys and values from the latents (B, 1, S, R), then attend: (B, H, T, value)."""
        B, _, S, _ = latent.shape
        kv = self.kv_b_proj(latent).view(B, S, self.heads, -1)
        kv = kv.transpose(1, 2)  # (B, H, S, nope + value)
        k_nope, v = kv.split((self.nope, self.value), dim=-1)
        q = torch.cat((q_nope, q_rot), dim=-1)  # (B, H, T, nope + rotary)
        k_rot = k_rot.expand(-1, self.heads, -1, -1)
        k = torch.cat((k_nope, k_rot), dim=-1)  # (B, H, S, nope + rotary)
        out = self.attend(q, k, v, mask, self.attention_dropout if self.training else 0.0)
        if self.recorder is not None:
            self.recorder(self.layer_index, q, k, v, out)
        return out

    def absorbed(
        self, q_nope: Tensor, q_rot: Tensor, latent: Tensor, k_rot: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attend to the latents themselves with one query (T = 1) per head: (B, H, 1, value)."""
        weight = self.kv_b_proj.weight.view(self.heads, -1, self.rank)  # (H, nope + value, R)
        to_key, to_value = weight.split((self.nope, self.value), dim=1)  # K and V
        q = torch.cat((q_nope @ to_key, q_rot), dim=-1)  # (B, H, 1, R + rotary)
        # `eager` divides by the square root of this longer size
        q = q * math.sqrt(q.shape[-1] / (self.nope + self.rotary))
        k = torch.cat((latent, k_rot), dim=-1)  # (B, 1, S, R + rotary)
        if mask is None:
            mask = torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool, device=k.device)
        # the H queries become the rows of one head
        mixed = eager(q.transpose(1, 2), k, latent, mask, 0.0).transpose(1, 2)  # (B, H, 1, R)
        if self.recorder is not None:
            self.recorder(self.layer_index, q, k, latent, mixed)
        return mixed @ to_value.mT  # (B, H, 1, value)

    def reset_parameters(self) -> None:
        initialize(self)
        nn.init.zeros_(self.o_proj.weight)  # after it was drawn: a seed keeps its meaning
