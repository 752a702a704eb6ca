"""Write a model for other programs: `python -m model.export runs/demo --to gguf --out demo-gguf`

    gguf         model.gguf for llama.cpp and programs with it, and a Modelfile for Ollama
    hub-folder   a checkpoint without its training state, for the Hugging Face Hub
    merged       one whole model, made of adapters (LoRA) and their base

A checkpoint is a Hugging Face model directory, so transformers and vLLM need none of these.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from configs.command import InputError, command_parser, exit_on_bad_input
from configs.files import CARD, STATE, TRAINING, is_adapter, read_checkpoint, read_json
from model.files.card import model_card
from model.files.checkpoint import copy_tokenizer, load, new_directory, run_name, save
from model.files.gguf import write_gguf

FORMATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def write_hub_folder(directory: Path, out: Path, dtype: str | None) -> str:
    if dtype is not None and is_adapter(directory):
        raise InputError(f"--dtype: {directory} holds adapters: merge them first (--to merged)")
    with new_directory(out) as folder:
        if dtype is not None:
            # Only weights and config depend on the dtype. The other files are copied.
            save(load(directory).to(FORMATS[dtype]), folder)
        for file in filter(Path.is_file, directory.iterdir()):  # not the folder `training`
            is_weights = re.search(r"^config\.json$|\.safetensors", file.name)
            if dtype is None or not is_weights:
                shutil.copyfile(file, folder / file.name)
    return f"{out}: choose a license in its {CARD}, then: hf upload NAME {out}"


def write_merged(directory: Path, out: Path, dtype: str | None) -> str:
    if not is_adapter(directory):
        raise InputError(f"{directory}: holds a whole model already, not adapters")
    lm = load(directory).to(FORMATS[dtype or "f32"])
    state = directory / TRAINING / STATE
    with new_directory(out) as folder:
        save(lm, folder)
        copy_tokenizer(directory, folder)
        card = model_card(run_name(directory), lm, read_json(state) if state.is_file() else {})
        (folder / CARD).write_text(card, encoding="utf-8")
    return f"{out}: a whole model, which transformers loads"


# Each takes the checkpoint's directory, `out` and dtype, and returns what to print.
TARGETS: dict[str, Callable[[Path, Path, str | None], str]] = {
    "gguf": write_gguf,
    "hub-folder": write_hub_folder,
    "merged": write_merged,
}


def export(source: Path, target: str, out: Path, dtype: str | None = None) -> str:
    """Write the model of a run (its newest checkpoint) or a model directory; return what to print.

    `out` must be new, and appears complete or not at all. Raises InputError.
    """
    # llama.cpp has types of its own, such as q8_0, which no other target can read
    if dtype not in (None, *FORMATS) and target != "gguf":
        raise InputError(f"--dtype {dtype}: is for --to gguf only: use {', '.join(FORMATS)}")
    return read_checkpoint(source, lambda directory: TARGETS[target](directory, out, dtype))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument(
        "source", type=Path, help="a run (its newest checkpoint) or a model directory"
    )
    text = "for llama.cpp and Ollama | the Hub | one model"
    parser.add_argument("--to", choices=TARGETS, required=True, help=text)
    text = "the directory to write; must be new"
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help=text)
    text = "dtype of the weights; default: as saved, gguf: f32"
    parser.add_argument("--dtype", choices=[*FORMATS, "q8_0"], help=text)
    args = parser.parse_args()
    print(export(args.source, args.to, args.out, args.dtype))


if __name__ == "__main__":
    exit_on_bad_input(main)
