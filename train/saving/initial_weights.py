"""A new run that starts from the weights of another one: `init_from=runs/x`, a run or a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from configs.checkpoints import read_checkpoint
from configs.command import InputError
from configs.meaning import Meaning, keys_that
from data.tokenizer import Tokenizer, load_tokenizer
from model import LanguageModel, ModelConfig
from model.checkpoint_format import load_weights, read_config
from train.config import RunConfig

WINDOWS = {"sliding_window", "layer_types"}  # set together


def find_initial_weights(config: RunConfig) -> Path:
    """The directory of the model that `init_from` names; for a config that has one.

    Raises InputError unless its architecture is that of `model:`, naming the keys that differ.
    """
    directory, there = _read(str(config.init_from))
    different = [key for key, value in config.model.model_dump().items() if value != there[key]]
    different = [key for key in different if key not in _free_keys(there)]
    if different:
        here = config.model.model_dump()
        listed = ", ".join(f"{k} is {json.dumps(here[k])} here and {json.dumps(there[k])}" for k in different)
        remedy = " ".join(f"model.{key}={json.dumps(there[key])}" for key in different)
        raise InputError(f"init_from: {listed} in {directory / 'config.json'}: set {remedy}")
    return directory


def take_over_architecture(config: RunConfig, source: str) -> ModelConfig:
    """`model:` with every key that must be as it is in the model of this run or directory, its windows among them.

    Raises InputError.
    """
    _, there = _read(source)
    own = _free_keys(there).difference(WINDOWS)
    return ModelConfig.model_validate(there | {key: getattr(config.model, key) for key in own})


def _read(init_from: str) -> tuple[Path, dict[str, Any]]:
    """A model's directory and its config's values."""
    try:
        return read_checkpoint(init_from, lambda directory: (directory, read_config(directory).model_dump()))
    except (OSError, ValueError) as error:
        raise InputError(f"init_from: {error}") from None


def _free_keys(there: dict[str, Any]) -> set[str]:
    """The keys of `model:` that may have another value than `there`, in the config of the model begun from."""
    added = set(keys_that(ModelConfig, Meaning.ADDED_AT_START))
    if there["rope_scaling"] is not None:
        added.remove("rope_scaling")
    if there["sliding_window"] is not None:
        added -= WINDOWS
    free = added.union(keys_that(ModelConfig, Meaning.FREE_AT_START, Meaning.TOKENIZER)) & there.keys()
    if there["position_embedding"] == "learned":
        free.discard("max_position_embeddings")  # it is the size of a tensor
    return free


def load_initial_weights(lm: LanguageModel, directory: Path, tokenizer: Tokenizer) -> None:
    """Copy the weights of a model directory into a new run's model.

    Raises InputError if the directory's tokenizer is not the run's: the same ids would stand for other text.
    """
    if not directory.is_dir():  # `init_from` is a run that trains, and data were prepared since it was found
        raise InputError(f"init_from: its run has removed {directory}: wait for its end, or raise its train.keep_last")
    if load_tokenizer(directory).sha256() != tokenizer.sha256():
        raise InputError(
            f"init_from: {directory / 'tokenizer.json'} is not the tokenizer of this run's data: take it over with "
            f"'data.tokenizer={{kind: pretrained, path: {directory}}}'"
        )
    try:
        load_weights(lm, directory)
    except ValueError as error:
        raise InputError(f"init_from: {error}") from None
