"""Which Hugging Face architecture is a model? One table; families with tensors of their own are in two more files.

A config is written as the first family that can express it. To add an architecture, add a `Family` to the table.
Logits are transformers' to the last bit (float32, on a CPU), but for gpt2, qwen3_moe and deepseek_v3: within 1e-5.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from configs.files import DamagedFile, checked
from model.config import ModelConfig
from model.families.family import PLAIN, SAME_NAME, Family, Fields


def _read_smollm3(there: Fields) -> Fields:
    """Which layers have RoPE. Without no_rope_layers every fourth has none."""
    layers, every = there["num_hidden_layers"], there["no_rope_layer_interval"]
    rotates = there["no_rope_layers"] or [int((i + 1) % every != 0) for i in range(layers)]
    if len(rotates) < layers:
        raise ValueError(f"no_rope_layers has {len(rotates)} entries for {layers} layers")
    there["no_rope_layers"] = rotates = rotates[:layers]  # `slides` reads them
    return {"no_rope_layers": rotates} if any(rotates) else {"position_embedding": "none"}


class _Headlight(Family):
    """Any parts together. transformers has no such model, so config.json has the fields of ModelConfig themselves."""

    def write(self, config: ModelConfig) -> Fields:
        note = "Saved with loadable_elsewhere: false: no other program has such a model, so load it with Headlight."
        names = {"architectures": [self.architecture], "model_type": self.model_type, "note": note}
        return names | config.model_dump(exclude={"attn_implementation"})

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        """Raises DamagedFile, also for a part that this version of Headlight does not know."""
        if missing := [name for name in SAME_NAME if name not in fields]:
            raise DamagedFile(f"{file}: {missing[0]} is missing")
        beside = ("architectures", "model_type", "note", "dtype", "torch_dtype")
        return checked({key: value for key, value in fields.items() if key not in beside}, str(file), ModelConfig)


FAMILIES = (
    # No QK-norm, no windows; the widest support elsewhere (llama.cpp, vLLM, …).
    # Touvron et al. 2023 (arXiv 2302.13971); Grattafiori et al. 2024 (2407.21783).
    Family("llama", "LlamaForCausalLM", needs={"qk_norm": False}, words=("attention_bias", "mlp_bias", "hidden_act")),
    # QK-norm on every head, and windows in any of the layers. Yang et al. 2025 (arXiv 2505.09388).
    Family(
        "qwen3", "Qwen3ForCausalLM", words=("attention_bias",),
        slides=lambda layer, there: layer >= there["max_window_layers"],
        defaults={"head_dim": 128, "sliding_window": 4096},
    ),
    # Llama with windows in any of the layers. Not `mistral`, which has a window in all layers or in none, and which
    # llama.cpp computes without it. Jiang et al. 2023 (arXiv 2310.06825).
    MINISTRAL := Family(
        "ministral", "MinistralForCausalLM", needs={"qk_norm": False},
        slides=lambda layer, there: True, switch=False,
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    ),
    # A bias on queries, keys and values, and windows in any of the layers. Yang et al. 2024 (arXiv 2407.10671).
    Family(
        "qwen2", "Qwen2ForCausalLM", needs={"qk_norm": False, "qkv_bias": True},
        slides=lambda layer, there: layer >= there["max_window_layers"],
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
        "smollm3", "SmolLM3ForCausalLM", needs={"qk_norm": False}, words=("attention_bias",),
        spells=("no_rope_layers", "position_embedding"),
        slides=lambda layer, there: not there["no_rope_layers"][layer],
        defaults={"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
        write_own=lambda config: {"no_rope_layers": [int(rotates) for rotates in config.rotates]},
        read_own=_read_smollm3,
    ),
    _Headlight("headlight", "HeadlightLanguageModel", needs={"loadable_elsewhere": False}, words=tuple(PLAIN)),
)  # fmt: skip
# Read, and saved as llama or ministral. transformers reads layer_types in part, and then cannot compute.
MISTRAL = replace(
    MINISTRAL, model_type="mistral", architecture="MistralForCausalLM", fixed=MINISTRAL.fixed | {"layer_types": None}
)


def all_families() -> Iterator[Family]:
    """All that models are saved as. Those with optional parts come last, so that a plain model never loads them."""
    yield from FAMILIES
    from model.families.gpt2 import GPT2

    yield GPT2
    from model.families.experts import DEEPSEEK_V3, QWEN3_MOE

    yield from (DEEPSEEK_V3, QWEN3_MOE)


def family_named(model_type: object) -> Family | None:
    """The family of a config.json."""
    if model_type == MISTRAL.model_type:
        return MISTRAL
    return next((family for family in all_families() if family.model_type == model_type), None)


def fitting_family(config: ModelConfig) -> Family | None:
    """The family that a model is saved as, if there is one."""
    return next((family for family in all_families() if not family.differences(config)), None)


class NoFamily(ValueError):
    """No architecture has these parts together. keys: the fields of ModelConfig that are not as usual."""

    def __init__(self, message: str, keys: list[str]):
        super().__init__(message)
        self.keys = keys


def family_of(config: ModelConfig) -> Family:
    """The family that a model is saved as. Raises NoFamily, with the nearest one and the remedy, if none can be it."""
    if (fitting := fitting_family(config)) is not None:
        return fitting
    unusual = [key for key, value in PLAIN.items() if getattr(config, key) != value]
    different = {family.model_type: family.differences(config) for family in all_families()}
    # the nearest changes least of what was asked for, then least in all
    nearest = min(
        (name for name, changes in different.items() if "loadable_elsewhere" not in changes),
        key=lambda name: (len(different[name].keys() & unusual), len(different[name])),
    )
    changes = {key: json.dumps(value).replace('"', "") for key, value in different[nearest].items()}
    raise NoFamily(
        f"no architecture of transformers is this model. The nearest, {nearest}, has "
        f"{' and '.join(f'{key}: {value}' for key, value in changes.items())} only: set "
        f"{' and '.join(f'model.{key}={value}' for key, value in changes.items())}, or model.loadable_elsewhere=false, "
        "with which only Headlight can load it",
        unusual,
    )
