"""Fast attention: the kernels (kernels.py) and the list of them, with limits (choice.py)."""
