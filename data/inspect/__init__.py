"""Which rows will training see? The command is `__main__`.

`python data/prepare.py` puts this folder before Python's own modules, so what asks for Python's `inspect` comes here.
"""

import sys

if __name__ == "inspect":
    del sys.path[0], sys.modules["inspect"]
    import inspect  # noqa: F401  # it takes the place of this module
