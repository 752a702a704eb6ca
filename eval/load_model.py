"""How does a command open a model? One function for all of them: `lm, tokenizer = open_model("runs/demo")`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from configs.command import InputError
from configs.files import checkpoint_directory, read_checkpoint
from configs.loader import load_config, validate
from data.chat_template import CannotRender
from data.config import DataConfig
from data.tokenizer import Tokenizer, load_tokenizer
from model import LanguageModel, load
from model.backends.choice import choose_device


def open_model(
    path: str | Path,
    device: str = "auto",
    dtype: torch.dtype | None = None,
    quantise: str | None = None,
) -> tuple[LanguageModel, Tokenizer]:
    """The model, in evaluation mode, and the tokenizer of a run (its newest checkpoint) or a checkpoint directory.

    device: see `model.backends.choice.choose_device`. dtype: of the weights; default: float32, as they are saved.
    quantise: int8 or int4 weights (model/variants/quantised.py), which can be read and not trained. Raises InputError.
    """
    return open_checkpoint(path, device, dtype, quantise)[:2]


def open_checkpoint(
    path: str | Path,
    device: str = "auto",
    dtype: torch.dtype | None = None,
    quantise: str | None = None,
) -> tuple[LanguageModel, Tokenizer, Path]:
    """The same, and the checkpoint directory that all of it was read from: a run that trains has soon another one."""
    place = choose_device(device)
    try:
        lm, tokenizer, directory = read_checkpoint(
            path, lambda at: (load(at).to(place, dtype), load_tokenizer(at), at)
        )
    except torch.OutOfMemoryError:
        raise InputError(
            f"{path}: the model does not fit into the memory of {place}: use --device cpu"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None
    if tokenizer.vocab_size > lm.lm_head.out_features:
        sizes = f"{tokenizer.vocab_size:,} ids, the model {lm.lm_head.out_features:,}"
        raise InputError(f"{path}: the tokenizer has {sizes}: they do not belong together")
    tokenizer.model_ends = lm.config.end_ids
    if quantise is not None:
        from model.variants.quantised import quantise_weights

        try:
            quantise_weights(lm, quantise)
        except (ImportError, ValueError) as error:
            raise InputError(f"--quantise {quantise}: {error}") from None
    return lm, tokenizer, directory


def ends_turns(lm: LanguageModel, tokenizer: Tokenizer) -> bool:
    """Whether the model was trained on chats: then it may end a turn by itself. Raises InputError."""
    try:
        return tokenizer.turn_end is not None and tokenizer.turn_end in lm.config.end_ids
    except CannotRender as error:
        raise InputError(f"the model's chat template cannot be used: {error}") from None


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """`--device` of a command line."""
    parser.add_argument(
        "--device",
        default="auto",
        help="cpu, cuda, cuda:1 or mps; default: auto, a GPU if there is one",
    )


def add_quantise_option(parser: argparse.ArgumentParser) -> None:
    """`--quantise` of a command line."""
    parser.add_argument(
        "--quantise", choices=("int8", "int4"), help="fewer bits a weight; default: as it was saved"
    )


def run_folder(path: str | Path) -> Path:
    """The folder of the run that a path or its checkpoint is in; for any other model directory, that directory."""
    directory = checkpoint_directory(path).resolve()
    return directory.parents[1] if directory.parent.name == "checkpoints" else directory


def data_config(path: str | Path) -> DataConfig | None:
    """What a model was trained on: `data:` of its run's config.yaml. None for a model directory without one."""
    file = run_folder(path) / "config.yaml"
    return validate(DataConfig, load_config(file), "data") if file.is_file() else None


def trained_length(path: str | Path) -> int | None:
    """The row length in tokens that a model was trained with; None for a model directory outside of a run."""
    config = data_config(path)
    return config.sequence_length if config else None
