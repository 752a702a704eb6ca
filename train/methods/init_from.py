"""A new run that starts from the weights of another: `init_from=runs/x`."""

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
    """Return the directory whose weights a run needs; None if `checkpoint` has them all.

    Raises InputError for another architecture than that of `model:`, naming the keys that differ,
    and for a model that cannot have the adapters of `lora:`.
    """
    if config.lora is not None and config.train.parallel != "ddp":
        # FSDP2 would shard the frozen matrices, which a checkpoint of adapters does not hold.
        raise InputError(
            f"lora cannot be combined with train.parallel={config.train.parallel}: use ddp"
        )
    # A stopped run. Its checkpoint has all weights, with `lora:` only those of the adapters.
    if checkpoint is not None:
        return base_of(checkpoint) if config.lora is not None else None
    directory, there = read_start(str(config.init_from))
    here = config.model.model_dump()
    free = free_keys(there)
    # Adapters are loaded beside their base, which must be exactly as it was saved.
    if config.lora is not None:
        free -= ADDED
    if "linear_attention" in here["layer_types"]:  # such a layer has weights of its own
        free.discard("layer_types")
    different = [key for key in here if here[key] != there[key] and key not in free]
    if different:
        listed = ", ".join(
            f"{key} is {json.dumps(here[key])} here and {json.dumps(there[key])}"
            for key in different
        )
        remedy = " ".join(f"model.{key}={json.dumps(there[key])}" for key in different)
        raise InputError(f"init_from: {listed} in {directory / 'config.json'}: set {remedy}")
    if config.lora is not None:
        if is_adapter(directory):
            remedy = "merge them first (model.export --to merged)"
            raise InputError(f"init_from: {directory} holds adapters: {remedy}")
        from model.variants.lora import add_adapters

        # A trial on the meta device, which has shapes but no numbers, before weights are read.
        lm = on_meta(sized(config).model)
        try:
            add_adapters(lm, config.lora)
        except ValueError as error:
            raise InputError(f"lora: {error}") from None
    return directory


def load_initial_weights(
    lm: LanguageModel, directory: Path, tokenizer: Tokenizer, lora: LoraConfig | None
) -> str:
    """Copy the weights of a model directory into a new run's model; `lora` freezes them there.

    Returns a line about tokens that are new in this run, or "". Raises InputError for a tokenizer
    in which the same ids mean other text.
    """
    rows = read_start(str(directory))[1]["vocab_size"]
    size = tokenizer.vocab_size
    theirs = load_tokenizer(directory)
    new = tokenizer.tokens_beyond(theirs)
    if rows > size or new is None:
        raise InputError(
            f"init_from: {directory / 'tokenizer.json'} is not the tokenizer of this run's data: "
            f"take it over with 'data.tokenizer={{kind: pretrained, path: {directory}}}'"
        )
    load_weights(lm, directory)
    if lora is not None:
        from model.variants.lora import add_adapters, weights_hash

        add_adapters(lm, lora, str(directory), weights_hash(lm), theirs.vocab_size if new else None)
    if not new:
        return ""
    where = "in free rows"
    if rows < size:
        where = f"in {size - rows} new rows, each at first the mean of the others"
    return f"added to the tokenizer of {directory}, {where}: {' '.join(new)}"
