"""How does it learn? The loop, and everything that only training needs."""

import configs.command  # noqa: F401  # first: from here on Ctrl-C ends a command in one line
