from notebooks.broken import train


def break_it() -> None:
    """Nothing: this is what the others look like when they are well."""


if __name__ == "__main__":
    train(0, break_it)
