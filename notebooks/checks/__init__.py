"""What an answer is compared with: a check for every exercise of `python -m notebooks.check`, and of notebook 10.

A check takes the reader's module, or function. It raises AssertionError with a sentence about what differs, or returns
a sentence about what the reader has now.
"""
