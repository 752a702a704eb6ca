"""How does a command open a model? One function for all of them: `lm, tokenizer = open_model("runs/demo")`.

What a model can be opened with (a device, a data type, quantised weights, another scaling of RoPE) is decided here
alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from configs.command import InputError, number
from configs.files import checkpoint_directory, read_checkpoint
from configs.loader import load_config, validate
from data.chat_template import CannotRender

if TYPE_CHECKING:  # torch takes seconds to import, and --help should not
    import torch

    from data.config import DataConfig
    from data.tokenizer import Tokenizer
    from model import LanguageModel


def open_model(
    path: str | Path, device: str = "auto", dtype: torch.dtype | None = None, quantise: str | None = None
) -> tuple[LanguageModel, Tokenizer]:
    """The model, in evaluation mode, and the tokenizer of a run (its newest checkpoint) or a checkpoint directory.

    device: see `model.backends.choice.choose_device`. dtype: of the weights; default: float32, as they are saved.
    quantise: int8 or int4 weights (model/quantised.py), which can be read and not trained.
    Raises InputError for a device that is not available or too small, and for a directory that cannot be loaded.
    """
    return open_checkpoint(path, device, dtype, quantise)[:2]


def open_checkpoint(
    path: str | Path, device: str = "auto", dtype: torch.dtype | None = None, quantise: str | None = None
) -> tuple[LanguageModel, Tokenizer, Path]:
    """The same, and the checkpoint directory that all of it was read from: a run that trains has soon another one."""
    import torch

    from data.tokenizer import load_tokenizer
    from model import load
    from model.backends.choice import choose_device
    from model.quantised import quantise_weights

    def read(directory: Path) -> tuple[LanguageModel, Tokenizer, Path]:
        return load(directory).to(device=place, dtype=dtype), load_tokenizer(directory), directory

    check_quantise(quantise)
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
    tokenizer.model_ends = _ends(lm)
    if quantise is not None:
        try:
            quantise_weights(lm, quantise)
        except (ImportError, ValueError) as error:
            raise InputError(f"--quantise {quantise}: {error}") from None
    return lm, tokenizer, directory


def ends_turns(lm: LanguageModel, tokenizer: Tokenizer) -> bool:
    """Whether the model was trained on chats: then it may end a turn by itself. Raises InputError."""
    try:
        return tokenizer.turn_end is not None and tokenizer.turn_end in _ends(lm)
    except CannotRender as error:
        raise InputError(f"the model's chat template cannot be used: {error}") from None


def _ends(lm: LanguageModel) -> list[int]:
    ends = lm.config.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """`--device` of a command line."""
    parser.add_argument(
        "--device",
        default="auto",
        help="cpu, cuda, cuda:1 or mps; default: auto, a GPU if there is one",
    )


def check_quantise(kind: str | None) -> None:
    """Raises InputError where weights are to be quantised and torchao is missing. Imports nothing heavy."""
    from model.quantised import check_installed

    try:
        if kind is not None:
            check_installed()
    except ImportError as error:
        raise InputError(f"--quantise {kind}: {error}") from None


def add_quantise_option(parser: argparse.ArgumentParser) -> None:
    """`--quantise` of a command line."""
    from model.quantised import WEIGHTS

    parser.add_argument("--quantise", choices=WEIGHTS, help="fewer bits a weight; default: as the model was saved")


ROPE_FACTOR = 4.0  # of --rope-scaling, where none is given


def add_rope_options(parser: argparse.ArgumentParser) -> None:
    """`--rope-scaling` and `--rope-factor` of a command line."""
    parser.add_argument(
        "--rope-scaling",
        metavar="KIND",
        help="read texts longer than those of training: none, linear or yarn; default: as the model was saved",
    )
    parser.add_argument(
        "--rope-factor",
        type=number("--rope-factor", 1),
        metavar="N",
        help=f"longest text from now on / longest text in training ({ROPE_FACTOR:g})",
    )


def check_rope_options(kind: str | None, factor: float | None) -> None:
    """Raises InputError for a kind that there is not, and for a factor of nothing. Imports nothing heavy."""
    from model.rope import SCALINGS

    if kind is not None and kind not in SCALINGS:
        raise InputError(f"--rope-scaling {kind}: unknown: use one of {', '.join(SCALINGS)}")
    if factor is not None and kind in (None, "none"):
        raise InputError("--rope-factor is for --rope-scaling linear or yarn: give one of them as well")


def with_rope_options(lm: LanguageModel, run: str | Path, kind: str | None, factor: float | None) -> LanguageModel:
    """The model as --rope-scaling and --rope-factor want it; it itself where they are not given. Raises InputError."""
    check_rope_options(kind, factor)
    if kind is None:
        return lm
    scaling = lm.config.rope_scaling
    of_scaling = scaling.original_max_position_embeddings if scaling else None
    trained = of_scaling or trained_length(run) or lm.config.max_position_embeddings
    try:
        return lm.with_rope_scaling(kind, ROPE_FACTOR if factor is None else factor, trained)
    except ValueError as error:
        raise InputError(f"--rope-scaling: {error}") from None


def data_config(run: str | Path) -> DataConfig | None:
    """What a run was trained on: `data:` of its config.yaml. None for a model directory outside of a run."""
    from data.config import DataConfig

    checkpoints = checkpoint_directory(run).resolve().parent
    file = checkpoints.parent / "config.yaml"
    if checkpoints.name != "checkpoints" or not file.is_file():
        return None
    return validate(DataConfig, load_config(file), "data")


def trained_length(run: str | Path) -> int | None:
    """The row length in tokens that a run was trained with; None for a model directory outside of a run."""
    config = data_config(run)
    return config.sequence_length if config else None
