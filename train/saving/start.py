"""Where does a run start that has `init_from`, and which shape has the model there?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.command import InputError
from configs.files import read_checkpoint
from model import ModelConfig
from model.saving.checkpoint_format import read_config

WINDOWS = {"sliding_window", "layer_types"}  # set together
ADDED = (
    "rope_scaling",
    "sliding_window",
    "layer_types",
)  # a model that has none and is trained on learns to live with them
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
        _, there = read_start(source)
    except InputError:
        return model
    keep = said | free_keys(there)
    if "max_position_embeddings" in keep - said:  # no tensor has its size
        keep.discard("max_position_embeddings")
        there["max_position_embeddings"] = max(there["max_position_embeddings"], model.max_position_embeddings)
    if not there["loadable_elsewhere"]:
        keep.discard("loadable_elsewhere")
    taken = ModelConfig.model_validate(there)
    return model.model_copy(update={key: getattr(taken, key) for key in there if key not in keep})


def read_start(init_from: str) -> tuple[Path, dict[str, Any]]:
    """A model's directory and its config's values."""
    try:
        return read_checkpoint(init_from, lambda directory: (directory, read_config(directory).model_dump()))
    except (OSError, ValueError) as error:
        raise InputError(f"init_from: {error}") from None


def free_keys(there: dict[str, Any]) -> set[str]:
    """The keys of `model:` that may have another value than `there`, in the config of the model begun from."""
    free = FREE.union(ADDED)
    if there["rope_scaling"] is not None:
        free.remove("rope_scaling")
    if there["sliding_window"] is not None:
        free -= WINDOWS
    if there["position_embedding"] == "learned":
        free.discard("max_position_embeddings")  # it is the size of a tensor
    return free
