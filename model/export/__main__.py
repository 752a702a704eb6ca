"""Write a model as other programs want it: `python -m model.export runs/demo --to gguf --out demo-gguf`

    gguf         model.gguf for llama.cpp and all that is built on it, and a Modelfile for Ollama
    hub-folder   what belongs on the Hugging Face Hub: the checkpoint without the state of its training
    merged       one whole model of adapters (LoRA) and their base

A checkpoint is a Hugging Face model directory as it is, so transformers and vLLM need none of these.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from configs.command import InputError, exit_on_bad_input
from configs.files import read_checkpoint
from model.export.folders import write_hub_folder, write_merged
from model.export.gguf_file import write_gguf

# each: (checkpoint directory, out) -> what to print
TARGETS: dict[str, Callable[[Path, Path], str]] = {
    "gguf": write_gguf,
    "hub-folder": write_hub_folder,
    "merged": write_merged,
}


def export(source: Path, target: str, out: Path) -> str:
    """Write the model of `source`, a run (its newest checkpoint) or a model directory, and say what was written.

    `out` appears whole or not at all. Raises InputError, also if something is there already.
    """
    if os.path.lexists(out):
        raise InputError(f"--out: {out} exists: choose another name")
    try:
        return read_checkpoint(source, lambda directory: TARGETS[target](directory, out))
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a model as other programs want it.")
    parser.add_argument("source", type=Path, help="a run (its newest checkpoint) or a model directory")
    parser.add_argument("--to", choices=TARGETS, required=True, help="for llama.cpp and Ollama | the Hub | one model")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="the directory to write; must be new")
    given = parser.parse_args()
    print(export(given.source, given.to, given.out))
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
