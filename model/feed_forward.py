"""The feed-forward part of a layer. It changes each token alone; attention mixed them before."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.norm import initialize

# GELU: x times the probability that a normal number is below x (Hendrycks & Gimpel 2016, arXiv
# 1606.08415). GPT-2 approximates it by a tanh; transformers has two names for that.
GELU_BY_TANH = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": GELU_BY_TANH,
    "gelu_pytorch_tanh": GELU_BY_TANH,
}


class FeedForward(nn.Module):
    """A network of two layers, for one token at a time: (B, T, hidden_size) in and out.

    gated   down( act(gate(x)) * up(x) ): with silu SwiGLU, with gelu GEGLU (arXiv 2002.05202)
    plain   down( act(up(x)) ), as in GPT-2
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        hidden = config.hidden_size
        inner = config.intermediate_size or 0
        bias = config.mlp_bias
        self.gated = config.gated_mlp
        self.act = ACTIVATIONS[config.hidden_act]
        if self.gated:
            self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            # the gate decides how much of each inner number passes: (B, T, inner)
            return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        # without an activation, the two matrices would be no more than one
        return self.down_proj(self.act(self.up_proj(x)))

    def reset_parameters(self) -> None:
        initialize(self, output="down_proj")
