"""How does a command open a model? One function for all of them: `lm, tokenizer = open_model("runs/demo")`.

What a model can be opened with (a device, a data type; later adapters and quantised weights) is decided here alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from configs.checkpoints import read_checkpoint
from configs.command import InputError

if TYPE_CHECKING:  # torch takes seconds to import, and --help should not
    import torch

    from data.tokenizer import Tokenizer
    from model import LanguageModel


def open_model(
    path: str | Path, device: str = "auto", dtype: torch.dtype | None = None
) -> tuple[LanguageModel, Tokenizer]:
    """The model, in evaluation mode, and the tokenizer of a run (its newest checkpoint) or a checkpoint directory.

    device: see `model.backends.choice.choose_device`. dtype: of the weights; default: float32, as they are saved.
    Raises InputError for a device that is not available or too small, and for a directory that cannot be loaded.
    """
    return open_checkpoint(path, device, dtype)[:2]


def open_checkpoint(
    path: str | Path, device: str = "auto", dtype: torch.dtype | None = None
) -> tuple[LanguageModel, Tokenizer, Path]:
    """The same, and the checkpoint directory that all of it was read from: a run that trains has soon another one."""
    import torch

    from data.tokenizer import load_tokenizer
    from model import load
    from model.backends.choice import choose_device

    def read(directory: Path) -> tuple[LanguageModel, Tokenizer, Path]:
        return load(directory).to(device=place, dtype=dtype), load_tokenizer(directory), directory

    try:
        place = choose_device(device)
    except ValueError as error:
        raise InputError(f"--device {error}") from None
    try:
        lm, tokenizer, directory = read_checkpoint(path, read)
    except torch.OutOfMemoryError:
        raise InputError(f"{path}: the model does not fit into the memory of {place}: use --device cpu") from None
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None
    if tokenizer.vocab_size > lm.lm_head.out_features:
        sizes = f"{tokenizer.vocab_size:,} ids, the model {lm.lm_head.out_features:,}"
        raise InputError(f"{path}: the tokenizer has {sizes}: they do not belong together")
    return lm, tokenizer, directory


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """`--device` of a command line."""
    parser.add_argument(
        "--device",
        default="auto",
        help="cpu, cuda, cuda:1 or mps; default: auto, a GPU if there is one",
    )
