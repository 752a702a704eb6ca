"""A new run that starts from the weights of another one: `init_from=runs/x`, a run or a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from configs.loader import InputError
from data.tokenizer import Tokenizer, load_tokenizer
from model import LanguageModel
from model.checkpoint_format import checkpoint_directory, load_weights, read_config
from train.config import RunConfig

# what may differ from the model that init_from names: its weights mean the same with another value of these,
# or (the last four) the tokenizer sets them, and that is compared itself
MAY_DIFFER = (
    "attn_implementation attention_dropout hidden_dropout max_position_embeddings "
    "vocab_size bos_token_id eos_token_id pad_token_id"
).split()
# what may be added to a model that was trained without: trained on, it learns to live with it
MAY_BE_ADDED = ("rope_scaling", "sliding_window", "layer_types")


def find_initial_weights(config: RunConfig) -> Path | None:
    """The model directory that `init_from` names; None = random weights.

    Raises InputError unless its architecture is that of `model:`, naming the keys that differ.
    """
    if config.init_from is None:
        return None
    directory, different = different_keys(config)
    if different:
        here = config.model.model_dump()
        listed = ", ".join(f"{k} is {json.dumps(here[k])} here and {json.dumps(v)}" for k, v in different.items())
        remedy = " ".join(f"model.{key}={json.dumps(value)}" for key, value in different.items())
        raise InputError(f"init_from: {listed} in {directory / 'config.json'}: set {remedy}")
    return directory


def different_keys(config: RunConfig) -> tuple[Path, dict[str, Any]]:
    """The model directory that init_from names, and what of its architecture `model:` says otherwise.

    Raises InputError if there is no model.
    """
    assert config.init_from is not None
    try:
        directory = checkpoint_directory(config.init_from)
        there, here = read_config(directory).model_dump(), config.model.model_dump()
    except (OSError, ValueError) as error:
        raise InputError(f"init_from: {error}") from None
    free = {*MAY_DIFFER, *(MAY_BE_ADDED[:1] if there["rope_scaling"] is None else ())}
    free |= set(MAY_BE_ADDED[1:]) if there["sliding_window"] is None else set()
    return directory, {key: there[key] for key in here if here[key] != there[key] and key not in free}


def load_initial_weights(lm: LanguageModel, directory: Path, tokenizer: Tokenizer) -> None:
    """Copy the weights of a model directory into a new run's model.

    Raises InputError if the directory's tokenizer is not the run's: the same ids would stand for other text.
    """
    theirs, ours = (json.loads(each.backend.to_str()) for each in (load_tokenizer(directory), tokenizer))
    if theirs != ours:
        raise InputError(
            f"init_from: {directory / 'tokenizer.json'} is not the tokenizer of this run's data: take it over with "
            f"'data.tokenizer={{kind: pretrained, path: {directory}}}'"
        )
    try:
        load_weights(lm, directory)
    except ValueError as error:
        raise InputError(f"init_from: {error}") from None
