from itertools import cycle

from torch import Tensor

from model import attention
from notebooks.broken import train


def break_it() -> None:
    """Queries turn one way and keys the other: the sign in one of the two halves is wrong for one of them. A score then
    depends on the sum of two positions, not on their distance."""
    rotate, signs = attention.apply_rotary, cycle((1, -1))  # called for q, then for k

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(x, cos, next(signs) * sin)

    attention.apply_rotary = turned


if __name__ == "__main__":
    train(7, break_it)
