"""The checks of the exercises: each compares an answer and explains the difference.

A check of `python -m notebooks.check` takes the reader's module. It raises AssertionError with a
sentence about the difference, or returns a sentence about the achievement. A notebook's check takes
a function instead, and is in the notebook.
"""
