"""Continue a run from one of its steps, with one change: `python -m train.fork`
(train/run/fork.py).
"""

from configs.command import exit_on_bad_input
from train.run.fork import main

if __name__ == "__main__":
    exit_on_bad_input(main)
