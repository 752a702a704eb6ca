"""Which Hugging Face architecture is a model, and how is it spelled in its config.json? One table, FAMILIES.

A config is written as the first family that can express it. To add an architecture, add a `Family` to the table.
Logits are transformers' to the last bit (float32, on a CPU), but for gpt2, qwen3_moe and deepseek_v3: within 1e-5.

Every field for which transformers has a default is written out, because a missing one is silently wrong there. A field
that transformers reads and Headlight does not build is refused by name; one that transformers ignores is ignored here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from configs.files import DamagedFile, checked
from model.config import EXPERT_KEYS, LayerType, ModelConfig

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
Fields = dict[str, Any]
Tensors = dict[str, Tensor]
Count = Annotated[int, Field(ge=0, le=100_000)]


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
    max_position_embeddings: Annotated[int, Field(ge=1, lt=1 << 31)]
    rope_theta: float | None = None
    rope_parameters: Fields | None = None
    rope_scaling: Fields | None = None
    layer_types: list[LayerType] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 28
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Annotated[int, Field(ge=1)] = 4
    num_experts: Count | None = None
    num_local_experts: Count | None = None
    first_k_dense_replace: int = 0
    headlight: Fields = {}  # what Headlight writes for itself


def _current(name: str) -> str | None:
    """Return a tensor's name today: old Llama files hold RoPE's frequencies, which are not read, and a model that was
    saved without its head lacks `model.`"""
    if name.endswith("rotary_emb.inv_freq"):
        return None
    return f"model.{name}" if name.startswith(("layers.", "embed_tokens.", "norm.")) else name


@dataclass(frozen=True)
class Family:
    """One architecture of transformers: its names in config.json, and how it differs from PLAIN.

    needs: fields of ModelConfig that have one value here. words: fields that may have any value, under the same name in
    config.json. follows: fields whose value here depends on the others. write_own, read_own: what has other words in
    config.json; `read_own` gets the fields of ConfigJson and all others.
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
    follows: Callable[[ModelConfig], Fields] = lambda config: {}
    slides: Callable[[int, Fields], bool] | None = None
    switch: bool = True
    defaults: Fields = field(default_factory=dict)
    fixed: Fields = field(default_factory=lambda: {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False})
    write_own: Callable[[ModelConfig], Fields] = lambda config: {}
    read_own: Callable[[Fields], Fields] = lambda fields: {}
    to_files: Callable[[Tensors], Tensors] = dict
    from_files: Callable[[Tensors], Tensors] = dict
    current: Callable[[str], str | None] = _current

    def write(self, config: ModelConfig) -> Fields:
        """The config.json of a model, in the spelling of transformers 4 and 5."""
        scaling, names = config.rope_scaling, {"architectures": [self.architecture], "model_type": self.model_type}
        fields = names | self.fixed | config.model_dump(include={*SAME_NAME, *self.words, "layer_types"})
        rope = {"rope_type": "default"} if scaling is None else scaling.written()
        fields["rope_theta"], fields["rope_parameters"] = config.rope_theta, rope | {"rope_theta": config.rope_theta}
        fields["rope_scaling"] = fields["rope_parameters"] if scaling else None  # transformers 4 reads this one
        if self.slides:
            # without use_… transformers forgets the window; layer_types decides which layers have it
            fields["use_sliding_window"], fields["sliding_window"] = bool(config.sliding_window), config.sliding_window
            # How many layers are full before the first that slides. vLLM has one window for all layers. It refuses
            # mixed layer_types only if this is not the number of layers, and computes wrongly otherwise.
            types = [*(config.layer_types or []), "sliding_attention"]
            fields["max_window_layers"] = types.index("sliding_attention")
        return fields | self.write_own(config) | {"headlight": {"hidden_dropout": config.hidden_dropout}}

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        """The inverse of `write`; also reads what transformers writes. Raises DamagedFile."""
        fields = checked(self.defaults | fields, str(file), ConfigJson).model_dump()
        values: Fields = {"num_key_value_heads": "mha"}  # what transformers takes where none is named
        values |= {name: fields[name] for name in (*SAME_NAME, *self.words) if fields.get(name) is not None}
        try:
            own = self.read_own(fields)
            values |= self.needs | fields["headlight"] | _read_rope(fields) | self._read_window(fields) | own
        except ValueError as error:
            raise DamagedFile(f"{file}: {error}") from None
        return checked(values, str(file), ModelConfig)

    def _read_window(self, fields: Fields) -> Fields:
        """sliding_window and layer_types of ModelConfig."""
        window, types, layers = fields["sliding_window"], fields["layer_types"], fields["num_hidden_layers"]
        if types is not None and len(types) != layers:
            raise ValueError(f"layer_types has {len(types)} entries for {layers} layers")
        if self.slides is None:  # such a window is used by one part of transformers and ignored by another
            if window is not None or "sliding_attention" in (types or []):
                raise ValueError("sliding_window and layer_types say that there are windows; this model_type has none")
            return {}
        if self.switch and not fields["use_sliding_window"]:
            window = None
        if types is None:
            slides = [window is not None and self.slides(layer, fields) for layer in range(layers)]
            types = ["sliding_attention" if each else "full_attention" for each in slides]
        return {"sliding_window": window, "layer_types": types} if "sliding_attention" in types else {}


def _read_rope(fields: Fields) -> Fields:
    """rope_theta and rope_scaling from `rope_scaling` (transformers 4; it wins in 5 too) or `rope_parameters` (5)."""
    rope = dict(fields["rope_scaling"] or fields["rope_parameters"] or {})
    theta, old_kind = rope.pop("rope_theta", None), rope.pop("type", "default")
    kind = rope.pop("rope_type", old_kind)
    every_number = ("partial_rotary_factor", 1.0)  # RoPE turns all numbers of a head
    for place, name, wanted in ((rope, "truncate", True), (rope, *every_number), (fields, *every_number)):
        if place.pop(name, None) not in (None, wanted):
            raise ValueError(f"rope_parameters: Headlight builds {name} {wanted} only")
    rope = {key: value for key, value in rope.items() if value is not None}
    theta = fields["rope_theta"] if theta is None else theta
    read: Fields = {} if theta is None else {"rope_theta": theta}
    if kind == "default":
        if rope:
            raise ValueError(f"rope_parameters has {min(rope)!r:.60}, which its rope_type has not")
        return read
    if kind in ("yarn", "llama3"):
        key = "original_max_position_embeddings"
        rope[key] = fields.get(key) or rope.get(key) or fields["max_position_embeddings"]
    return read | {"rope_scaling": {"rope_type": kind, **rope}}


# SmolLM3: layers without RoPE
def _smollm3_follows(config: ModelConfig) -> Fields:
    """Any layers with RoPE; where none has it, positions are not learned either."""
    position = "none" if config.position_embedding == "none" else "rope"
    return {"no_rope_layers": config.no_rope_layers, "position_embedding": position}


def _read_smollm3(fields: Fields) -> Fields:
    """Which layers have RoPE. Without no_rope_layers every fourth has none."""
    layers, every = fields["num_hidden_layers"], fields["no_rope_layer_interval"]
    rotates = fields["no_rope_layers"] or [int((i + 1) % every != 0) for i in range(layers)]
    if len(rotates) < layers:
        raise ValueError(f"no_rope_layers has {len(rotates)} entries for {layers} layers")
    fields["no_rope_layers"] = rotates = rotates[:layers]  # `slides` reads them
    return {"no_rope_layers": rotates} if any(rotates) else {"position_embedding": "none"}


# Qwen3-MoE: Qwen3 with experts in some layers or in all; sliding windows in every layer or in none
OF_EXPERTS = (*EXPERT_KEYS, "norm_topk_prob", "router_aux_loss_coef")


def _experts_follow(config: ModelConfig) -> Fields:
    is_mixed = len(set(config.layer_types or [])) > 1
    return {"num_experts": config.num_experts or 8} | ({"layer_types": ["sliding_attention"]} if is_mixed else {})


def _read_experts(fields: Fields) -> Fields:
    """A window holds for all layers, whatever layer_types says; without experts it is a Qwen3 model."""
    count = fields["num_local_experts"] if fields["num_experts"] is None else fields["num_experts"]
    window = fields["sliding_window"] if fields["use_sliding_window"] else None
    values: Fields = {"num_experts": count or None, "sliding_window": window, "layer_types": None}
    return values if count else values | {key: ModelConfig.model_fields[key].default for key in OF_EXPERTS}


ONE_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def _experts_to_files(tensors: Tensors) -> Tensors:
    """The stacks of experts, gate_up_proj (E, 2, I, D) and down_proj (E, D, I), one expert at a time."""
    files: Tensors = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        stacks: Tensors = {}
        if part == "gate_up_proj":
            stacks = {"gate": tensor[:, 0], "up": tensor[:, 1]}
        elif part == "down_proj":
            stacks = {"down": tensor}
        else:
            files[name] = tensor
        for kind, stack in stacks.items():
            files |= {f"{layer}.{i}.{kind}_proj.weight": matrix for i, matrix in enumerate(stack)}
    return files


def _experts_from_files(files: Tensors) -> Tensors:
    tensors: Tensors = {}
    layers: dict[str, dict[tuple[str, int], Tensor]] = {}
    for name, tensor in files.items():
        if match := ONE_EXPERT.fullmatch(name):
            layers.setdefault(match[1], {})[match[3], int(match[2])] = tensor
        else:
            tensors[name] = tensor
    for layer, parts in layers.items():
        experts = range(len(parts) // 3)
        gate, up, down = (torch.stack([parts[kind, i] for i in experts]) for kind in ("gate", "up", "down"))
        tensors |= {f"{layer}.gate_up_proj": torch.stack((gate, up), dim=1), f"{layer}.down_proj": down}
    return tensors


# DeepSeek-V3: latent attention (MLA). Its layers of experts are not built, every layer is dense here.
def _write_latent(config: ModelConfig) -> Fields:
    """A number of dense layers that leaves none for experts. Here head_dim is what RoPE turns."""
    no_experts = ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group")
    return dict.fromkeys(no_experts, 1) | {
        "head_dim": config.qk_rope_head_dim,
        "first_k_dense_replace": config.num_hidden_layers,
        "moe_intermediate_size": config.intermediate_size,
        "num_nextn_predict_layers": 0,
    }


def _read_latent(fields: Fields) -> Fields:
    """ModelConfig's head_dim follows from the sizes of its two parts."""
    if (dense := fields["first_k_dense_replace"]) < fields["num_hidden_layers"]:
        raise ValueError(f"first_k_dense_replace is {dense}; Headlight builds deepseek_v3 without layers of experts")
    if (head := fields.get("head_dim")) not in (None, rotary := fields["qk_rope_head_dim"]):
        raise ValueError(f"head_dim is {head}; in a deepseek_v3 it is qk_rope_head_dim ({rotary})")
    return {"head_dim": None, "rope_interleave": bool(fields["rope_interleave"])}


# GPT-2: learned positions, LayerNorm, a feed-forward part without a gate, and biases. Names and layout of its own.
GPT2_FIELDS = {  # of config.json -> of ModelConfig
    "n_positions": "max_position_embeddings", "n_embd": "hidden_size", "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads", "n_inner": "intermediate_size", "activation_function": "hidden_act",
    "resid_pdrop": "hidden_dropout", "attn_pdrop": "attention_dropout", "layer_norm_epsilon": "rms_norm_eps",
    **{key: key for key in ("vocab_size", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")},
}  # fmt: skip


GPT2_NAMES = {  # of tensors in transformers -> in Headlight; what is not here has the same name
    "transformer.wte.": "model.embed_tokens.", "transformer.wpe.": "model.embed_positions.",
    "transformer.ln_f.": "model.norm.", "transformer.h.": "model.layers.",
    ".ln_1.": ".input_layernorm.", ".ln_2.": ".post_attention_layernorm.",
    ".attn.c_attn.": ".self_attn.qkv_proj.", ".attn.c_proj.": ".self_attn.o_proj.",
    ".mlp.c_fc.": ".mlp.up_proj.", ".mlp.c_proj.": ".mlp.down_proj.",
}  # fmt: skip
QKV = ("q_proj", "k_proj", "v_proj")
GPT2_MATRIX = re.compile(r"(qkv|o|up|down)_proj\.weight$")


def _gpt2_to_files(tensors: Tensors) -> Tensors:
    """transformers' Conv1D: matrices lie the other way round, (inputs, outputs), and those of queries, keys and values
    side by side. One product in place of three adds up in another order, so logits are equal within 1e-5, not `==`."""
    files: Tensors = {}
    for name, tensor in tensors.items():
        if ".q_proj." in name:
            tensor = torch.cat([tensors[name.replace("q_proj", part)] for part in QKV])
            name = name.replace("q_proj", "qkv_proj")
        theirs = name
        for their_part, our_part in GPT2_NAMES.items():
            theirs = theirs.replace(our_part, their_part)
        if not (".k_proj." in name or ".v_proj." in name):
            files[theirs] = tensor.T if GPT2_MATRIX.search(name) else tensor
    return files


def _gpt2_from_files(files: Tensors) -> Tensors:
    tensors: Tensors = {}
    for name, tensor in files.items():
        for their_part, our_part in GPT2_NAMES.items():
            name = name.replace(their_part, our_part)
        tensor = tensor.T if GPT2_MATRIX.search(name) else tensor
        names = [name.replace("qkv_proj", part) for part in QKV] if ".qkv_proj." in name else [name]
        tensors |= dict(zip(names, tensor.chunk(len(names)), strict=True))
    return tensors


def _gpt2_current(name: str) -> str | None:
    """OpenAI's own files have no `transformer.` in front, and the causal mask of every layer among the weights."""
    if name.endswith((".attn.bias", ".attn.masked_bias")):
        return None
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


class _Gpt2(Family):
    def write(self, config: ModelConfig) -> Fields:
        names = {"architectures": [self.architecture], "model_type": self.model_type}
        fields = {theirs: getattr(config, ours) for theirs, ours in GPT2_FIELDS.items()}
        # llama.cpp reads n_ctx
        fields |= {"n_ctx": config.max_position_embeddings, "embd_pdrop": config.hidden_dropout}
        return names | fields | {name: value for name, value in self.fixed.items() if value is not None}

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        fields = self.defaults | fields
        if (embedding := fields["embd_pdrop"]) != (layers := fields["resid_pdrop"]):
            raise DamagedFile(f"{file}: embd_pdrop ({embedding!r:.40}) must equal resid_pdrop ({layers!r:.40}) here")
        values = {ours: fields[theirs] for theirs, ours in GPT2_FIELDS.items() if theirs in fields}
        return checked(values | {"num_key_value_heads": fields["n_head"]} | self.needs, str(file), ModelConfig)


class _Headlight(Family):
    """Any parts together. transformers has no such model, so config.json has the fields of ModelConfig themselves."""

    def write(self, config: ModelConfig) -> Fields:
        note = "Saved with loadable_elsewhere: false: no other program has such a model, so load it with Headlight."
        names = {"architectures": [self.architecture], "model_type": self.model_type, "note": note}
        return names | config.model_dump(exclude={"attn_implementation", "my_attention"})

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        beside = ("architectures", "model_type", "note", "dtype", "torch_dtype")
        return checked({key: value for key, value in fields.items() if key not in beside}, str(file), ModelConfig)


FAMILIES: tuple[Family, ...] = (
    # No QK-norm, no windows; the widest support elsewhere (llama.cpp, vLLM, …).
    # Touvron et al. 2023 (arXiv 2302.13971); Grattafiori et al. 2024 (2407.21783).
    Family("llama", "LlamaForCausalLM", needs={"qk_norm": False}, words=("attention_bias", "mlp_bias", "hidden_act")),
    # QK-norm on every head, and windows in any of the layers. Yang et al. 2025 (arXiv 2505.09388).
    Family(
        "qwen3", "Qwen3ForCausalLM", words=("attention_bias",),
        slides=lambda layer, fields: layer >= fields["max_window_layers"],
        defaults={"head_dim": 128, "sliding_window": 4096},
    ),
    # Llama with windows in any of the layers. Not `mistral`, which has a window in all layers or in none, and which
    # llama.cpp computes without it. Jiang et al. 2023 (arXiv 2310.06825).
    MINISTRAL := Family(
        "ministral", "MinistralForCausalLM", needs={"qk_norm": False},
        slides=lambda layer, fields: True, switch=False,
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    ),
    # A bias on queries, keys and values, and windows in any of the layers. Yang et al. 2024 (arXiv 2407.10671).
    Family(
        "qwen2", "Qwen2ForCausalLM", needs={"qk_norm": False, "qkv_bias": True},
        slides=lambda layer, fields: layer >= fields["max_window_layers"],
        defaults={"num_key_value_heads": 32, "sliding_window": 4096},
    ),
    # What comes out of attention and of the feed-forward part is normalised, and all heads' queries as one.
    # Walsh et al. 2025, "2 OLMo 2 Furious" (arXiv 2501.00656).
    Family(
        "olmo2", "Olmo2ForCausalLM", needs={"qk_norm": "whole", "norm_position": "after"}, words=("attention_bias",),
        defaults={"rms_norm_eps": 1e-5},
    ),
    # Layers without RoPE (NoPE: Kazemnejad et al. 2023, arXiv 2305.19466), and windows in any of the layers.
    # Bakouch et al. 2025 (huggingface.co/blog/smollm3).
    Family(
        "smollm3", "SmolLM3ForCausalLM", needs={"qk_norm": False}, words=("attention_bias",), follows=_smollm3_follows,
        slides=lambda layer, fields: not fields["no_rope_layers"][layer],
        defaults={"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
        write_own=lambda config: {"no_rope_layers": [int(rotates) for rotates in config.rotates]},
        read_own=_read_smollm3,
    ),
    _Headlight("headlight", "HeadlightLanguageModel", needs={"loadable_elsewhere": False}, words=PARTS),
    # Radford et al. 2019, "Language Models are Unsupervised Multitask Learners". Every head has a key and a value of
    # its own, and the heads are as wide as the network together.
    _Gpt2(
        "gpt2", "GPT2LMHeadModel",
        needs={
            "position_embedding": "learned", "norm": "layernorm", "gated_mlp": False, "attention_bias": True,
            "mlp_bias": True, "qk_norm": False,
        },
        words=("hidden_act",),
        follows=lambda config: {
            "num_key_value_heads": config.num_attention_heads,
            "head_dim": config.hidden_size // config.num_attention_heads,
        },
        defaults={
            "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
            "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
            "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "bos_token_id": 50256, "eos_token_id": 50256,
        },
        fixed={
            "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False,
            "add_cross_attention": False, "sliding_window": None, "layer_types": None,
            # other names of n_embd, n_positions, n_head and n_layer
            "hidden_size": None, "max_position_embeddings": None, "num_attention_heads": None,
            "num_hidden_layers": None,
        },
        to_files=_gpt2_to_files, from_files=_gpt2_from_files, current=_gpt2_current,
    ),
    # DeepSeek-AI 2024 (arXiv 2412.19437)
    Family(
        "deepseek_v3", "DeepseekV3ForCausalLM", needs={"attention": "mla", "qk_norm": False},
        words=(
            "attention_bias", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
            "rope_interleave",
        ),
        fixed={"hidden_act": "silu"},
        defaults={
            "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3, "rope_interleave": True,
        },
        write_own=_write_latent, read_own=_read_latent,
    ),
    # Yang et al. 2025 (arXiv 2505.09388)
    Family(
        "qwen3_moe", "Qwen3MoeForCausalLM", words=("attention_bias", "num_experts", *OF_EXPERTS),
        follows=_experts_follow, slides=lambda layer, fields: True,
        defaults={
            "sliding_window": 4096, "num_local_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            "norm_topk_prob": False, "router_aux_loss_coef": 0.001,
        },
        # transformers 4 says num_experts, 5 num_local_experts
        write_own=lambda config: {"num_local_experts": config.num_experts, "output_router_logits": False},
        read_own=_read_experts,
        to_files=_experts_to_files, from_files=_experts_from_files,
    ),
)  # fmt: skip
# Read, and saved as llama or ministral. transformers reads layer_types in part, and then cannot compute.
MISTRAL = replace(
    MINISTRAL, model_type="mistral", architecture="MistralForCausalLM", fixed=MINISTRAL.fixed | {"layer_types": None}
)


def family_in(fields: Fields, file: Path) -> Family:
    """The family of a config.json with these fields. Raises DamagedFile for what Headlight does not build."""
    families, name = {family.model_type: family for family in (*FAMILIES, MISTRAL)}, fields.get("model_type")
    if not isinstance(name, str) or name not in families:
        raise DamagedFile(f"{file}: model_type is {name!r:.60}; Headlight builds {', '.join(families)}")
    family = families[name]
    for key, wanted in (ONE_VALUE | family.fixed).items():
        value = fields.get(key, wanted)
        if key not in family.words and (type(value) is not type(wanted) or value != wanted):
            raise DamagedFile(f"{file}: {key} is {value!r:.60}; Headlight builds {wanted!r} only")
    return family


class NoFamily(ValueError):
    """No architecture has these parts together. args: a message, and the unusual fields of ModelConfig."""

    def __str__(self) -> str:
        return str(self.args[0])


def family_of(config: ModelConfig) -> Family:
    """The family that a model is saved as. Raises NoFamily, with the nearest one and the remedy, if none can be it."""
    different = {}
    for family in FAMILIES:
        free = (*family.words, "sliding_window" if family.slides else "")
        wanted = {key: value for key, value in PLAIN.items() if key not in free}
        wanted |= family.needs | family.follows(config)
        changes = {key: value for key, value in wanted.items() if getattr(config, key) != value}
        if not changes:
            return family
        if "loadable_elsewhere" not in changes:
            different[family.model_type] = changes
    unusual = [key for key, value in PLAIN.items() if getattr(config, key) != value]
    # the nearest changes least of what was asked for, then least in all
    nearest = min(different, key=lambda name: (len(different[name].keys() & unusual), len(different[name])))
    changes = {key: json.dumps(value).replace('"', "") for key, value in different[nearest].items()}
    has = " and ".join(f"{key}: {value}" for key, value in changes.items())
    remedy = " and ".join(f"model.{key}={value}" for key, value in changes.items())
    message = f"no architecture of transformers is this model. The nearest, {nearest}, has {has} only: set {remedy}"
    message += ", or model.loadable_elsewhere=false, with which only Headlight can load it"
    raise NoFamily(message, unusual)
