"""A new run that starts from the weights of another one: `init_from=runs/x`, a run or a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from configs.command import InputError
from configs.files import is_adapter, read_checkpoint
from data.tokenizer import Tokenizer, load_tokenizer
from model import LanguageModel, ModelConfig
from model.checkpoint import base_of, load_weights, read_config
from model.lora_config import LoraConfig
from model.transformer import on_meta
from train.config import RunConfig

ADDED = {"rope_scaling", "sliding_window", "layer_types"}  # a model that has none learns to live with them
FREE = {  # the weights of init_from mean the same with another value
    "router_aux_loss_coef", "max_position_embeddings", "attention_dropout", "hidden_dropout", "initialization",
    "loadable_elsewhere", "attn_implementation", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id",
}  # fmt: skip


def start_of(directory: Path, init_from: str | None) -> str | None:
    """Where shape and tokenizer come from: init_from, or the run itself once it has begun; None without init_from."""
    begun = init_from is not None and (directory / "checkpoints" / "latest").is_file()
    return str(directory) if begun else init_from


def shape_of(source: str, model: ModelConfig, said: set[str]) -> ModelConfig:
    """`model:` as the model in `source` needs it, but for the keys that were said about it.

    A source that cannot be read changes nothing here: the run that needs it says so.
    """
    try:
        _, there = _read(source)
    except InputError:
        return model
    keep = said | _free_keys(there)
    if "max_position_embeddings" in keep - said:  # no tensor has its size
        keep.discard("max_position_embeddings")
        there["max_position_embeddings"] = max(there["max_position_embeddings"], model.max_position_embeddings)
    if not there["loadable_elsewhere"]:
        keep.discard("loadable_elsewhere")
    taken = ModelConfig.model_validate(there)
    update = {key: getattr(taken, key) for key in there if key not in keep}
    if "layer_types" in keep and model.layer_types:  # there may be fewer layers, or more
        update["layer_types"] = (model.layer_types * taken.num_hidden_layers)[: taken.num_hidden_layers]
    return model.model_copy(update=update)


def _read(init_from: str) -> tuple[Path, dict[str, Any]]:
    """A model's directory and its config's values."""
    try:
        return read_checkpoint(init_from, lambda directory: (directory, read_config(directory).model_dump()))
    except ValueError as error:
        raise InputError(f"init_from: {error}") from None


def _free_keys(there: dict[str, Any]) -> set[str]:
    """The keys of `model:` that may have another value than `there`, in the config of the model begun from."""
    free = FREE | {key for key in ADDED if there[key if key == "rope_scaling" else "sliding_window"] is None}
    if there["position_embedding"] == "learned":
        free.discard("max_position_embeddings")  # it is the size of a tensor
    return free


def find_initial_weights(config: RunConfig) -> Path:
    """The directory of the model that `init_from` names; for a config that has one.

    Raises InputError unless its architecture is that of `model:`, naming the keys that differ.
    """
    directory, there = _read(str(config.init_from))
    here = config.model.model_dump()
    free = _free_keys(there) - (ADDED if config.lora else set())  # adapters are opened beside the model as it is
    if different := [key for key in here if here[key] != there[key] and key not in free]:
        listed = ", ".join(f"{k} is {json.dumps(here[k])} here and {json.dumps(there[k])}" for k in different)
        remedy = " ".join(f"model.{key}={json.dumps(there[key])}" for key in different)
        raise InputError(f"init_from: {listed} in {directory / 'config.json'}: set {remedy}")
    return directory


def find_base(config: RunConfig, checkpoint: Path | None) -> Path:
    """The whole model beside which a run with `lora:` trains: what init_from names, or where `checkpoint` continues,
    the base that it names. Raises InputError for what can have no such adapters.
    """
    from model.lora import add_adapters

    assert config.lora is not None
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
    lm = on_meta(config.model.model_copy(update={"vocab_size": config.model.vocab_size or 64}))
    try:  # without numbers, before anything is read
        add_adapters(lm, config.lora)
    except ValueError as error:
        raise InputError(f"lora: {error}") from None
    return directory


def load_initial_weights(
    lm: LanguageModel, directory: Path, tokenizer: Tokenizer, lora: LoraConfig | None = None
) -> str:
    """Copy the weights of a model directory into a new run's model; then freeze them, beside adapters, with `lora`.

    The tokenizer may have tokens that the directory's has not. Returns a line about them; "" where there are none.
    Raises InputError if the same ids would stand for other text.
    """
    rows, wanted, theirs = _read(str(directory))[1]["vocab_size"], tokenizer.vocab_size, load_tokenizer(directory)
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
        from model.lora import add_adapters, weights_hash

        add_adapters(lm, lora, str(directory), weights_hash(lm), theirs.vocab_size if new else None)
    if not new:
        return ""
    where = f"in {wanted - rows} new rows, each at first the mean of the others" if rows < wanted else "in free rows"
    return f"added to the tokenizer of {directory}, {where}: {' '.join(new)}"
