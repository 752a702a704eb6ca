"""What is an architecture of transformers, and how is a ModelConfig spelled in its config.json?

Every field for which transformers has a default is written out, because a missing one is silently wrong there. A field
that transformers reads and Headlight does not build is refused by name; one that transformers ignores is ignored here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from configs.files import DamagedFile, checked
from model.config import LayerType, ModelConfig

if TYPE_CHECKING:
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
ONE_VALUE = {  # with another value transformers computes what Headlight does not build
    "is_causal": True, "is_encoder_decoder": False, "quantization_config": None, "compression_config": None,
    "per_layer_config": None, "fusion_config": None, "transformers_weights": None,
}  # fmt: skip
FULL = ("partial_rotary_factor", 1.0)  # RoPE turns all numbers of a head
Fields = dict[str, Any]
Tensors = dict[str, "Tensor"]
Length = Annotated[int, Field(ge=1, lt=1 << 31)]


class ConfigJson(BaseModel):
    """The fields that must be there, and those that are translated. The others go to ModelConfig, which checks them.

    A default is the one that transformers takes for a field that is left out; Family.defaults has exceptions.
    """

    model_config = ConfigDict(extra="allow")

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: Annotated[int, Field(ge=1, le=10_000)]
    num_attention_heads: int
    num_key_value_heads: int | None = None
    max_position_embeddings: Length
    tie_word_embeddings: bool = False
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    original_max_position_embeddings: Length | None = None
    layer_types: list[LayerType] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 28
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Annotated[int, Field(ge=1)] = 4
    num_experts: Annotated[int, Field(ge=0, le=100_000)] | None = None
    num_local_experts: Annotated[int, Field(ge=0, le=100_000)] | None = None
    first_k_dense_replace: int = 0
    headlight: dict[str, Any] = {}  # what Headlight writes for itself


@dataclass(frozen=True)
class Family:
    """One architecture of transformers.

    model_type, architecture: its names in config.json.
    Of PARTS it has the default, but for these: needs: fields of ModelConfig that have one value here. words: fields
    that may have any value and have the same name in config.json. spells: fields that may have any value, in words of
    its own, which `write_own` and `read_own` know; `read_own` gets the fields of ConfigJson and all others.
    slides: where layer_types is missing, whether a layer has the sliding window: (layer, fields) -> bool. None: the
    family has no windows. switch: a window counts only where use_sliding_window is true.
    defaults: what transformers takes for a field of config.json that is left out, if ConfigJson says otherwise.
    fixed: fields of config.json that can have one value only, because Headlight builds nothing else.
    to_files, from_files: the tensors of LanguageModel by name -> those of this family's files, and back.
    current: the name of a tensor in a file -> its name today; None for one that is not a weight.
    """

    model_type: str
    architecture: str
    needs: Fields = field(default_factory=dict)
    words: tuple[str, ...] = ()
    spells: tuple[str, ...] = ()
    slides: Callable[[int, Fields], bool] | None = None
    switch: bool = True
    defaults: Fields = field(default_factory=dict)
    fixed: Fields = field(default_factory=lambda: {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False})
    write_own: Callable[[ModelConfig], Fields] = lambda config: {}
    read_own: Callable[[Fields], Fields] = lambda there: {}
    to_files: Callable[[Tensors], Tensors] = dict
    from_files: Callable[[Tensors], Tensors] = dict
    current: Callable[[str], str | None] = str

    def differences(self, config: ModelConfig) -> Fields:
        """The fields that would have to be otherwise, each with the value that this family has; {} if it can be it."""
        free = (*self.words, *self.spells, "sliding_window" if self.slides else "")
        wanted = {key: value for key, value in PLAIN.items() if key not in free} | self.needs
        return {key: value for key, value in wanted.items() if getattr(config, key) != value}

    def write(self, config: ModelConfig) -> Fields:
        """The config.json of a model, in the spelling of transformers 4 and 5."""
        values = config.model_dump(include={*SAME_NAME, *self.words, "layer_types"})
        rope: Fields = config.rope_scaling.written() if config.rope_scaling is not None else {"rope_type": "default"}
        rope["rope_theta"] = config.rope_theta
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **self.fixed,
            **values,
            "rope_theta": config.rope_theta,
            "rope_parameters": rope,
            "rope_scaling": rope if config.rope_scaling is not None else None,  # transformers 4 reads this one
            **(_write_window(config) if self.slides else {}),
            **self.write_own(config),
            "headlight": {"hidden_dropout": config.hidden_dropout},
        }

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        """The inverse of `write`; also reads what transformers writes. Raises DamagedFile."""
        self.check_fixed(fields, file)
        there = checked(self.defaults | fields, str(file), ConfigJson).model_dump()
        values: Fields = {"num_key_value_heads": "mha"}  # what transformers takes where none is named
        values |= {name: there[name] for name in (*SAME_NAME, *self.words) if there.get(name) is not None}
        try:
            own = self.read_own(there)
            values |= self.needs | there["headlight"] | _read_rope(there) | self._read_window(there) | own
        except ValueError as error:
            raise DamagedFile(f"{file}: {error}") from None
        return checked(values, str(file), ModelConfig)

    def check_fixed(self, fields: Fields, file: Path) -> None:
        """Raises DamagedFile for a field that can have one value only, and has another."""
        for name, wanted in (ONE_VALUE | self.fixed).items():
            value = fields.get(name, wanted)
            if name not in self.words and (type(value) is not type(wanted) or value != wanted):
                raise DamagedFile(f"{file}: {name} is {value!r:.60}; Headlight builds {wanted!r} only")

    def _read_window(self, there: Fields) -> Fields:
        """sliding_window and layer_types of ModelConfig."""
        window, types, layers = there["sliding_window"], there["layer_types"], there["num_hidden_layers"]
        if types is not None and len(types) != layers:
            raise ValueError(f"layer_types has {len(types)} entries for {layers} layers")
        if self.slides is None:  # such a window is used by one part of transformers and ignored by another
            if window is not None or "sliding_attention" in (types or []):
                raise ValueError("sliding_window and layer_types say that there are windows; this model_type has none")
            return {}
        if self.switch and not there["use_sliding_window"]:
            window = None
        if types is None:
            slides = [window is not None and self.slides(layer, there) for layer in range(layers)]
            types = ["sliding_attention" if each else "full_attention" for each in slides]
        if "sliding_attention" not in types:
            return {}
        if window is None:
            raise ValueError("layer_types has sliding_attention, and no sliding_window is in use")
        return {"sliding_window": window, "layer_types": types}


def _write_window(config: ModelConfig) -> Fields:
    """transformers forgets the window unless use_sliding_window is true; layer_types decides which layers have it.

    vLLM has one window for all layers; it refuses a model with mixed layer_types only if max_window_layers is not the
    number of layers, and computes wrongly otherwise.
    """
    types = config.layer_types or []
    first = types.index("sliding_attention") if "sliding_attention" in types else config.num_hidden_layers
    return {
        "use_sliding_window": config.sliding_window is not None,
        "sliding_window": config.sliding_window,
        "max_window_layers": first,  # how many layers are full before the first that slides
    }


def _read_rope(there: Fields) -> Fields:
    """rope_theta and rope_scaling from `rope_scaling` (transformers 4; it wins in 5 too) or `rope_parameters` (5)."""
    rope = dict(there["rope_scaling"] or there["rope_parameters"] or {})
    of_4, theta = rope.pop("type", "default"), rope.pop("rope_theta", None)
    kind = rope.pop("rope_type", of_4)
    for place, name, wanted in ((rope, "truncate", True), (rope, *FULL), (there, *FULL)):
        if place.pop(name, None) not in (None, wanted):
            raise ValueError(f"rope_parameters: Headlight builds {name} {wanted} only")
    rope = {key: value for key, value in rope.items() if value is not None}
    theta = there["rope_theta"] if theta is None else theta
    values: Fields = {} if theta is None else {"rope_theta": theta}
    if kind in ("yarn", "llama3"):
        length = there["original_max_position_embeddings"] or rope.get("original_max_position_embeddings")
        rope["original_max_position_embeddings"] = length or there["max_position_embeddings"]
    elif kind == "default" and rope:
        raise ValueError(f"rope_parameters has {min(rope)!r:.60}, which its rope_type has not")
    return values if kind == "default" else values | {"rope_scaling": {"rope_type": kind, **rope}}
