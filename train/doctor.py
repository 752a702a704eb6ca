"""Say what this machine can do: `python -m train.doctor [configs/x.yaml]`
(train/machine/doctor.py).
"""

from configs.command import exit_on_bad_input
from train.machine.doctor import main

if __name__ == "__main__":
    exit_on_bad_input(main)
