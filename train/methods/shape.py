"""`init_from`: a new model has the shape of the model whose weights it starts from."""

from pathlib import Path
from typing import Any

from configs.command import InputError
from configs.files import read_checkpoint
from model.config import ModelConfig
from model.files.checkpoint import read_config

# A model that was trained without these can learn to work with them.
ADDED = {"rope_scaling", "sliding_window", "layer_types"}
# With another value of these, the weights of init_from mean the same.
FREE = {
    "router_aux_loss_coef",
    "max_position_embeddings",
    "attention_dropout",
    "hidden_dropout",
    "initialization",
    "loadable_elsewhere",
    "attn_implementation",
    "my_attention",
    "vocab_size",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}


def shape_of(source: str, model: ModelConfig, named: set[str]) -> ModelConfig:
    """Return `model:` with the shape of `source`; the keys in `named` are kept."""
    try:
        _, there = read_start(source)
    except InputError:  # the run that needs it raises again, when it opens the weights
        return model
    # What stays as this config has it; everything else is taken from `there`.
    own = named | free_keys(there)
    # No tensor has this size, so the model may read the longer of both.
    if "max_position_embeddings" in own - named:
        own.discard("max_position_embeddings")
        there["max_position_embeddings"] = max(
            there["max_position_embeddings"], model.max_position_embeddings
        )
    # Its shape is one that no other library loads, and this model gets that shape.
    if not there["loadable_elsewhere"]:
        own.discard("loadable_elsewhere")
    taken = ModelConfig.model_validate(there)
    update = {key: getattr(taken, key) for key in there if key not in own}
    # The pattern of this config, repeated over the layers of the other model.
    if "layer_types" in own and model.layer_types:
        layers = taken.num_hidden_layers
        update["layer_types"] = (model.layer_types * layers)[:layers]
    return model.model_copy(update=update)


def read_start(init_from: str) -> tuple[Path, dict[str, Any]]:
    """Return the directory of a model and the values of its config. Raises InputError."""

    def read(directory: Path) -> tuple[Path, dict[str, Any]]:
        return directory, read_config(directory).model_dump()

    return read_checkpoint(init_from, read)


def free_keys(there: dict[str, Any]) -> set[str]:
    """Return the keys of `model:` that may differ from `there`, the config of init_from."""
    free = set(FREE)
    if there["rope_scaling"] is None:
        free.add("rope_scaling")
    if there["sliding_window"] is None:
        free |= {"sliding_window", "layer_types"}
    if "linear_attention" in there["layer_types"]:
        free.discard("layer_types")  # such a layer has weights of its own
    if there["position_embedding"] == "learned":
        free.discard("max_position_embeddings")  # it is the size of a tensor
    return free
