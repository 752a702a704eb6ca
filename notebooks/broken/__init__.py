"""The break-it lab: eight trainings, each with one fault. `python -m notebooks.broken 3` trains the third one.

notebooks/broken/README.md says how to play. 0 is the same training without a fault. A file breaks what `break_it`
names, in a few lines of its own; nothing in the product has a switch for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from configs.command import exit_on_bad_input
from train.config import RunConfig, load_run_config
from train.pretrain import run

PROMPTS = [
    "piffo nimmy Lemiza end mizz hoom vibby Pibuto piffo nimmy Lemiza",  # healthy: end mizz hoom vibby …
    "Once upon a time there was a fox named Tiko. Tiko was a very small fox. One day, Tiko went to the lake. "
    "There he met a frog named Lalal. Lalal had lost her red ball",
    "Vabelo past Darazi fire tired may Gubepu Lohuzu Vabelo past Darazi",  # healthy: fire tired may …
]
SETTINGS = ["train.processes=1", "eval.floor_documents=0", "eval.max_tokens=8192", "eval.final_max_tokens=8192"]
SETTINGS += ["eval.every=300", "eval.attention.early=[]", "eval.sample_tokens=40", "eval.temperature=0"]
SETTINGS += ["tracking.wandb=disabled"]


def config_of(number: int, *changes: str, config: str = "configs/small.yaml") -> RunConfig:
    """What the lab trains: the small config, which looks at the loss on new text now and then. changes: of its keys."""
    prompts = "[" + ", ".join(f'"{prompt}"' for prompt in PROMPTS) + "]"
    return load_run_config(config, [f"name=broken-{number}", *SETTINGS, f"eval.prompts={prompts}", *changes])


def train(number: int, break_it: Callable[[], None], *changes: str) -> None:
    """Break it, train, and end the program. More changes stand on the command line, such as train.max_steps=600."""

    def main() -> int:
        break_it()
        return run(config_of(number, *changes, *sys.argv[1:]), "train.pretrain")

    exit_on_bad_input(main)
