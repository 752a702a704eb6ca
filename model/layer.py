"""One layer of the network: attention, then the feed-forward part."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor, nn

from model.attention import Attention
from model.config import ModelConfig
from model.feed_forward import FeedForward
from model.kv_cache import KVCache
from model.masks import Mask
from model.norm import make_norm

if TYPE_CHECKING:  # loaded only by a model that needs them
    from model.variants.experts import MixtureOfExperts
    from model.variants.latent_attention import LatentAttention
    from model.variants.linear_attention import LinearAttention


class DecoderLayer(nn.Module):
    """Attention, then the feed-forward part, each added to the stream (B, T, hidden_size).

    norm_position   before   x + f(norm(x))    the stream is never normalised (arXiv 2002.04745)
                    after    x + norm(f(x))    the sum has a known size (OLMo 2, arXiv 2501.00656)
    """

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        self.norm_after = config.norm_position == "after"
        self.has_experts = config.has_experts[layer_index]
        # "after": f is zero at first, and there RMSNorm multiplies gradients by gain / sqrt(eps).
        # With a gain of 1, the first gradient was 240 times too long.
        gain = math.sqrt(config.rms_norm_eps) if self.norm_after else 1.0
        if not self.norm_after:
            self.input_layernorm = make_norm(config)
        self.self_attn: Attention | LatentAttention | LinearAttention
        if config.is_linear[layer_index]:
            from model.variants.linear_attention import LinearAttention

            self.self_attn = LinearAttention(config, layer_index)
        elif config.attention == "mla":
            from model.variants.latent_attention import LatentAttention

            self.self_attn = LatentAttention(config, layer_index)
        else:
            self.self_attn = Attention(config, layer_index)
        # The name is transformers'. With norm_position "before", this norm is in front of the
        # feed-forward part.
        self.post_attention_layernorm = make_norm(config, gain)
        self.mlp: FeedForward | MixtureOfExperts
        if self.has_experts:
            from model.variants.experts import MixtureOfExperts

            self.mlp = MixtureOfExperts(config)
        else:
            self.mlp = FeedForward(config)
        if self.norm_after:
            self.post_feedforward_layernorm = make_norm(config, gain)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        x: Tensor,  # (B, T, hidden_size)
        cos: Tensor,  # (B, 1, T, rotary size), as sin
        sin: Tensor,
        mask: Mask,
        kv_cache: KVCache | None,
        real: Tensor | None = None,  # (B, T): the tokens that are not padding; None: all
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the stream, and the auxiliary losses of the feed-forward part."""
        # x is the residual stream: each part reads it and adds to it, all (B, T, hidden_size)
        out = x if self.norm_after else self.input_layernorm(x)
        out = self.self_attn(out, cos, sin, mask, kv_cache)
        if self.norm_after:
            out = self.post_attention_layernorm(out)
        x = x + self.dropout(out)

        out = x if self.norm_after else self.post_attention_layernorm(x)
        out = self.mlp(out, real) if self.has_experts else self.mlp(out)
        out, losses = out if isinstance(out, tuple) else (out, {})
        if self.norm_after:
            out = self.post_feedforward_layernorm(out)
        return x + self.dropout(out), losses
