"""What an answer is compared with, and what is said of it: `python -m notebooks.check` has a check for every exercise.

A check takes the reader's module. It raises AssertionError with a sentence about what differs, or returns a sentence
about what the reader has now. A notebook's check takes a function instead, and stands in the notebook.
"""
