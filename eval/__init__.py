"""What does it know? Look at what a model learned; this room reads models and data and changes neither."""

import configs.command  # noqa: F401  # first: from here on Ctrl-C ends a command in one line
