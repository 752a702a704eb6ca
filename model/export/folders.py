"""A model as a directory that transformers opens: for the Hub, or adapters and their base as one."""

from __future__ import annotations

import shutil
from pathlib import Path

from configs.checkpoints import ADAPTER, CARD, check_files, is_adapter
from configs.command import InputError
from model.new_directory import TOKENIZER_FILES, new_directory, read_tokenizer_files, write_whole

CONFIGS = ("config.json", "generation_config.json", ADAPTER)
INDEX = "model.safetensors.index.json"


def write_hub_folder(directory: Path, out: Path) -> str:
    """Copy a checkpoint without the state of its training. Raises InputError; DamagedFile if a file has changed."""
    names = [*CONFIGS, INDEX, *TOKENIZER_FILES, *(file.name for file in sorted(directory.glob("*.safetensors")))]
    there = [name for name in names if (directory / name).is_file()]
    check_files(directory, *there)
    with new_directory(out) as folder:
        for name in [*there, *([CARD] if (directory / CARD).is_file() else [])]:
            shutil.copyfile(directory / name, folder / name)
    return f"{out}: choose a license in its README.md, then: hf upload NAME {out}"


def write_merged(directory: Path, out: Path) -> str:
    """Write adapters and their base as one model. Raises InputError."""
    from model.checkpoint_format import load

    if not is_adapter(directory):
        raise InputError(f"{directory}: holds a whole model already, not adapters")
    copied = read_tokenizer_files(directory)
    write_whole(load(directory), copied, out)
    return f"{out}: a whole model, which transformers loads"
