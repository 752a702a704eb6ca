from typing import Any

from notebooks.broken import train
from train import loop


def break_it() -> None:
    """Make the learning rate ten times as high as in the config."""
    factor = loop.lr_factor

    def ten_times(*args: Any) -> float:
        return 10 * factor(*args)

    loop.lr_factor = ten_times


if __name__ == "__main__":
    train(6, break_it)
