from notebooks.broken import train


def break_it() -> None:
    """Break nothing, to compare the others with a healthy training."""


if __name__ == "__main__":
    train(0, break_it)
