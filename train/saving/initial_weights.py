"""A new run that starts from the weights of another one: `init_from=runs/x`, a run or a model directory."""

from __future__ import annotations

import json
from pathlib import Path

from configs.command import InputError
from configs.files import is_adapter
from data.tokenizer import Tokenizer, load_tokenizer
from model import LanguageModel, ModelConfig
from model.adapters.config import LoraConfig
from model.adapters.files import base_of, weights_hash
from model.adapters.lora import add_adapters
from model.counting import on_meta
from model.saving.checkpoint_format import load_weights
from train.config import RunConfig
from train.saving.start import ADDED, WINDOWS, free_keys, read_start, start_of


def find_initial_weights(config: RunConfig) -> Path:
    """The directory of the model that `init_from` names; for a config that has one.

    Raises InputError unless its architecture is that of `model:`, naming the keys that differ.
    """
    directory, there = read_start(str(config.init_from))
    different = [key for key, value in config.model.model_dump().items() if value != there[key]]
    different = [key for key in different if key not in free_keys(there)]
    if different:
        here = config.model.model_dump()
        listed = ", ".join(f"{k} is {json.dumps(here[k])} here and {json.dumps(there[k])}" for k in different)
        remedy = " ".join(f"model.{key}={json.dumps(there[key])}" for key in different)
        raise InputError(f"init_from: {listed} in {directory / 'config.json'}: set {remedy}")
    return directory


def find_base(config: RunConfig, checkpoint: Path | None) -> Path:
    """The whole model beside which a run with `lora:` trains: what init_from names, or where `checkpoint` continues,
    the base that it names.

    Raises InputError for what can have no such adapters; nothing has been built or written by then.
    """
    if config.train.parallel == "fsdp2":
        raise InputError(
            "lora: train.parallel is fsdp2, which spreads the frozen matrices too, and they are saved nowhere: use ddp"
        )
    if checkpoint is not None:
        try:
            return base_of(checkpoint)
        except ValueError as error:
            raise InputError(f"resume: {error}") from None
    directory = find_initial_weights(config)
    if is_adapter(directory):
        raise InputError(
            f"init_from: {directory} holds adapters, and adapters need a whole model: merge them first with "
            f"python -m model.export {config.init_from} --to merged --out DIR"
        )
    there, here = read_start(str(directory))[1], config.model.model_dump()
    if added := [key for key in ADDED if here.get(key) != there.get(key)]:
        raise InputError(
            f"lora: model.{added[0]} is not as in {directory}, and adapters are opened beside the model as it is: set "
            f"model.{added[0]}={json.dumps(there[added[0]])}"
        )
    _try_adapters(config)
    return directory


def _try_adapters(config: RunConfig) -> None:
    """Raises InputError for adapters that do not fit the architecture, which is built without numbers."""
    assert config.lora is not None
    lm = on_meta(config.model.model_copy(update={"vocab_size": config.model.vocab_size or 64}))
    try:
        add_adapters(lm, config.lora)
    except ValueError as error:
        of_a_key = str(error).startswith(("rank", "target_modules"))
        raise InputError(f"lora{'.' if of_a_key else ': '}{error}") from None


def take_over(config: RunConfig, tokenizer_of: str | None = None) -> RunConfig:
    """The config with the architecture of `init_from`, and its tokenizer unless data.tokenizer names one.

    A run that has begun has both of its own. tokenizer_of: the model whose tokenizer is taken where init_from is null.
    Raises InputError.
    """
    source = start_of(config.directory, config.init_from)
    if source is not None:
        config = config.model_copy(update={"model": take_over_architecture(config, source)})
    if source == config.init_from and config.data.tokenizer.kind == "pretrained":
        return config
    return _with_tokenizer_of(config, source or tokenizer_of)


def _with_tokenizer_of(config: RunConfig, path: str | None) -> RunConfig:
    tokenizer = config.data.tokenizer.model_copy(update={"kind": "pretrained", "path": path, "vocab_size": None})
    return config.model_copy(update={"data": config.data.model_copy(update={"tokenizer": tokenizer})})


def take_over_architecture(config: RunConfig, source: str) -> ModelConfig:
    """`model:` with every key that must be as it is in the model of this run or directory, its windows among them.

    Raises InputError.
    """
    _, there = read_start(source)
    own = free_keys(there).difference(WINDOWS)
    if not there["loadable_elsewhere"]:
        own.discard("loadable_elsewhere")
    return ModelConfig.model_validate(there | {key: getattr(config.model, key) for key in own})


def load_initial_weights(
    lm: LanguageModel, directory: Path, tokenizer: Tokenizer, lora: LoraConfig | None = None
) -> str:
    """Copy the weights of a model directory into a new run's model; then freeze them, beside adapters, with `lora`.

    The tokenizer may have tokens that the directory's has not. Returns a line about them; "" where there are none.
    Raises InputError if the same ids would stand for other text.
    """
    if not directory.is_dir():  # `init_from` is a run that trains, and data were prepared since it was found
        raise InputError(f"init_from: its run has removed {directory}: wait for its end, or raise its train.keep_last")
    rows, wanted, theirs = read_start(str(directory))[1]["vocab_size"], tokenizer.vocab_size, load_tokenizer(directory)
    new = tokenizer.tokens_beyond(theirs)
    if rows > wanted or new is None:
        raise InputError(
            f"init_from: {directory / 'tokenizer.json'} is not the tokenizer of this run's data: take it over with "
            f"'data.tokenizer={{kind: pretrained, path: {directory}}}'"
        )
    try:
        load_weights(lm, directory)
    except ValueError as error:
        raise InputError(f"init_from: {error}") from None
    if lora is not None:
        add_adapters(lm, lora, str(directory), weights_hash(lm), theirs.vocab_size if new else None)
    if not new:
        return ""
    where = f"in {wanted - rows} new rows, each at first the mean of the others" if rows < wanted else "in free rows"
    return f"added to the tokenizer of {directory}, {where}: {' '.join(new)}"
