"""Solutions of `python -m notebooks.check`. The reader writes the lines between the marks."""
