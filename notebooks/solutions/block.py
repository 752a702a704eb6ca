"""A block: one layer of a transformer, made of your parts. 30 minutes.

Your functions now become a layer. `SelfAttention` turns the stream into queries, keys and values:

    q_proj(x)  (B, T, H · D)     view  (B, T, H, D)     q_norm     transpose  (B, H, T, D)
    k_proj(x)  (B, T, H_kv · D)  view  (B, T, H_kv, D)  k_norm     transpose  (B, H_kv, T, D)
    v_proj(x)  like k, without a norm

Then, in this order:

    1. RoPE turns q and k (`half_split`)
    2. a cache, if there is one, appends k and v, and returns all of them
    3. key/value heads are repeated for their query heads (`by_expand`)
    4. `attention` reads; the heads are joined again, (B, T, H · D); o_proj mixes them, (B, T, C)

    view then transpose, not view alone: (B, T, H · D) holds the heads of a token side by side, and
    .view(B, H, T, D) would mix tokens with heads. The shapes would agree, and nothing would learn.

A `Block` adds two parts to the stream. Each reads a normed copy; the stream itself is never normed:

    x = x + self_attn(input_layernorm(x))
    x = x + mlp(post_attention_layernorm(x))

So the gradient of the loss reaches the first layer through the sum, unchanged. Many old models
normed the sum ("post-norm"); those train only with a careful warmup.

`q_norm` and `k_norm` are None in models without QK-norm, such as SmolLM2.
The names of the parts are those of Hugging Face's files: trained weights fit into your layer.
The same in Headlight: model/layer.py and model/attention.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from notebooks.solutions.attention import attention
from notebooks.solutions.kv_cache import KVCache
from notebooks.solutions.mlp import MLP
from notebooks.solutions.repeat_kv import by_expand
from notebooks.solutions.rmsnorm import RMSNorm
from notebooks.solutions.rope import half_split


@dataclass(frozen=True)
class Config:
    """Sizes of a model, with the names of Hugging Face's config.json."""

    vocab_size: int = 128  # V
    hidden_size: int = 128  # C
    intermediate_size: int = 352  # I
    num_hidden_layers: int = 2
    num_attention_heads: int = 4  # H
    num_key_value_heads: int = 4  # H_kv: H is MHA, 1 is MQA, between them GQA
    head_dim: int = 32  # D
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    qk_norm: bool = True
    tie_word_embeddings: bool = False


class SelfAttention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        C = config.hidden_size
        D = config.head_dim
        self.head_dim = D
        self.q_proj = nn.Linear(C, config.num_attention_heads * D, bias=False)
        self.k_proj = nn.Linear(C, config.num_key_value_heads * D, bias=False)
        self.v_proj = nn.Linear(C, config.num_key_value_heads * D, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * D, C, bias=False)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(D, config.rms_norm_eps, gain=1.5)
            self.k_norm = RMSNorm(D, config.rms_norm_eps, gain=1.5)

    def forward(
        self, x: Tensor, angle: Tensor, mask: Tensor, cache: KVCache | None = None
    ) -> Tensor:
        """x (B, T, C), angle (T, D/2), mask (1, 1, T, S) -> (B, T, C). S = T without a cache."""
        # <solution>
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, -1, self.head_dim)
        k = self.k_proj(x).view(B, T, -1, self.head_dim)
        v = self.v_proj(x).view(B, T, -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        q = half_split(q.transpose(1, 2), angle)  # (B, H, T, D)
        k = half_split(k.transpose(1, 2), angle)  # (B, H_kv, T, D)
        v = v.transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, H_kv, S, D)
        groups = q.shape[1] // k.shape[1]
        out = attention(q, by_expand(k, groups), by_expand(v, groups), mask)  # (B, H, T, D)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))
        # </solution>


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(
        self, x: Tensor, angle: Tensor, mask: Tensor, cache: KVCache | None = None
    ) -> Tensor:
        """Return the stream after both parts: (B, T, C) -> (B, T, C)."""
        # <solution>
        x = x + self.self_attn(self.input_layernorm(x), angle, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))
        # </solution>
