"""Write a model as other programs want it: `python -m model.export runs/demo --to gguf --out demo-gguf`

    gguf         model.gguf for llama.cpp and all that is built on it, and a Modelfile for Ollama
    hub-folder   what belongs on the Hugging Face Hub: the checkpoint without the state of its training
    merged       one whole model of adapters (LoRA) and their base

A checkpoint is a Hugging Face model directory as it is, so transformers and vLLM need none of these.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from configs.command import InputError, exit_on_bad_input
from configs.files import (
    ADAPTER,
    CARD,
    STATE,
    TRAINING,
    is_adapter,
    read_checkpoint,
    read_json,
    read_text,
)
from configs.text import fenced
from model.card import Progress, model_card, published
from model.checkpoint import TOKENIZER_FILES, load, new_directory, read_tokenizer_files, save_new
from model.gguf_file import write_gguf

FILES = ("config.json", "generation_config.json", ADAPTER, "model.safetensors.index.json", *TOKENIZER_FILES)
PICTURE = re.compile(r"^!\[([^\[\]\n]*)\]\(([\w\-]+(?:/[\w\-]+)*\.(?:png|gif))\)$", re.MULTILINE)


class _Result(BaseModel):
    """What is read of a finished run's result.json."""

    step: int
    summary: list[str] = []
    sample: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a model as other programs want it.")
    parser.add_argument("source", type=Path, help="a run (its newest checkpoint) or a model directory")
    parser.add_argument("--to", choices=TARGETS, required=True, help="for llama.cpp and Ollama | the Hub | one model")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="the directory to write; must be new")
    given = parser.parse_args()
    print(export(given.source, given.to, given.out))
    return 0


def export(source: Path, target: str, out: Path) -> str:
    """Write the model of `source`, a run (its newest checkpoint) or a model directory, and say what was written.

    `out` appears whole or not at all. Raises InputError, also if something is there already.
    """
    if os.path.lexists(out):
        raise InputError(f"--out: {out} exists: choose another name")
    return read_checkpoint(source, lambda directory: TARGETS[target](directory, out))


def write_hub_folder(directory: Path, out: Path) -> str:
    """Copy a checkpoint without the state of its training, with its card and what the run's report shows."""
    names = [*FILES, *(file.name for file in sorted(directory.glob("*.safetensors")))]
    there = [name for name in names if (directory / name).is_file()]
    with new_directory(out) as folder:
        for name in there:
            shutil.copyfile(directory / name, folder / name)
        figures = _copy_figures(directory.resolve(), folder)
        if (directory / CARD).is_file():
            (folder / CARD).write_text(published(read_text(directory / CARD), figures), encoding="utf-8")
    return f"{out}: choose a license in its {CARD}, then: hf upload NAME {out}"


def _copy_figures(directory: Path, folder: Path) -> str:
    """What a finished run says of its last checkpoint, in Markdown; the pictures of its report go along.

    "" for another checkpoint, and for a directory outside a run.
    """
    run = directory.parents[1]
    if directory.parent.name != "checkpoints" or not (run / "result.json").is_file():
        return ""
    result: _Result = read_json(run / "result.json", _Result)
    if directory.name != f"step_{result.step:08d}":
        return ""
    lines = ["## Figures", "", fenced("\n".join(result.summary)), ""]
    if result.sample:
        lines += ["A sample, as the model wrote it:", "", fenced(result.sample), ""]
    report = read_text(run / "report.md") if (run / "report.md").is_file() else ""
    for title, path in PICTURE.findall(report):
        if (run / path).is_file():
            (folder / "pictures").mkdir(exist_ok=True)
            shutil.copyfile(run / path, folder / "pictures" / Path(path).name)
            lines += [f"![{title}](pictures/{Path(path).name})", ""]
    return "\n".join(lines)


def write_merged(directory: Path, out: Path) -> str:
    """Write adapters and their base as one model, with a card of its own."""
    if not is_adapter(directory):
        raise InputError(f"{directory}: holds a whole model already, not adapters")
    copied, lm, run = read_tokenizer_files(directory), load(directory), directory.resolve()
    name = run.parents[1].name if run.parent.name == "checkpoints" else run.name
    state = directory / TRAINING / STATE
    copied[CARD] = model_card(name, lm, read_json(state, Progress) if state.is_file() else None).encode()
    save_new(lm, copied, out)
    return f"{out}: a whole model, which transformers loads"


# each: (checkpoint directory, out) -> what to print
TARGETS: dict[str, Callable[[Path, Path], str]] = {
    "gguf": write_gguf,
    "hub-folder": write_hub_folder,
    "merged": write_merged,
}

if __name__ == "__main__":
    exit_on_bad_input(main)
