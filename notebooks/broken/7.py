from typing import Any

from torch import Tensor

from model.rope import RotaryEmbedding
from notebooks.broken import train


def break_it() -> None:
    """The halves are exchanged without the minus: (a cos + b sin, b cos + a sin) is no rotation."""
    forward = RotaryEmbedding.forward

    def without_minus(self: RotaryEmbedding, *given: Any) -> tuple[Tensor, Tensor]:
        cos, sin = forward(self, *given)
        half = sin.shape[-1] // 2
        sin[..., :half] *= -1  # RotaryEmbedding negates it here, for `apply_rotary`
        return cos, sin

    RotaryEmbedding.forward = without_minus  # type: ignore[method-assign]


if __name__ == "__main__":
    train(7, break_it)
