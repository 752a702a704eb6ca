"""Learned positions: a vector for every place in the text, added to the token's own, as in GPT-2.

The model knows no place that it was not trained on, so a longer text is refused. RoPE has no such end
(model/positions/rope.py).
Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; Gehring et al. 2017 (arXiv 1705.03122).
"""

from __future__ import annotations

from torch import Tensor, nn

from model.config import ModelConfig


class LearnedPositions(nn.Embedding):
    """One vector for each of max_position_embeddings places."""

    optimizer_group = part = "embedding"

    def __init__(self, config: ModelConfig):
        super().__init__(config.max_position_embeddings, config.hidden_size)

    def reset_parameters(self, std: float = 1.0) -> None:
        """Random vectors with numbers of this size: the tokens' own, so that neither hides the other."""
        nn.init.normal_(self.weight, std=std)

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:  # type: ignore[override]
        """Tokens x (B, T, hidden_size) at position_ids (B or 1, T) -> the same shape."""
        return x + super().forward(position_ids)

    def check(self, position_ids: Tensor) -> None:
        """Raises ValueError for a place that has no vector."""
        first, last = (int(place) for place in position_ids.aminmax())
        if first < 0 or last >= self.num_embeddings:
            raise ValueError(
                f"position_ids has {last if first >= 0 else first}, and this model has learned positions 0 to "
                f"{self.num_embeddings - 1} (max_position_embeddings)"
            )


class NoPositions(nn.Module):
    """Of a model whose tokens do not say where they stand: RoPE tells the heads, or nothing does."""

    def reset_parameters(self, std: float = 1.0) -> None:
        """Nothing to initialize."""

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """x as it is."""
        return x

    def check(self, position_ids: Tensor) -> None:
        """Every place will do."""


def make_positions(config: ModelConfig) -> LearnedPositions | NoPositions:
    """What is added to the tokens' vectors."""
    return LearnedPositions(config) if config.position_embedding == "learned" else NoPositions()
