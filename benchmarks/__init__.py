"""How fast is it here? Speed and memory, beside others."""

import configs.command  # noqa: F401  # first: from here on Ctrl-C ends a command in one line
