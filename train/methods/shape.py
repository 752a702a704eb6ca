"""`init_from`: the shape of a new model is that of the model whose weights it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.command import InputError
from configs.files import read_checkpoint
from model.config import ModelConfig
from model.files.checkpoint import read_config

ADDED = {
    "rope_scaling",
    "sliding_window",
    "layer_types",
}  # a model that has none learns to live with them
FREE = {  # Another value of these leaves the meaning of the weights of init_from as it is.
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
    """Return `model:` with the shape of `source`; keys that the user set are kept.

    A source that cannot be read changes nothing here: the run that needs it says so.
    """
    try:
        _, there = read_start(source)
    except InputError:
        return model
    own = named | free_keys(there)
    if "max_position_embeddings" in own - named:  # no tensor has its size
        own.discard("max_position_embeddings")
        there["max_position_embeddings"] = max(
            there["max_position_embeddings"], model.max_position_embeddings
        )
    if not there["loadable_elsewhere"]:
        own.discard("loadable_elsewhere")
    taken = ModelConfig.model_validate(there)
    update = {key: getattr(taken, key) for key in there if key not in own}
    if "layer_types" in own and model.layer_types:  # there may be fewer layers, or more
        update["layer_types"] = (model.layer_types * taken.num_hidden_layers)[
            : taken.num_hidden_layers
        ]
    return model.model_copy(update=update)


def read_start(init_from: str) -> tuple[Path, dict[str, Any]]:
    """A model's directory and its config's values."""
    return read_checkpoint(
        init_from, lambda directory: (directory, read_config(directory).model_dump())
    )


def free_keys(there: dict[str, Any]) -> set[str]:
    """The keys of `model:` that may have another value than `there`, in the config of the model
    begun from.
    """
    free = FREE | {
        key for key in ADDED if there[key if key == "rope_scaling" else "sliding_window"] is None
    }
    if there["position_embedding"] == "learned":
        free.discard("max_position_embeddings")  # it is the size of a tensor
    return free
