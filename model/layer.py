"""One layer: attention, then the feed-forward part, each added to the stream, and where they are normalised.

before   x + f(norm(x))    the stream is never touched (Xiong et al. 2020, arXiv 2002.04745)
after    x + norm(f(x))    what is added has a known size (OLMo 2: Walsh et al. 2025, 2501.00656)
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from model.attention import Attention
from model.config import ModelConfig
from model.experts import MixtureOfExperts, make_feed_forward
from model.kv_cache import KVCache
from model.latent_attention import LatentAttention
from model.masks import Mask
from model.norm import make_norm

ATTENTION: dict[str, type[Attention] | type[LatentAttention]] = {"heads": Attention, "mla": LatentAttention}
Stream = tuple[Tensor, dict[str, Tensor]]  # (B, T, hidden_size), and auxiliary losses by name


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)): (B, T, hidden_size) both ways."""

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        self.input_layernorm = make_norm(config, config.hidden_size)
        self.self_attn = ATTENTION[config.attention](config, layer_index)
        self.post_attention_layernorm = make_norm(config, config.hidden_size)
        self.mlp = make_feed_forward(config, layer_index)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Mask, kv_cache: KVCache | None, real: Tensor | None = None
    ) -> Stream:
        """-> the stream, and the auxiliary losses of the feed-forward layer, if it has any."""
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin, mask, kv_cache))
        out, auxiliary = feed_forward(self.mlp, self.post_attention_layernorm(x), real)
        return x + self.dropout(out), auxiliary

    def reset_parameters(self) -> None:
        """Initialize every part again."""
        for part in (self.input_layernorm, self.self_attn, self.post_attention_layernorm, self.mlp):
            part.reset_parameters()


class NormAfterLayer(nn.Module):
    """x + norm(attention(x)), then x + norm(feed_forward(x)): (B, T, hidden_size) both ways.

    What comes out is zero at first. There RMSNorm multiplies by gain / sqrt(eps), and gradients with it: with a gain of
    1 the first gradient was 240 times too long. At a gain of sqrt(eps) it is the gradient of a layer without the norm.
    """

    def __init__(self, config: ModelConfig, layer_index: int):
        super().__init__()
        gain = math.sqrt(config.rms_norm_eps)
        self.self_attn = ATTENTION[config.attention](config, layer_index)
        self.post_attention_layernorm = make_norm(config, config.hidden_size, gain)
        self.mlp = make_feed_forward(config, layer_index)
        self.post_feedforward_layernorm = make_norm(config, config.hidden_size, gain)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Mask, kv_cache: KVCache | None, real: Tensor | None = None
    ) -> Stream:
        """-> the stream, and the auxiliary losses of the feed-forward layer, if it has any."""
        x = x + self.dropout(self.post_attention_layernorm(self.self_attn(x, cos, sin, mask, kv_cache)))
        out, auxiliary = feed_forward(self.mlp, x, real)
        return x + self.dropout(self.post_feedforward_layernorm(out)), auxiliary

    def reset_parameters(self) -> None:
        """Initialize every part again."""
        for part in (self.self_attn, self.post_attention_layernorm, self.mlp, self.post_feedforward_layernorm):
            part.reset_parameters()


LAYERS: dict[str, type[nn.Module]] = {"before": DecoderLayer, "after": NormAfterLayer}  # by norm_position


def feed_forward(layer: nn.Module, x: Tensor, real: Tensor | None) -> Stream:
    """What a feed-forward layer returns, its output alone or with auxiliary losses. real (B, T): the tokens that
    are not padding, which experts ask for; None: all."""
    out = layer(x, real) if isinstance(layer, MixtureOfExperts) else layer(x)
    return out if isinstance(out, tuple) else (out, {})
