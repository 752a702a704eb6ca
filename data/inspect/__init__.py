"""Print the rows that training will see. The command is `__main__`."""

import sys

# After `python data/prepare.py`, an import of Python's `inspect` finds this file, which makes room
# for the real one.
if __name__ == "inspect":
    del sys.path[0], sys.modules["inspect"]
    import inspect  # noqa: F401
