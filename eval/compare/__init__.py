"""Runs beside each other: `python -m eval.compare runs/mha runs/gqa runs/mqa`."""
