"""The feed-forward part of a layer: what is done to every token by itself, after attention has mixed them."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up: what a dense layer and an expert do between their products."""
    return F.silu(gate) * up


class FeedForward(nn.Module):
    """SwiGLU, a gated two-layer network on every token by itself: down( silu(gate(x)) * up(x) ), (B, T, hidden_size).

    Shazeer 2020 (arXiv 2002.05202).
    """

    optimizer_group = "matrix"
    part = "feed_forward"

    def __init__(self, config: ModelConfig):
        super().__init__()
        assert config.intermediate_size is not None
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))

    def reset_parameters(self) -> None:
        """Random gate and up; a zero output projection, so that the layer adds nothing at first."""
        for projection in (self.gate_proj, self.up_proj):
            nn.init.normal_(projection.weight, std=1 / math.sqrt(projection.in_features))
        nn.init.zeros_(self.down_proj.weight)
