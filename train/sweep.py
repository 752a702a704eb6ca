"""Train a config with several values of a key and compare: `python -m train.sweep`
(train/run/sweep.py).
"""

from configs.command import exit_on_bad_input
from train.run.sweep import main

if __name__ == "__main__":
    exit_on_bad_input(main)
