from itertools import cycle

from torch import Tensor

from model import attention
from notebooks.broken import train


def break_it() -> None:
    """Turn queries one way and keys the other.

    A score then depends on the sum of two positions, not on their distance.
    """
    rotate = attention.apply_rotary
    signs = cycle((1, -1))  # the model calls it for q, then for k

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(x, cos, next(signs) * sin)

    attention.apply_rotary = turned


if __name__ == "__main__":
    train(7, break_it)
