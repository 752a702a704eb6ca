"""The base class of an architecture: its spelling in config.json, and its tensors in files.

Every field for which transformers has a default is written out, because transformers would fill
in its own value silently.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from configs.files import DamagedFile, checked
from model.config import ModelConfig

# These have the same name and the same values in every config.json.
SAME_NAME = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
    "tie_word_embeddings", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip
Fields = dict[str, Any]
Tensors = dict[str, Tensor]
Count = Annotated[int, Field(ge=0, le=100_000)]


class ConfigJson(BaseModel):
    """The fields that are required or translated. ModelConfig checks the others."""

    model_config = ConfigDict(extra="allow")

    # A default is the value that transformers takes for a missing field. Family.defaults has the
    # exceptions.
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: Annotated[int, Field(ge=1, le=10_000)]
    num_attention_heads: int
    max_position_embeddings: Annotated[int, Field(ge=1, lt=1 << 31)]
    rope_theta: float | None = None
    rope_parameters: Fields | None = None
    rope_scaling: Fields | None = None
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 28
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Annotated[int, Field(ge=1)] = 4
    num_experts: Count | None = None
    num_local_experts: Count | None = None
    first_k_dense_replace: int = 0
    # Headlight's own fields, which transformers ignores
    headlight: Fields = {}


def current_name(name: str) -> str | None:
    """Return the present name of a tensor in an old file; None if it is not a weight."""
    if name.endswith("rotary_emb.inv_freq"):  # old Llama files store RoPE's frequencies
        return None
    if name.startswith(("layers.", "embed_tokens.", "norm.")):  # saved without its head
        return f"model.{name}"
    return name


@dataclass(frozen=True)
class Family:
    """One architecture of transformers."""

    model_type: str
    architecture: str
    # fields of ModelConfig that have one value here
    needs: Fields = field(default_factory=dict)
    # fields of ModelConfig that may have any value, under the same name in config.json
    free: tuple[str, ...] = ()
    # fields of ModelConfig whose value here depends on the others
    follows: Callable[[ModelConfig], Fields] = lambda config: {}
    # (layer, fields of a file without layer_types) -> True for a layer with a window; None if the
    # family has no windows
    slides: Callable[[int, Fields], bool] | None = None
    # a window counts only if use_sliding_window is true
    switch: bool = True
    # values that transformers takes for missing fields, if ConfigJson has another one
    defaults: Fields = field(default_factory=dict)
    # fields of config.json with the only value that Headlight builds
    fixed: Fields = field(
        default_factory=lambda: {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    )
    # fields of config.json with other names than ModelConfig's, and the inverse
    write_own: Callable[[ModelConfig], Fields] = lambda config: {}
    read_own: Callable[[Fields], Fields] = lambda fields: {}
    # LanguageModel's tensors by name -> the tensors of this family's files, and the inverse
    to_files: Callable[[Tensors], Tensors] = dict
    from_files: Callable[[Tensors], Tensors] = dict
    # the name of a tensor in a file -> its present name; None if it is not a weight
    current: Callable[[str], str | None] = current_name

    def write(self, config: ModelConfig) -> Fields:
        """Return the config.json of a model, in the spelling of transformers 4 and 5."""
        fields: Fields = {"architectures": [self.architecture], "model_type": self.model_type}
        fields |= self.fixed
        fields |= config.model_dump(include={*SAME_NAME, *self.free, "layer_types"})
        scaling = config.rope_scaling
        rope: Fields = {"rope_type": "default"} if scaling is None else scaling.written()
        rope["rope_theta"] = config.rope_theta
        fields["rope_theta"] = config.rope_theta
        fields["rope_parameters"] = rope
        fields["rope_scaling"] = rope if scaling else None  # transformers 4 reads this one
        if self.slides:
            # without use_… transformers forgets the window; layer_types decides for each layer
            fields["use_sliding_window"] = bool(config.sliding_window)
            fields["sliding_window"] = config.sliding_window
            # note: vLLM has one window for all layers. It refuses mixed layer_types unless this is
            # the number of layers, and then computes wrong numbers. So count the full ones in front
            types = [*(config.layer_types or []), "sliding_attention"]
            fields["max_window_layers"] = types.index("sliding_attention")
        fields |= self.write_own(config)
        fields["headlight"] = {"hidden_dropout": config.hidden_dropout}
        return fields

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        """Return the model of a config.json from here or from transformers. Raises DamagedFile."""
        # fill in transformers' defaults first: a missing field has a value there
        fields = checked(self.defaults | fields, str(file), ConfigJson).model_dump()
        values: Fields = {"num_key_value_heads": "mha"}  # transformers' default
        for name in (*SAME_NAME, *self.free):
            if fields.get(name) is not None:
                values[name] = fields[name]
        try:
            own = self.read_own(fields)  # first, because SmolLM3's completes no_rope_layers
            values |= self.needs | fields["headlight"]
            values |= _read_rope(fields) | self._read_window(fields) | own
        except ValueError as error:
            raise DamagedFile(f"{file}: {error}") from None
        return checked(values, str(file), ModelConfig)

    def _read_window(self, fields: Fields) -> Fields:
        window = fields["sliding_window"]
        types = fields["layer_types"]
        layers = fields["num_hidden_layers"]
        if types is not None and len(types) != layers:
            raise ValueError(f"layer_types has {len(types)} entries for {layers} layers")
        if self.slides is None:
            # one part of transformers would use such a window, another would ignore it
            if window is not None or "sliding_attention" in (types or []):
                raise ValueError("sliding_window, layer_types: windows; this model_type has none")
            return {}
        if self.switch and not fields["use_sliding_window"]:
            window = None
        if types is None:
            types = ["full_attention"] * layers
            for layer in range(layers):
                if window is not None and self.slides(layer, fields):
                    types[layer] = "sliding_attention"
        if "sliding_attention" not in types:
            return {}
        return {"sliding_window": window, "layer_types": types}


def _read_rope(fields: Fields) -> Fields:
    """Read rope_scaling (transformers 4; it also wins in 5) or rope_parameters (5)."""
    rope = dict(fields["rope_scaling"] or fields["rope_parameters"] or {})
    theta = rope.pop("rope_theta", None)
    if theta is None:
        theta = fields["rope_theta"]
    old_kind = rope.pop("type", "default")
    kind = rope.pop("rope_type", old_kind)
    if rope.pop("truncate", None) not in (None, True):
        raise ValueError("rope_parameters: Headlight builds truncate True only")
    key = "partial_rotary_factor"  # RoPE turns all numbers of a head
    for factor in (rope.pop(key, None), fields.get(key)):
        if factor not in (None, 1.0):
            raise ValueError(f"rope_parameters: Headlight builds {key} 1.0 only")
    values: Fields = {} if theta is None else {"rope_theta": theta}
    rope = {key: value for key, value in rope.items() if value is not None}
    if kind == "default":
        if rope:
            raise ValueError(
                f"rope_parameters: {min(rope)!r:.60} does not belong to rope_type default"
            )
        return values
    if kind in ("yarn", "llama3"):
        key = "original_max_position_embeddings"
        rope[key] = fields.get(key) or rope.get(key) or fields["max_position_embeddings"]
    values["rope_scaling"] = {"rope_type": kind, **rope}
    return values
