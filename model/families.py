"""Which Hugging Face architecture is a model, and what can that architecture express?

A config is written as the first family in FAMILIES that can express it. To add an architecture, write a `Family` and
add it there. Every field for which transformers has a default is written out, because a missing one is silently wrong
there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.meaning import Meaning, keys_that
from model.config import ModelConfig

SAME_NAME = keys_that(ModelConfig, Meaning.SAME_NAME)
Fields = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """One architecture of transformers.

    model_type, architecture: its names in config.json. needs: the values that fields of ModelConfig must have.
    fixed: fields of config.json that can have one value only, because Headlight builds nothing else.
    write_windows, read_windows: sliding windows in its spelling, from a ModelConfig and from config.json.
    rename: the name of a parameter of LanguageModel -> its name in this family's files.
    """

    model_type: str
    architecture: str
    needs: Fields
    fixed: Fields = field(default_factory=lambda: {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False})
    write_windows: Callable[[ModelConfig], Fields] = lambda config: {}
    read_windows: Callable[[Fields], Fields] = lambda fields: {}
    rename: Callable[[str], str] = str

    def cannot_express(self, config: ModelConfig) -> str | None:
        """The first field that this family has no word for; None if it can be this model."""
        different = [key for key, value in self.needs.items() if getattr(config, key) != value]
        return f"it has {different[0]} {self.needs[different[0]]!r} only" if different else None

    def write(self, config: ModelConfig) -> Fields:
        """The config.json of a model, in the spelling of transformers 4 and 5."""
        values = config.model_dump()
        rope: Fields = {"rope_type": "default"}
        if (scaling := config.rope_scaling) is not None:
            linear = {"rope_type", "factor"} if scaling.rope_type == "linear" else None  # its other keys are yarn's
            rope = scaling.model_dump(include=linear, exclude_none=True)
        rope["rope_theta"] = config.rope_theta
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **{name: values[name] for name in SAME_NAME},
            **self.fixed,
            "rope_theta": config.rope_theta,
            "rope_parameters": rope,
            "rope_scaling": rope if config.rope_scaling is not None else None,  # transformers 4 reads this one
            "layer_types": config.layer_types,
            **self.write_windows(config),
            "initializer_range": 0.02,
            "pretraining_tp": 1,
            "use_cache": True,
            "dtype": "float32",
            "torch_dtype": "float32",
            "headlight": {"hidden_dropout": config.hidden_dropout},
        }

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        """The inverse of `write`; also reads what transformers writes. Raises ValueError that names the file."""
        for name, wanted in self.fixed.items():
            if fields.get(name, wanted) != wanted:
                raise ValueError(f"{file}: {name} is {fields[name]!r}; Headlight builds {wanted!r} only")
        values = {name: fields[name] for name in SAME_NAME if fields.get(name) is not None} | self.needs
        if isinstance(fields.get("headlight"), dict):
            values |= fields["headlight"]
        values |= _read_rope(fields, file) | self.read_windows(fields)
        try:
            return ModelConfig(**values)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            raise ValueError(f"{file}: {where}: {problem['msg'].removeprefix('Value error, ')}") from None


def _read_rope(fields: Fields, file: Path) -> Fields:
    """rope_theta and rope_scaling from `rope_scaling` (transformers 4; it wins in 5 too) or `rope_parameters` (5)."""
    rope = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"{file}: rope_parameters is {rope!r}, not a table of keys and values")
    rope = dict(rope)
    values: Fields = {"rope_theta": float(rope.pop("rope_theta", None) or fields.get("rope_theta") or 10000.0)}
    rope_type = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    if rope_type not in ("default", "linear", "yarn"):
        raise ValueError(f"{file}: rope_type is {rope_type!r}; Headlight builds default, linear or yarn")
    for name, wanted in {"partial_rotary_factor": 1.0, "truncate": True}.items():
        if rope.pop(name, wanted) != wanted:
            raise ValueError(f"{file}: {name} is not {wanted!r}, and Headlight builds nothing else")
    if rope_type == "default" and rope:
        raise ValueError(f"{file}: rope_parameters has {sorted(rope)[0]!r}, which is unknown to Headlight")
    if rope_type != "default":
        if rope_type == "yarn":
            rope.setdefault("original_max_position_embeddings", fields.get("max_position_embeddings"))
        numbers = {k: float(v) if isinstance(v, int) and k[:8] != "original" else v for k, v in rope.items()}
        values["rope_scaling"] = {"rope_type": rope_type, **numbers}
    return values


def _qwen3_windows(config: ModelConfig) -> Fields:
    """transformers forgets the window unless use_sliding_window is true."""
    return {
        "use_sliding_window": config.sliding_window is not None,
        "sliding_window": config.sliding_window,
        "max_window_layers": config.num_hidden_layers,  # layer_types decides; this must not contradict it
    }


def _read_qwen3_windows(fields: Fields) -> Fields:
    """Without layer_types, the layers from max_window_layers on slide, 28 being transformers' default."""
    window, layers = fields.get("sliding_window"), fields.get("num_hidden_layers", 0)
    if window is None or not fields.get("use_sliding_window", False):
        return {}
    full = fields.get("max_window_layers", 28)
    types = fields.get("layer_types") or ["full_attention" if i < full else "sliding_attention" for i in range(layers)]
    return {"sliding_window": window, "layer_types": types} if "sliding_attention" in types else {}


def _ministral_windows(config: ModelConfig) -> Fields:
    """layer_types, which every family writes, says where the window is."""
    return {"sliding_window": config.sliding_window}


def _read_ministral_windows(fields: Fields) -> Fields:
    """Without layer_types every layer slides."""
    window, layers = fields.get("sliding_window"), fields.get("num_hidden_layers", 0)
    types = fields.get("layer_types") or ["sliding_attention"] * layers
    return {"sliding_window": window, "layer_types": types} if window and "sliding_attention" in types else {}


# No QK-norm, no sliding window; the widest support elsewhere (llama.cpp, vLLM, …).
# Touvron et al. 2023 (arXiv 2302.13971); Grattafiori et al. 2024 (2407.21783).
LLAMA = Family("llama", "LlamaForCausalLM", needs={"qk_norm": False, "sliding_window": None})
# QK-norm on every head, and sliding windows in any of the layers. Yang et al. 2025 (arXiv 2505.09388).
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    needs={"qk_norm": True},
    write_windows=_qwen3_windows,
    read_windows=_read_qwen3_windows,
)
# No QK-norm, and sliding windows in any of the layers. Not `mistral`, which has a window in all layers or in none.
# Jiang et al. 2023 (arXiv 2310.06825).
MINISTRAL = Family(
    "ministral",
    "MinistralForCausalLM",
    needs={"qk_norm": False},
    write_windows=_ministral_windows,
    read_windows=_read_ministral_windows,
)
FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA, QWEN3, MINISTRAL)}


def family_of(config: ModelConfig) -> Family:
    """The family that a model is saved as. Raises ValueError, with each family's reason, if none can express it."""
    reasons = []
    for family in FAMILIES.values():
        reason = family.cannot_express(config)
        if reason is None:
            return family
        reasons.append(f"{family.model_type}: {reason}")
    raise ValueError(f"no Hugging Face architecture that Headlight writes can be this model ({'; '.join(reasons)})")
