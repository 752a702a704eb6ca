"""Print the rows that training will see. The command is `__main__`."""

import sys

# `python data/prepare.py` puts this folder before Python's own modules, so an import of Python's
# `inspect` finds this file. It makes room for the real one.
if __name__ == "inspect":
    del sys.path[0], sys.modules["inspect"]
    import inspect  # noqa: F401
