"""Say what a run will cost: `python -m train.budget configs/x.yaml` (train/machine/budget.py)."""

from configs.command import exit_on_bad_input
from train.machine.budget import main

if __name__ == "__main__":
    exit_on_bad_input(main)
