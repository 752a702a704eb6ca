"""Weights + config.json: a saved model directory IS a Hugging Face model directory.

Parameter names and the order of operations are transformers', so `AutoModelForCausalLM.from_pretrained(dir)` gives
identical logits. model/families.py has what differs between the architectures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from configs.checkpoints import check_files, read_checkpoint
from model.config import ModelConfig
from model.families import FAMILIES, Family, family_of
from model.transformer import LanguageModel

WEIGHTS = "model.safetensors"


def save(lm: LanguageModel, directory: str | Path, weights: dict[str, Tensor] | None = None) -> None:
    """Write model.safetensors, config.json and generation_config.json. Makes the directory if needed.

    weights: the whole state_dict, for a model whose parameters are spread over several processes.
    """
    directory, family = Path(directory), family_of(lm.config)
    directory.mkdir(parents=True, exist_ok=True)
    config = family.write(lm.config)
    config["dtype"] = config["torch_dtype"] = str(next(lm.parameters()).dtype).removeprefix("torch.")
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", tokens)
    weights = lm.state_dict() if weights is None else weights
    tensors = {family.rename(name): weights[name].contiguous() for name in _stored_names(lm)}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def load(path: str | Path, device: str | torch.device = "cpu") -> LanguageModel:
    """Load a run (its newest checkpoint) or a checkpoint directory, in evaluation mode.

    Raises ValueError that names the file for anything that is not such a directory, is damaged or does not fit.
    """
    return read_checkpoint(path, _load).to(device).eval()


def _load(directory: Path) -> LanguageModel:
    lm = LanguageModel(read_config(directory))
    load_weights(lm, directory)
    return lm


def load_weights(lm: LanguageModel, directory: Path) -> None:
    """Copy a directory's weights into a model. Every tensor must be there and fit, and none may be left over.

    Raises ValueError that names the file.
    """
    check_files(directory, WEIGHTS)
    lm.load_state_dict(read_weights(lm, directory), strict=not lm.config.tie_word_embeddings)


def read_weights(lm: LanguageModel, directory: Path) -> dict[str, Tensor]:
    """The weights in a directory under the model's own names, checked against it; no lm_head if it is tied.

    Raises ValueError that names the file.
    """
    file, tensors = _read_tensors(directory)
    family, state = _family(directory)[0], lm.state_dict()
    own_name = {family.rename(name): name for name in _stored_names(lm)}
    tensors = {own_name.get(name, name): tensor for name, tensor in tensors.items()}
    expected = {name: state[name].shape for name in _stored_names(lm)}
    problems = [f"{name} is missing" for name in expected.keys() - tensors.keys()]
    problems += [f"{name} is not part of this model" for name in tensors.keys() - expected.keys()]
    problems += [
        f"{name} has shape {list(tensors[name].shape)}, the model has {list(shape)}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    if problems:
        raise ValueError(f"{file}: is of another architecture: {'; '.join(sorted(problems)[:3])}")
    return tensors


def _stored_names(lm: LanguageModel) -> list[str]:
    """The tensors of a model, a tied matrix once, as transformers stores it."""
    return [name for name in lm.state_dict() if not (lm.config.tie_word_embeddings and name == "lm_head.weight")]


def _read_tensors(directory: Path) -> tuple[Path, dict[str, Tensor]]:
    """What model.safetensors holds, or the several files that model.safetensors.index.json lists; and which it was."""
    file, tensors = directory / WEIGHTS, dict[str, Tensor]()
    index = directory / "model.safetensors.index.json"
    try:
        if file.is_file() or not index.is_file():
            return file, load_file(file)
        for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
            tensors |= load_file(directory / Path(name).name)
    except (OSError, SafetensorError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{index if index.is_file() else file}: cannot be read: {error}") from None
    return index, tensors


def read_config(directory: Path) -> ModelConfig:
    """config.json -> ModelConfig. Raises ValueError for an architecture that Headlight does not build."""
    check_files(directory, "config.json")
    family, fields = _family(directory)
    return family.read(fields, directory / "config.json")


def _family(directory: Path) -> tuple[Family, dict[str, Any]]:
    """The family of a model directory, and its config.json."""
    file = directory / "config.json"
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{file}: is not the config of a model")
    model_type = fields.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(f"{file}: model_type is {model_type!r}; Headlight builds {', '.join(FAMILIES)}")
    return FAMILIES[model_type], fields


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
