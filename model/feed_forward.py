"""The feed-forward part of a layer: what is done to every token by itself, after attention has mixed them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig

# GELU: x times the probability that a normal number is below x (Hendrycks & Gimpel 2016, arXiv 1606.08415). GPT-2 has
# the approximation by a tanh, under two names.
GELU_BY_TANH = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": GELU_BY_TANH,
    "gelu_pytorch_tanh": GELU_BY_TANH,
}


class FeedForward(nn.Module):
    """A gated two-layer network on every token by itself: down( act(gate(x)) * up(x) ), (B, T, hidden_size).

    With silu it is SwiGLU, with gelu GEGLU. Shazeer 2020 (arXiv 2002.05202).
    """

    optimizer_group = "matrix"
    part = "feed_forward"

    def __init__(self, config: ModelConfig):
        super().__init__()
        assert config.intermediate_size is not None
        bias = config.mlp_bias
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))

    def reset_parameters(self) -> None:
        """Random gate and up; a zero output projection, so that the layer adds nothing at first; zero biases."""
        _reset(self.gate_proj, self.up_proj, output=self.down_proj)


class PlainFeedForward(nn.Module):
    """A two-layer network on every token by itself: down( act(up(x)) ), as in GPT-2; (B, T, hidden_size)."""

    optimizer_group = "matrix"
    part = "feed_forward"

    def __init__(self, config: ModelConfig):
        super().__init__()
        assert config.intermediate_size is not None
        bias = config.mlp_bias
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))

    def reset_parameters(self) -> None:
        """As in FeedForward."""
        _reset(self.up_proj, output=self.down_proj)


def make_dense(config: ModelConfig) -> FeedForward | PlainFeedForward:
    """The feed-forward part of a layer that has no experts."""
    return FeedForward(config) if config.gated_mlp else PlainFeedForward(config)


def _reset(*inner: nn.Linear, output: nn.Linear) -> None:
    for projection in inner:
        nn.init.normal_(projection.weight, std=1 / math.sqrt(projection.in_features))
    nn.init.zeros_(output.weight)
    for projection in (*inner, output):
        if projection.bias is not None:
            nn.init.zeros_(projection.bias)
