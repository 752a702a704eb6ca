"""The table of architectures: FAMILIES.

A model is saved as the first family that can express its config. Logits equal transformers' to the
last bit (float32, on a CPU); for gpt2, qwen3_moe and deepseek_v3 within 1e-5. A field that
transformers reads and Headlight does not build is refused by name.
"""

import json
from dataclasses import replace
from pathlib import Path

from configs.files import DamagedFile, checked
from model.config import ModelConfig
from model.files.family import Family, Fields
from model.files.gpt2 import GPT2
from model.files.qwen3_moe import QWEN3_MOE
from model.variants.config import LATENT_KEYS

# A family has the default of each of these, unless it names the part.
PARTS = (
    "gated_mlp", "hidden_act", "mlp_bias", "num_experts", "attention", "kv_sharing", "qk_norm",
    "attention_bias", "qkv_bias", "scale_attn_weights", "smear_keys", "norm_position",
    "position_embedding", "no_rope_layers", "sliding_window", "norm", "loadable_elsewhere",
)  # fmt: skip
DEFAULTS = {key: ModelConfig.model_fields[key].default for key in PARTS}
# With another value transformers computes something that Headlight does not build.
ONE_VALUE = {
    "is_causal": True, "is_encoder_decoder": False, "quantization_config": None,
    "compression_config": None, "per_layer_config": None, "fusion_config": None,
    "transformers_weights": None,
}  # fmt: skip


# SmolLM3: layers without RoPE
def _read_smollm3(fields: Fields) -> Fields:
    layers = fields["num_hidden_layers"]
    rotates = fields["no_rope_layers"]
    if not rotates:  # by default every fourth layer has no RoPE
        interval = fields["no_rope_layer_interval"]
        rotates = [int((i + 1) % interval != 0) for i in range(layers)]
    if len(rotates) < layers:
        raise ValueError(f"no_rope_layers has {len(rotates)} entries for {layers} layers")
    rotates = rotates[:layers]
    fields["no_rope_layers"] = rotates  # `slides` reads them
    return {"no_rope_layers": rotates} if any(rotates) else {"position_embedding": "none"}


# DeepSeek-V3: latent attention (MLA). Every layer is dense: its layers of experts are not built.
def _write_latent(config: ModelConfig) -> Fields:
    return {
        "n_routed_experts": 1,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "head_dim": config.qk_rope_head_dim,  # in this family, the numbers that RoPE turns
        "first_k_dense_replace": config.num_hidden_layers,  # no layer is left for experts
        "moe_intermediate_size": config.intermediate_size,
        "num_nextn_predict_layers": 0,
    }


def _read_latent(fields: Fields) -> Fields:
    dense = fields["first_k_dense_replace"]
    if dense < fields["num_hidden_layers"]:
        raise ValueError(
            f"first_k_dense_replace is {dense}; Headlight builds deepseek_v3 without experts"
        )
    head = fields.get("head_dim")
    rotary = fields["qk_rope_head_dim"]
    if head not in (None, rotary):
        raise ValueError(f"head_dim is {head}; in a deepseek_v3 it is qk_rope_head_dim ({rotary})")
    # ModelConfig adds up head_dim from the sizes of its two parts
    return {"head_dim": None, "rope_interleave": bool(fields["rope_interleave"])}


class _Headlight(Family):
    """Any combination of parts. transformers has no such model: config.json is a ModelConfig."""

    def write(self, config: ModelConfig) -> Fields:
        fields: Fields = {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "note": "Saved with loadable_elsewhere: false: no other program has such a model, "
            "so load it with Headlight.",
        }
        return fields | config.model_dump(exclude={"attn_implementation", "my_attention"})

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        extra = ("architectures", "model_type", "note", "dtype", "torch_dtype")
        values = {key: value for key, value in fields.items() if key not in extra}
        return checked(values, str(file), ModelConfig)


FAMILIES: tuple[Family, ...] = (
    # No QK-norm, no windows; the widest support elsewhere (llama.cpp, vLLM, …).
    # Touvron et al. 2023 (arXiv 2302.13971); Grattafiori et al. 2024 (2407.21783).
    Family(
        "llama", "LlamaForCausalLM", needs={"qk_norm": False},
        free=("attention_bias", "mlp_bias", "hidden_act"),
    ),
    # QK-norm on every head, and windows in any of the layers. Yang et al. 2025 (2505.09388).
    Family(
        "qwen3", "Qwen3ForCausalLM", free=("attention_bias",),
        slides=lambda layer, fields: layer >= fields["max_window_layers"],
        defaults={"head_dim": 128, "sliding_window": 4096},
    ),
    # Llama with windows in any of the layers. Not `mistral`: that has a window in all layers or in
    # none, and llama.cpp ignores it. Jiang et al. 2023 (2310.06825).
    MINISTRAL := Family(
        "ministral", "MinistralForCausalLM", needs={"qk_norm": False},
        slides=lambda layer, fields: True, switch=False,
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    ),
    # A bias on queries, keys and values, and windows in any of the layers.
    # Yang et al. 2024 (2407.10671).
    Family(
        "qwen2", "Qwen2ForCausalLM", needs={"qk_norm": False, "qkv_bias": True},
        slides=lambda layer, fields: layer >= fields["max_window_layers"],
        defaults={"num_key_value_heads": 32, "sliding_window": 4096},
    ),
    # Norms behind attention and the feed-forward part, and one norm over the queries of all heads.
    # Walsh et al. 2025, "2 OLMo 2 Furious" (2501.00656).
    Family(
        "olmo2", "Olmo2ForCausalLM", needs={"qk_norm": "whole", "norm_position": "after"},
        free=("attention_bias",), defaults={"rms_norm_eps": 1e-5},
    ),
    # Layers without RoPE (NoPE: Kazemnejad et al. 2023, 2305.19466), and windows in any of the
    # layers. Bakouch et al. 2025 (huggingface.co/blog/smollm3).
    Family(
        "smollm3", "SmolLM3ForCausalLM", needs={"qk_norm": False}, free=("attention_bias",),
        # any layers may have RoPE; if none has it, positions are not learned either
        follows=lambda config: {
            "no_rope_layers": config.no_rope_layers,
            "position_embedding": "none" if config.position_embedding == "none" else "rope",
        },
        slides=lambda layer, fields: not fields["no_rope_layers"][layer],
        defaults={"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
        write_own=lambda config: {"no_rope_layers": [int(rotates) for rotates in config.rotates]},
        read_own=_read_smollm3,
    ),
    _Headlight("headlight", "HeadlightLanguageModel", {"loadable_elsewhere": False}, free=PARTS),
    GPT2,
    # Latent attention. DeepSeek-AI 2024 (2412.19437).
    Family(
        "deepseek_v3", "DeepseekV3ForCausalLM", needs={"attention": "mla", "qk_norm": False},
        free=("attention_bias", *LATENT_KEYS),
        fixed={"hidden_act": "silu"},
        defaults={
            "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "first_k_dense_replace": 3, "rope_interleave": True,
        },
        write_own=_write_latent, read_own=_read_latent,
    ),
    QWEN3_MOE,
)  # fmt: skip
# Mistral is read, and saved as llama or ministral. With layer_types, transformers cannot compute.
MISTRAL = replace(
    MINISTRAL,
    model_type="mistral",
    architecture="MistralForCausalLM",
    fixed=MINISTRAL.fixed | {"layer_types": None},
)


def family_in(fields: Fields, file: Path) -> Family:
    """Return the family of a config.json. Raises DamagedFile for what Headlight does not build."""
    families = {family.model_type: family for family in (*FAMILIES, MISTRAL)}
    name = fields.get("model_type")
    if not isinstance(name, str) or name not in families:
        names = ", ".join(families)
        raise DamagedFile(f"{file}: model_type is {name!r:.60}; Headlight builds {names}")
    family = families[name]
    for key, expected in (ONE_VALUE | family.fixed).items():
        value = fields.get(key, expected)
        is_same = type(value) is type(expected) and value == expected
        if key not in family.free and not is_same:
            raise DamagedFile(f"{file}: {key} is {value!r:.60}; Headlight builds {expected!r} only")
    return family


class NoFamily(ValueError):
    """No architecture has these parts. args: a message, and the unusual fields of ModelConfig."""

    def __str__(self) -> str:
        return str(self.args[0])


def family_of(config: ModelConfig) -> Family:
    """Return the family that a model is saved as.

    Raises NoFamily, which names the nearest family and the changes that it needs.
    """
    if config.loadable_elsewhere and any(config.is_linear):
        remedy = "set model.loadable_elsewhere=false, with which only Headlight can load it"
        raise NoFamily(f"linear_attention is saved as Headlight's own: {remedy}", ["layer_types"])
    changes_by_family: dict[str, Fields] = {}
    for family in FAMILIES:
        free = (*family.free, "sliding_window" if family.slides else "")
        expected = {key: value for key, value in DEFAULTS.items() if key not in free}
        expected |= family.needs | family.follows(config)
        changes = {key: value for key, value in expected.items() if getattr(config, key) != value}
        if not changes:
            return family
        if "loadable_elsewhere" not in changes:
            changes_by_family[family.model_type] = changes

    # name the family with the fewest changes of what the user set, then of all
    unusual = [key for key, value in DEFAULTS.items() if getattr(config, key) != value]

    def distance(name: str) -> tuple[int, int]:
        changes = changes_by_family[name]
        return len(changes.keys() & unusual), len(changes)

    nearest = min(changes_by_family, key=distance)
    values = {
        key: json.dumps(value).replace('"', "") for key, value in changes_by_family[nearest].items()
    }
    parts = " and ".join(f"{key}: {value}" for key, value in values.items())
    remedy = " and ".join(f"model.{key}={value}" for key, value in values.items())
    raise NoFamily(
        f"no architecture of transformers is this model. The nearest, {nearest}, has {parts} only: "
        f"set {remedy}, or model.loadable_elsewhere=false, with which only Headlight can load it",
        unusual,
    )
