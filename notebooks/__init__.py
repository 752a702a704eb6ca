"""Seven notebooks, each with a question, a figure and a check; `start` is what they begin with."""

import configs.command  # noqa: F401  # first: from here on Ctrl-C ends a command in one line
