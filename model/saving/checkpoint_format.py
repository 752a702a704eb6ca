"""Weights + config.json: a saved model directory IS a Hugging Face model directory.

Parameter names and the order of operations are transformers', so `AutoModelForCausalLM.from_pretrained(dir)` gives
identical logits. model/families/ has what differs between the architectures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import torch
from pydantic import BaseModel
from safetensors.torch import save_file
from torch import Tensor

from configs.files import DamagedFile, check_files, is_adapter, is_file, read_checkpoint, read_json
from model.adapters.files import base_of, load_adapters, read_adapters, save_adapters
from model.adapters.lora import merge
from model.config import ModelConfig
from model.families import Family, family_of, readable
from model.saving import weight_files
from model.saving.config_json import TokenId
from model.transformer import LanguageModel, on_meta

WEIGHTS = "model.safetensors"


class Generation(BaseModel):
    """What is read of generation_config.json."""

    eos_token_id: TokenId | list[TokenId] | None = None


def save(lm: LanguageModel, directory: str | Path, weights: dict[str, Tensor] | None = None) -> None:
    """Write model.safetensors, config.json and generation_config.json. Makes the directory if needed.

    A model with adapters is written as adapters, which name their base (model/adapters/files.py).
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
    if lm.adapters is not None:
        save_adapters(lm, directory, weights)
        return
    tensors = family.to_files({name: weights[name] for name in _stored_names(lm)})
    # contiguous: a tensor that is cut out of another one is copied
    save_file({name: x.contiguous() for name, x in tensors.items()}, directory / WEIGHTS, metadata={"format": "pt"})


def load(path: str | Path, device: str | torch.device = "cpu") -> LanguageModel:
    """Load a run (its newest checkpoint) or a checkpoint directory, in evaluation mode.

    Warns (InputWarning) of weights that are not finite. Raises ValueError that names the file for anything that is not
    such a directory, is damaged, does not fit, or needs more memory than there is.
    """
    return read_checkpoint(path, _load).to(device).eval()


def _load(directory: Path) -> LanguageModel:
    config = read_config(directory)
    _check_size(config, directory)
    lm = LanguageModel(config)
    load_weights(lm, directory)
    return lm


def load_weights(lm: LanguageModel, directory: Path) -> None:
    """Copy a directory's weights into a model; of adapters, those of their base with the adapters merged.

    Every tensor must be there and fit, and none may be left over; but a model that was given more token ids than the
    directory has gets new rows for them (`add_rows`). Raises ValueError that names the file.
    """
    if is_adapter(directory):
        load_weights(lm, base_of(directory))
        load_adapters(lm, directory)
        merge(lm)
        return
    there, wanted = read_config(directory), lm.lm_head.out_features
    if (there.vocab_size or wanted) < wanted:
        start = LanguageModel(there)
        load_weights(start, directory)
        start.add_rows(wanted)
        lm.load_state_dict(start.state_dict())
        return
    check_files(directory, WEIGHTS)
    lm.load_state_dict(read_weights(lm, directory), strict=not lm.config.tie_word_embeddings)


def read_weights(lm: LanguageModel, directory: Path) -> dict[str, Tensor]:
    """The weights in a directory under the model's own names, checked against it; no lm_head if it is tied.

    Of a directory of adapters, for a model that has such, the adapters alone.
    Warns of weights that are not finite. Raises ValueError that names the file.
    """
    if is_adapter(directory):
        return read_adapters(lm, directory)
    family = _family(directory)[0]
    stored = weight_files.describe(directory, family.current)
    _check_tensors(lm, stored, family)
    tensors = family.from_files(weight_files.read(stored))
    weight_files.warn_of_non_finite(tensors, stored.file)
    return tensors


def _check_tensors(lm: LanguageModel, stored: weight_files.Stored, family: Family) -> None:
    """Raises ValueError unless all tensors are there, fit, and none is left over."""
    state, found = lm.state_dict(), stored.shapes
    shapes = {name: torch.empty(state[name].shape, device="meta") for name in _stored_names(lm)}
    expected = {name: list(x.shape) for name, x in family.to_files(shapes).items()}
    problems = [f"{name} is missing" for name in expected.keys() - found.keys()]
    problems += [f"{name} is not part of this model" for name in found.keys() - expected.keys()]
    problems += [
        f"{name} has shape {found[name]}, the model has {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if problems:
        raise DamagedFile(f"{stored.file}: is of another architecture: {'; '.join(sorted(problems)[:3])}")


def _check_size(config: ModelConfig, directory: Path) -> None:
    """Raises ValueError, before anything is built, unless the files hold this model and it fits into memory."""
    if is_adapter(directory):
        directory = base_of(directory)
        config = read_config(directory)  # which may have fewer token ids
    family = _family(directory)[0]
    stored = weight_files.describe(directory, family.current)
    if config.num_hidden_layers > len(stored.shapes):
        sizes = f"{len(stored.shapes):,} tensors, and config.json says {config.num_hidden_layers:,} layers"
        raise DamagedFile(f"{stored.file}: is of another architecture: it holds {sizes}")
    try:
        lm = on_meta(config)
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise DamagedFile(f"{directory / 'config.json'}: no such model can be built: {reason}") from None
    if config.num_experts and 2 * lm.num_parameters() > stored.bytes:  # a tensor for each of 100,000 experts takes long
        sizes = f"{stored.bytes:,} bytes, and config.json says {lm.num_parameters():,} parameters"
        raise DamagedFile(f"{stored.file}: is of another architecture: it holds {sizes}")
    _check_tensors(lm, stored, family)
    needed, there = 4.0 * lm.num_parameters() + stored.bytes, psutil.virtual_memory().available
    if needed > there:
        sizes = f"{needed / 1e9:.1f} GB to be loaded, and {there / 1e9:.1f} GB of RAM are free"
        raise DamagedFile(f"{stored.file}: holds {lm.num_parameters():,} parameters, which need {sizes}")


def _stored_names(lm: LanguageModel) -> list[str]:
    """The tensors of a model, a tied matrix once, as transformers stores it."""
    return [name for name in lm.state_dict() if not (lm.config.tie_word_embeddings and name == "lm_head.weight")]


def read_config(directory: Path) -> ModelConfig:
    """config.json -> ModelConfig. Raises ValueError for an architecture that Headlight does not build.

    The tokens that end a text are those of generation_config.json where that has some, as in transformers. peft writes
    no config.json beside adapters: theirs is the base's.
    """
    if is_adapter(directory) and not is_file(directory / "config.json"):
        return read_config(base_of(directory))
    check_files(directory, "config.json", "generation_config.json")
    family, fields = _family(directory)
    file = directory / "generation_config.json"
    ends = read_json(file, Generation).eos_token_id if file.is_file() else None
    return family.read(fields if ends is None else fields | {"eos_token_id": ends}, directory / "config.json")


def _family(directory: Path) -> tuple[Family, dict[str, Any]]:
    """The family of a model directory, and its config.json."""
    file = directory / "config.json"
    fields = read_json(file)
    model_type = fields.get("model_type")
    families = readable()
    if not isinstance(model_type, str) or model_type not in families:
        raise DamagedFile(f"{file}: model_type is {model_type!r:.60}; Headlight builds {', '.join(families)}")
    return families[model_type], fields


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
