"""A new run that starts from the weights of another one: `init_from=runs/x`, a run or a model
directory.
"""

from __future__ import annotations

import json
from pathlib import Path

from configs.command import InputError
from configs.files import is_adapter
from data.tokenizer import Tokenizer, load_tokenizer
from model import LanguageModel
from model.files.checkpoint import base_of, load_weights
from model.transformer import on_meta
from model.variants.config import LoraConfig
from train.config import RunConfig
from train.machine.device import sized
from train.methods.shape import ADDED, free_keys, read_start


def find_initial_weights(config: RunConfig, checkpoint: Path | None) -> Path | None:
    """The directory whose weights a run needs: the model that `init_from` names; None where
    `checkpoint` has them all.

    A checkpoint of a run with `lora:` holds the adapters alone, so that run needs its base wherever
    it begins. Raises InputError unless the architecture is that of `model:`, naming the keys that
    differ, and for what can have no such adapters.
    """
    if config.lora is not None and (parallel := config.train.parallel) != "ddp":
        raise InputError(
            f"lora: train.parallel={parallel} spreads the frozen matrices, which nothing "
            "saves: use ddp"
        )
    if checkpoint is not None:
        return base_of(checkpoint) if config.lora is not None else None
    directory, there = read_start(str(config.init_from))
    here = config.model.model_dump()
    free = free_keys(there) - (
        ADDED if config.lora else set()
    )  # adapters are opened beside the model as it is
    if different := [key for key in here if here[key] != there[key] and key not in free]:
        listed = ", ".join(
            f"{k} is {json.dumps(here[k])} here and {json.dumps(there[k])}" for k in different
        )
        remedy = " ".join(f"model.{key}={json.dumps(there[key])}" for key in different)
        raise InputError(f"init_from: {listed} in {directory / 'config.json'}: set {remedy}")
    if config.lora is not None and is_adapter(directory):
        raise InputError(
            f"init_from: {directory} holds adapters: merge them first (model.export --to merged)"
        )
    if config.lora is not None:
        from model.variants.lora import add_adapters

        lm = on_meta(sized(config).model)
        try:  # without numbers, before anything is read
            add_adapters(lm, config.lora)
        except ValueError as error:
            raise InputError(f"lora: {error}") from None
    return directory


def load_initial_weights(
    lm: LanguageModel, directory: Path, tokenizer: Tokenizer, lora: LoraConfig | None = None
) -> str:
    """Copy the weights of a model directory into a new run's model; then freeze them, beside
    adapters, with `lora`.

    The tokenizer may have tokens that the directory's has not. Returns a line about them; "" where
    there are none. Raises InputError if the same ids would stand for other text.
    """
    rows = read_start(str(directory))[1]["vocab_size"]
    wanted = tokenizer.vocab_size
    theirs = load_tokenizer(directory)
    new = tokenizer.tokens_beyond(theirs)
    if rows > wanted or new is None:
        raise InputError(
            f"init_from: {directory / 'tokenizer.json'} is not the tokenizer of this run's "
            "data: take it over with "
            f"'data.tokenizer={{kind: pretrained, path: {directory}}}'"
        )
    load_weights(lm, directory)
    if lora is not None:
        from model.variants.lora import add_adapters, weights_hash

        add_adapters(lm, lora, str(directory), weights_hash(lm), theirs.vocab_size if new else None)
    if not new:
        return ""
    where = (
        f"in {wanted - rows} new rows, each at first the mean of the others"
        if rows < wanted
        else "in free rows"
    )
    return f"added to the tokenizer of {directory}, {where}: {' '.join(new)}"
