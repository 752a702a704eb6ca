"""Open the model of a run: `lm, tokenizer = open_model("runs/demo")`."""

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
    """Open a run (its newest checkpoint) or a checkpoint directory, in evaluation mode.

    device:   see `model.backends.choice.choose_device`
    dtype:    type of the weights; default float32
    quantise: int8 or int4 weights, which cannot be trained (model/variants/quantised.py)

    Raises InputError.
    """
    return open_checkpoint(path, device, dtype, quantise)[:2]


def open_checkpoint(
    path: str | Path,
    device: str = "auto",
    dtype: torch.dtype | None = None,
    quantise: str | None = None,
) -> tuple[LanguageModel, Tokenizer, Path]:
    """Open a model with its checkpoint directory: a run that trains soon has a newer one."""
    chosen_device = choose_device(device)

    # training may delete a checkpoint while it is read: then read_checkpoint tries the newer one
    def read(directory: Path) -> tuple[LanguageModel, Tokenizer, Path]:
        # dtype None: `to` leaves the weights as they are
        lm = load(directory).to(chosen_device, dtype)
        return lm, load_tokenizer(directory), directory

    try:
        lm, tokenizer, directory = read_checkpoint(path, read)
    except torch.OutOfMemoryError:
        raise InputError(
            f"{path}: the model does not fit into the memory of {chosen_device}: use --device cpu"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None
    # a larger head is fine (rows are often rounded up); a smaller one has no logits for some ids
    if tokenizer.vocab_size > lm.lm_head.out_features:
        raise InputError(
            f"{path}: the tokenizer has {tokenizer.vocab_size:,} ids, the model "
            f"{lm.lm_head.out_features:,}: they do not belong together"
        )
    # The config may name more tokens that end a text than the tokenizer does.
    tokenizer.model_ends = lm.config.end_ids
    if quantise is not None:
        from model.variants.quantised import quantise_weights

        try:
            quantise_weights(lm, quantise)
        except (ImportError, ValueError) as error:
            raise InputError(f"--quantise {quantise}: {error}") from None
    return lm, tokenizer, directory


def ends_turns(lm: LanguageModel, tokenizer: Tokenizer) -> bool:
    """Return True if the model was trained on chats, and may end a turn. Raises InputError."""
    try:
        # Both must agree: a base model may have a tokenizer with turns that it never saw.
        return tokenizer.turn_end is not None and tokenizer.turn_end in lm.config.end_ids
    except CannotRender as error:
        raise InputError(f"the model's chat template cannot be used: {error}") from None


def add_device_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        default="auto",
        help="cpu, cuda, cuda:1 or mps; default: auto, a GPU if there is one",
    )


def add_quantise_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quantise",
        choices=("int8", "int4"),
        help="fewer bits a weight; default: as it was saved",
    )


def run_folder(path: str | Path) -> Path:
    """Return the folder of the run of a path or checkpoint; else the model directory itself."""
    directory = checkpoint_directory(path).resolve()
    # runs/<name>/checkpoints/step_00001000
    return directory.parents[1] if directory.parent.name == "checkpoints" else directory


def data_config(path: str | Path) -> DataConfig | None:
    """Read `data:` of the run's config.yaml; None for a model directory without one."""
    file = run_folder(path) / "config.yaml"
    return validate(DataConfig, load_config(file), "data") if file.is_file() else None


def trained_length(path: str | Path) -> int | None:
    """Return the row length in training, in tokens; None for a model directory without a run."""
    config = data_config(path)
    return config.sequence_length if config else None
