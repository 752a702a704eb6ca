from typing import Any

from notebooks.broken import train
from train import loop


def break_it() -> None:
    """The learning rate is ten times as high as the config says."""
    factor = loop.lr_factor

    def ten_times(*given: Any) -> float:
        return 10 * factor(*given)

    loop.lr_factor = ten_times


if __name__ == "__main__":
    train(6, break_it)
