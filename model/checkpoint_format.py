"""Weights + config.json: a saved model directory IS a Hugging Face model directory.

    qk_norm: true -> qwen3      qk_norm: false -> llama, or ministral if any layer has a sliding window

Parameter names and the order of operations are transformers', so nothing is converted and
`AutoModelForCausalLM.from_pretrained(dir)` gives identical logits. Every field that those architectures have a
default for is written out, because a missing one is silently wrong there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.config import ModelConfig
from model.transformer import LanguageModel

ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM", "ministral": "MinistralForCausalLM"}
SAME_NAME = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "max_position_embeddings rms_norm_eps tie_word_embeddings attention_dropout bos_token_id eos_token_id pad_token_id"
).split()


def save(lm: LanguageModel, directory: str | Path, weights: dict[str, Tensor] | None = None) -> None:
    """Write model.safetensors, config.json and generation_config.json. The directory is made if needed.

    weights: the state_dict of a model whose parameters are spread over several processes, put together.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = to_hugging_face(lm.config)
    config["dtype"] = config["torch_dtype"] = str(next(lm.parameters()).dtype).removeprefix("torch.")
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", tokens)
    weights = lm.state_dict() if weights is None else weights
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    if lm.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)  # one matrix, stored once, as transformers does
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def load(path: str | Path, device: str | torch.device = "cpu") -> LanguageModel:
    """Load a run (its newest checkpoint) or a checkpoint directory, in evaluation mode.

    Raises ValueError that names the file for anything that is not such a directory or does not fit.
    """
    directory = checkpoint_directory(path)
    config = read_config(directory)
    lm = LanguageModel(config)
    load_weights(lm, directory)
    return lm.to(device).eval()


def load_weights(lm: LanguageModel, directory: Path) -> None:
    """Copy model.safetensors into a model; every tensor must be there and fit, and none may be left over."""
    lm.load_state_dict(read_weights(lm, directory), strict=not lm.config.tie_word_embeddings)


def read_weights(lm: LanguageModel, directory: Path) -> dict[str, Tensor]:
    """model.safetensors, checked against a model; with tied embeddings there is no lm_head. Raises ValueError."""
    file = directory / "model.safetensors"
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from None
    expected = {name: tensor.shape for name, tensor in lm.state_dict().items()}
    if lm.config.tie_word_embeddings:
        expected.pop("lm_head.weight")
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


def checkpoint_directory(path: str | Path) -> Path:
    """The directory that holds config.json: `path` itself, or the newest checkpoint of the run at `path`."""
    path = Path(path)
    if (path / "config.json").is_file():
        return path
    latest = path / "checkpoints" / "latest"
    if latest.is_file():
        newest = latest.parent / latest.read_text(encoding="utf-8").strip()
        if not (newest / "config.json").is_file():
            raise ValueError(f"{latest}: names {newest.name}, which is not there: give a checkpoint directory instead")
        return newest
    raise ValueError(f"{path}: is neither a run (checkpoints/latest) nor a model directory (config.json)")


def read_config(directory: Path) -> ModelConfig:
    """config.json -> ModelConfig. Raises ValueError for an architecture that Headlight does not build."""
    file = directory / "config.json"
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from None
    return from_hugging_face(fields, file)


def to_hugging_face(config: ModelConfig) -> dict[str, Any]:
    """The config.json of a model: every field written out, in the spelling of transformers 4 and 5."""
    slides = config.sliding_window is not None
    model_type = "qwen3" if config.qk_norm else "ministral" if slides else "llama"
    values = config.model_dump()
    rope = _rope_parameters(config)
    return {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        **{name: values[name] for name in SAME_NAME},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": config.rope_theta,
        "rope_parameters": rope,
        "rope_scaling": rope if config.rope_scaling is not None else None,  # transformers 4 reads this one
        "layer_types": config.layer_types,
        "use_sliding_window": slides,
        "sliding_window": config.sliding_window,
        "max_window_layers": config.num_hidden_layers,  # layer_types says which; this only must not contradict it
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "use_cache": True,
        "dtype": "float32",
        "torch_dtype": "float32",
        "headlight": {"hidden_dropout": config.hidden_dropout},
    }


def _rope_parameters(config: ModelConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": config.rope_theta}
    if scaling.rope_type == "linear":
        return {"rope_type": "linear", "factor": scaling.factor, "rope_theta": config.rope_theta}
    return {**scaling.model_dump(exclude_none=True), "rope_theta": config.rope_theta}


def from_hugging_face(fields: dict[str, Any], file: Path) -> ModelConfig:
    """The inverse of `to_hugging_face`; also reads what transformers writes for these architectures."""
    if not isinstance(fields, dict):
        raise ValueError(f"{file}: is not the config of a model")
    model_type = fields.get("model_type")
    if model_type not in ARCHITECTURES:
        raise ValueError(f"{file}: model_type is {model_type!r}; Headlight builds {', '.join(ARCHITECTURES)}")
    for name, wanted in {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}.items():
        if fields.get(name, wanted) != wanted:
            raise ValueError(f"{file}: {name} is {fields[name]!r}; Headlight builds {wanted!r} only")
    values = {name: fields[name] for name in SAME_NAME if fields.get(name) is not None}
    values |= {"qk_norm": model_type == "qwen3"}
    if isinstance(fields.get("headlight"), dict):
        values |= fields["headlight"]
    values |= _read_rope(fields, file) | _read_windows(fields)
    try:
        return ModelConfig(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{file}: {where}: {problem['msg'].removeprefix('Value error, ')}") from None


def _read_rope(fields: dict[str, Any], file: Path) -> dict[str, Any]:
    """rope_theta and rope_scaling from `rope_scaling` (transformers 4; it wins in 5 too) or `rope_parameters` (5)."""
    rope = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"{file}: rope_parameters is {rope!r}, not a table of keys and values")
    rope = dict(rope)
    values: dict[str, Any] = {"rope_theta": float(rope.pop("rope_theta", None) or fields.get("rope_theta") or 10000.0)}
    rope_type = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    if rope_type not in ("default", "linear", "yarn"):
        raise ValueError(f"{file}: rope_type is {rope_type!r}; Headlight builds default, linear or yarn")
    for name, wanted in {"partial_rotary_factor": 1.0, "truncate": True}.items():
        if rope.pop(name, wanted) != wanted:
            raise ValueError(f"{file}: {name} is not {wanted!r}, and Headlight builds nothing else")
    if rope_type == "default" and rope:
        raise ValueError(f"{file}: rope_parameters has {sorted(rope)[0]!r}, which Headlight does not know")
    if rope_type != "default":
        if rope_type == "yarn":
            rope.setdefault("original_max_position_embeddings", fields.get("max_position_embeddings"))
        numbers = {k: float(v) if isinstance(v, int) and k[:8] != "original" else v for k, v in rope.items()}
        values["rope_scaling"] = {"rope_type": rope_type, **numbers}
    return values


def _read_windows(fields: dict[str, Any]) -> dict[str, Any]:
    """sliding_window and layer_types, by each architecture's own rules for what is missing."""
    window, layers = fields.get("sliding_window"), fields.get("num_hidden_layers", 0)
    unused = fields["model_type"] == "llama" or (
        fields["model_type"] == "qwen3" and not fields.get("use_sliding_window", False)
    )
    if window is None or unused:
        return {}
    types = fields.get("layer_types")
    if types is None:
        full = fields.get("max_window_layers", 28) if fields["model_type"] == "qwen3" else 0
        types = ["full_attention" if i < full else "sliding_attention" for i in range(layers)]
    return {"sliding_window": window, "layer_types": types} if "sliding_attention" in types else {}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
