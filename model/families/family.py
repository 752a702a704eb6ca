"""What is an architecture of transformers, and how is a ModelConfig spelled in its config.json?

Every field for which transformers has a default is written out, because a missing one is silently wrong there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from configs.files import DamagedFile, checked
from model.config import ModelConfig
from model.saving.config_json import ConfigJson, Rope

if TYPE_CHECKING:  # torch takes seconds to import, and a mistake in a YAML file should not
    from torch import Tensor

SAME_NAME = (  # the same name and the same values in every config.json
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
    "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip
PARTS = (  # that not every architecture has: a family that does not name one has the default
    "gated_mlp", "hidden_act", "mlp_bias", "num_experts", "attention", "qk_norm", "attention_bias", "qkv_bias",
    "scale_attn_weights", "norm_position", "position_embedding", "no_rope_layers", "sliding_window", "norm",
    "loadable_elsewhere",
)  # fmt: skip
PLAIN = {key: ModelConfig.model_fields[key].default for key in PARTS}
Fields = dict[str, Any]
Tensors = dict[str, "Tensor"]


def read_no_windows(there: ConfigJson) -> Fields:
    """A window that the family does not know is used by one part of transformers and ignored by another."""
    if there.sliding_window is not None or "sliding_attention" in (there.layer_types or []):
        raise ValueError("sliding_window and layer_types say that there are windows, and this model_type has none")
    return {}


@dataclass(frozen=True)
class Family:
    """One architecture of transformers.

    model_type, architecture: its names in config.json.
    Of PARTS it has the default, but for these: needs: fields of ModelConfig that have
    one value here. words: fields that may have any value and have the same name in config.json. spells: fields that
    may have any value, in words of its own, which `write_own` and `read_own` know.
    defaults: what transformers takes for a field of config.json that is left out, if ConfigJson says otherwise.
    fixed: fields of config.json that can have one value only, because Headlight builds nothing else.
    to_files, from_files: the tensors of LanguageModel by name -> those of this family's files, and back.
    current: the name of a tensor in a file -> its name today; None for one that is not a weight.
    transposed: whether the layers of transformers store and multiply matrices as GPT-2's do (model/linear.py).
    """

    model_type: str
    architecture: str
    needs: Fields = field(default_factory=dict)
    words: tuple[str, ...] = ()
    spells: tuple[str, ...] = ()
    defaults: Fields = field(default_factory=dict)
    fixed: Fields = field(default_factory=lambda: {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False})
    write_own: Callable[[ModelConfig], Fields] = lambda config: {}
    read_own: Callable[[ConfigJson], Fields] = read_no_windows
    to_files: Callable[[Tensors], Tensors] = dict
    from_files: Callable[[Tensors], Tensors] = dict
    current: Callable[[str], str | None] = str
    transposed: bool = False

    def differences(self, config: ModelConfig) -> Fields:
        """The fields that would have to be otherwise, each with the value that this family has; {} if it can be it."""
        wanted = {key: value for key, value in PLAIN.items() if key not in (*self.words, *self.spells)} | self.needs
        return {key: value for key, value in wanted.items() if getattr(config, key) != value}

    def write(self, config: ModelConfig) -> Fields:
        """The config.json of a model, in the spelling of transformers 4 and 5."""
        values = config.model_dump()
        rope: Fields = {"rope_type": "default"}
        if config.rope_scaling is not None:
            rope = config.rope_scaling.written()
        rope["rope_theta"] = config.rope_theta
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **{name: values[name] for name in SAME_NAME},
            **self.one_value,
            **{name: values[name] for name in self.words},
            "rope_theta": config.rope_theta,
            "rope_parameters": rope,
            "rope_scaling": rope if config.rope_scaling is not None else None,  # transformers 4 reads this one
            "layer_types": config.layer_types,
            **self.write_own(config),
            "initializer_range": 0.02,
            "pretraining_tp": 1,
            "use_cache": True,
            "dtype": "float32",
            "torch_dtype": "float32",
            "headlight": {"hidden_dropout": config.hidden_dropout},
        }

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        """The inverse of `write`; also reads what transformers writes. Raises ValueError that names the file."""
        for name, wanted in self.one_value.items():
            value = fields.get(name, wanted)
            if type(value) is not type(wanted) or value != wanted:
                raise DamagedFile(f"{file}: {name} is {value!r:.60}; Headlight builds {wanted!r} only")
        there: ConfigJson = checked(self.defaults | fields, str(file), ConfigJson)
        try:
            names = (*SAME_NAME, *self.words)
            values: Fields = {"num_key_value_heads": "mha"}  # what transformers takes where none is named
            values |= {name: value for name in names if (value := getattr(there, name)) is not None} | self.needs
            values |= there.headlight.model_dump() | _read_rope(there) | self.read_own(there)
        except ValueError as error:
            raise DamagedFile(f"{file}: {error}") from None
        return model_config(values, file)

    @property
    def one_value(self) -> Fields:
        """`fixed`, without what this family can have in any value."""
        return {name: value for name, value in self.fixed.items() if name not in self.words}


def model_config(values: Fields, file: Path) -> ModelConfig:
    """The ModelConfig that a file describes. Raises ValueError that names the file and the field."""
    try:
        return ModelConfig(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        raise DamagedFile(f"{file}: {f'{where}: ' if where else ''}{message}") from None


def _read_rope(there: ConfigJson) -> Fields:
    """rope_theta and rope_scaling from `rope_scaling` (transformers 4; it wins in 5 too) or `rope_parameters` (5)."""
    given = (there.rope_scaling, there.rope_parameters)
    rope = next((each for each in given if each is not None and each.model_fields_set), Rope())
    scaling = rope.model_dump(exclude_none=True, exclude={"rope_theta", "partial_rotary_factor", "truncate"})
    values: Fields = {"rope_theta": float(rope.rope_theta or there.rope_theta or 10000.0)}
    if rope.rope_type in ("yarn", "llama3"):
        length = there.original_max_position_embeddings or rope.original_max_position_embeddings
        scaling["original_max_position_embeddings"] = length or there.max_position_embeddings
    elif len(scaling) > 1 and rope.rope_type == "default":
        raise ValueError(f"rope_parameters has {max(scaling.keys() - {'rope_type'})!r}, which its rope_type has not")
    return values if rope.rope_type == "default" else values | {"rope_scaling": scaling}


def alike(window: int | None, layers: int) -> list[str]:
    """A kind for each layer: all slide where there is a window, and none where there is none."""
    return ["full_attention" if window is None else "sliding_attention"] * layers


def windows(window: int | None, types: list[str]) -> Fields:
    """The two fields of ModelConfig."""
    if "sliding_attention" not in types:
        return {}
    if window is None:
        raise ValueError("layer_types has sliding_attention, and no sliding_window is in use")
    return {"sliding_window": window, "layer_types": types}
