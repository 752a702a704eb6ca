"""The feed-forward part: SwiGLU. 5 minutes.

Attention moves information between tokens. The feed-forward part then works on each token alone.
It holds two thirds of the weights of a usual layer.

    gate = gate_proj(x)          (B, T, I)     I = intermediate_size, about 8/3 C
    up   = up_proj(x)            (B, T, I)
    out  = down_proj(silu(gate) · up)          (B, T, C)

    silu(z) = z · sigmoid(z)     silu(2) = 2 · 0.881 = 1.762     silu(-2) = -0.238

silu lets large numbers through and stops small ones. So `gate` decides how much of `up` passes.
Without it the three matrices would be one matrix: a product of matrices is a matrix.

The same in Headlight: model/feed_forward.py. SwiGLU: Shazeer 2020, arXiv 2002.05202.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        # <solution>
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        # </solution>
