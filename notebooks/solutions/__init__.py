"""The exercises of `python -m notebooks.check`, solved: the lines between the `solution` marks are the reader's."""
