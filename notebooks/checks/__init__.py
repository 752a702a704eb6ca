"""The checks of the exercises: each compares an answer and explains the difference.

A check of `python -m notebooks.check` takes the reader's module. It raises AssertionError with a
sentence about the difference, or returns a sentence about the success. The checks of a notebook are
in the notebook, and take a function.
"""
