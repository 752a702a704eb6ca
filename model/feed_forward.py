"""The feed-forward part of a layer: what is done to every token by itself, after attention has mixed them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.linear import make_linear, zero_biases


class GeluNew(nn.Module):
    """x times the probability that a normal number is below x, nearly: by a tanh (Hendrycks & Gimpel 2016, 1606.08415).

    A model that is evaluated on a CPU computes it operation by operation, as transformers does, to the last bit.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training or x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.gelu(x, approximate="tanh")
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "silu": lambda: F.silu,
    "relu": lambda: F.relu,
    "gelu": lambda: F.gelu,
    "gelu_new": GeluNew,
    "gelu_pytorch_tanh": lambda: partial(F.gelu, approximate="tanh"),
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
        linear, bias = make_linear(config), config.mlp_bias
        self.gate_proj = linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.act = ACTIVATIONS[config.hidden_act]()

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
        linear, bias = make_linear(config), config.mlp_bias
        self.up_proj = linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.act = ACTIVATIONS[config.hidden_act]()

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
    zero_biases(*inner, output)
