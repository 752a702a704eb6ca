"""Nine notebooks, each with a question, a figure and a check; `start` is what they begin with."""
