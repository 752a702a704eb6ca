"""The break-it lab: eight trainings, each with one fault. `python -m notebooks.broken 3` runs one.

notebooks/broken/README.md has the rules. Training 0 has no fault. The function `break_it` of a file
adds the fault; the library has no switch for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from configs.command import exit_on_bad_input
from train.config import RunConfig, load_run_config
from train.pretrain import run

PROMPTS = [
    # A healthy model writes: end mizz hoom vibby …
    "piffo nimmy Lemiza end mizz hoom vibby Pibuto piffo nimmy Lemiza",
    "Once upon a time there was a fox named Tiko. Tiko was a very small fox. One day, "
    "Tiko went to the lake. There he met a frog named Lalal. Lalal had lost her red ball",
    # A healthy model writes: fire tired may …
    "Vabelo past Darazi fire tired may Gubepu Lohuzu Vabelo past Darazi",
]
SETTINGS = """train.processes=1 eval.floor_documents=0 eval.max_tokens=8192
    eval.final_max_tokens=8192 eval.every=300 eval.attention.early=[] eval.sample_tokens=40
    eval.temperature=0 tracking.wandb=disabled""".split()


def config_of(number: int, *changes: str, config: str = "configs/small.yaml") -> RunConfig:
    """Return the small config with the lab's settings and more changes."""
    prompts = "[" + ", ".join(f'"{prompt}"' for prompt in PROMPTS) + "]"
    own = [f"name=broken-{number}", f"eval.prompts={prompts}"]
    return load_run_config(config, [*own, *SETTINGS, *changes])


def train(number: int, break_it: Callable[[], None], *changes: str) -> None:
    """Add the fault, train, and end the program. The command line may change more keys."""

    def main() -> int:
        break_it()
        return run(config_of(number, *changes, *sys.argv[1:]), "train.pretrain")

    exit_on_bad_input(main)
