"""Learned positions: a vector for every place in the text, added to the token's own, as in GPT-2.

The model knows no place that it was not trained on, so a longer text is refused. RoPE (model/rope.py) has no such end.
Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; Gehring et al. 2017 (arXiv 1705.03122).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import ModelConfig


class LearnedPositions(nn.Embedding):
    """One vector for each of max_position_embeddings places."""

    optimizer_group = part = "embedding"

    def __init__(self, config: ModelConfig):
        super().__init__(config.max_position_embeddings, config.hidden_size)

    @torch.no_grad()
    def reset_parameters(self, std: float = 1.0) -> None:
        """Random vectors, as long as those of the tokens."""
        self.weight.normal_(0.0, std)

    def forward(self, position_ids: Tensor) -> Tensor:
        """position_ids (B or 1, T) -> (B or 1, T, hidden_size)."""
        return super().forward(position_ids)
