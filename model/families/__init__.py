"""Which Hugging Face architecture is a model? One table; those with tensors of their own are in two more files.

A config is written as the first family that can express it. To add an architecture, add a `Family` here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from configs.files import DamagedFile, checked
from model.config import ModelConfig
from model.families.family import PLAIN, SAME_NAME, Family, Fields, read_windows

__all__ = ["FAMILIES", "Family", "NoFamily", "all_families", "family_named", "family_of", "fitting_family"]


# ---------------------------------------------------------------------------------------------------------
# How does each spell its sliding windows? layer_types, which all write, says which layers slide; where it is missing,
# each has a rule of its own. `there` holds what config.json says.


def _kinds(slides: list[bool]) -> list[str]:
    return ["sliding_attention" if each else "full_attention" for each in slides]


def _read_ministral(there: Fields) -> Fields:
    """Without layer_types every layer slides, if there is a window."""
    window = there["sliding_window"]
    return read_windows(window, there["layer_types"] or _kinds([window is not None] * there["num_hidden_layers"]))


def _read_mistral(there: Fields) -> Fields:
    """layer_types is refused: transformers reads it in part, and then cannot compute."""
    if there["layer_types"] is not None:
        raise ValueError("layer_types is there, and mistral has a window in all layers or in none: remove it")
    return _read_ministral(there)


def _write_qwen(config: ModelConfig) -> Fields:
    """transformers forgets the window unless use_sliding_window is true.

    In transformers layer_types decides. vLLM has one window for all layers; it refuses a model with mixed layer_types
    only if max_window_layers is not the number of layers, and computes wrongly otherwise.
    """
    types = config.layer_types or []
    first = types.index("sliding_attention") if "sliding_attention" in types else config.num_hidden_layers
    return _write_switch(config) | {"max_window_layers": first}  # how many layers are full before one that slides


def _write_switch(config: ModelConfig) -> Fields:
    return {"use_sliding_window": config.sliding_window is not None, "sliding_window": config.sliding_window}


def _read_qwen(there: Fields) -> Fields:
    """Without layer_types, the layers from max_window_layers on slide, 28 being transformers' default."""
    window = there["sliding_window"] if there["use_sliding_window"] else None
    slides = [window is not None and i >= there["max_window_layers"] for i in range(there["num_hidden_layers"])]
    return read_windows(window, there["layer_types"] or _kinds(slides))


def _write_smollm3(config: ModelConfig) -> Fields:
    return {"no_rope_layers": [int(rotates) for rotates in config.rotates]} | _write_switch(config)


def _read_smollm3(there: Fields) -> Fields:
    """Without no_rope_layers every fourth layer has no RoPE; without layer_types those layers slide, if one may."""
    layers, every = there["num_hidden_layers"], there["no_rope_layer_interval"]
    rotates = there["no_rope_layers"] or [int((i + 1) % every != 0) for i in range(layers)]
    if len(rotates) < layers:
        raise ValueError(f"no_rope_layers has {len(rotates)} entries for {layers} layers")
    rotates = rotates[:layers]
    window = there["sliding_window"] if there["use_sliding_window"] else None
    position: Fields = {"no_rope_layers": rotates} if any(rotates) else {"position_embedding": "none"}
    slides = [window is not None and not flag for flag in rotates]
    return position | read_windows(window, there["layer_types"] or _kinds(slides))


# ---------------------------------------------------------------------------------------------------------
# The table


class _Headlight(Family):
    """Any parts together. transformers has no such model, so config.json has the fields of ModelConfig themselves."""

    def write(self, config: ModelConfig) -> Fields:
        note = "Saved with loadable_elsewhere: false: no other program has such a model. Load it with Headlight."
        names = {"architectures": [self.architecture], "model_type": self.model_type, "note": note}
        return names | config.model_dump(exclude={"attn_implementation"})

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        """Raises DamagedFile, also for a part that this version of Headlight does not know."""
        if missing := [name for name in SAME_NAME if name not in fields]:
            raise DamagedFile(f"{file}: {missing[0]} is missing")
        beside = ("architectures", "model_type", "note", "dtype", "torch_dtype")
        return checked({key: value for key, value in fields.items() if key not in beside}, str(file), ModelConfig)


_MINISTRAL = Family(  # Jiang et al. 2023 (arXiv 2310.06825)
    "ministral",
    "MinistralForCausalLM",
    needs={"qk_norm": False},
    spells=("sliding_window",),
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    write_own=lambda config: {"sliding_window": config.sliding_window},
    read_own=_read_ministral,
)
FAMILIES = (
    # no QK-norm, no window; the widest support elsewhere (llama.cpp, vLLM, …)
    Family(  # Touvron et al. 2023 (arXiv 2302.13971); Grattafiori et al. 2024 (2407.21783)
        "llama", "LlamaForCausalLM", needs={"qk_norm": False}, words=("attention_bias", "mlp_bias", "hidden_act")
    ),
    # QK-norm on every head, and windows in any of the layers
    Family(  # Yang et al. 2025 (arXiv 2505.09388)
        "qwen3",
        "Qwen3ForCausalLM",
        words=("attention_bias",),
        spells=("sliding_window",),
        defaults={"head_dim": 128, "sliding_window": 4096},
        write_own=_write_qwen,
        read_own=_read_qwen,
    ),
    # llama with windows in any of the layers. Not `mistral`, which has a window in all layers or in none, and which
    # llama.cpp computes without it
    _MINISTRAL,
    # a bias on queries, keys and values, and windows in any of the layers
    Family(  # Yang et al. 2024 (arXiv 2407.10671)
        "qwen2",
        "Qwen2ForCausalLM",
        needs={"qk_norm": False, "qkv_bias": True},
        spells=("sliding_window",),
        defaults={"num_key_value_heads": 32, "sliding_window": 4096},
        write_own=_write_qwen,
        read_own=_read_qwen,
    ),
    # what comes out of attention and of the feed-forward part is normalised, and all heads' queries as one
    Family(  # Walsh et al. 2025, "2 OLMo 2 Furious" (arXiv 2501.00656)
        "olmo2",
        "Olmo2ForCausalLM",
        needs={"qk_norm": "whole", "norm_position": "after"},
        words=("attention_bias",),
        defaults={"rms_norm_eps": 1e-5},
    ),
    # layers without RoPE (NoPE: Kazemnejad et al. 2023, arXiv 2305.19466), and windows in any of the layers
    Family(  # Bakouch et al. 2025 (huggingface.co/blog/smollm3)
        "smollm3",
        "SmolLM3ForCausalLM",
        needs={"qk_norm": False},
        words=("attention_bias",),
        spells=("no_rope_layers", "position_embedding", "sliding_window"),
        defaults={"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
        write_own=_write_smollm3,
        read_own=_read_smollm3,
    ),
    _Headlight("headlight", "HeadlightLanguageModel", needs={"loadable_elsewhere": False}, words=tuple(PLAIN)),
)
# read, and saved as llama or ministral
MISTRAL = replace(_MINISTRAL, model_type="mistral", architecture="MistralForCausalLM", read_own=_read_mistral)


# ---------------------------------------------------------------------------------------------------------
# Looking one up


def all_families() -> Iterator[Family]:
    """All that models are saved as. Those with optional parts come last, so that a plain model never loads them."""
    yield from FAMILIES
    from model.families.gpt2 import GPT2

    yield GPT2
    from model.families.experts import DEEPSEEK_V3, QWEN3_MOE

    yield from (DEEPSEEK_V3, QWEN3_MOE)


def family_named(model_type: object) -> Family | None:
    """The family of a config.json."""
    return MISTRAL if model_type == "mistral" else next((x for x in all_families() if x.model_type == model_type), None)


class NoFamily(ValueError):
    """No architecture has these parts together. keys: the fields of ModelConfig that are not as usual."""

    def __init__(self, message: str, keys: list[str]):
        super().__init__(message)
        self.keys = keys


def fitting_family(config: ModelConfig) -> Family | None:
    """The family that a model is saved as, if there is one."""
    return next((family for family in all_families() if not family.differences(config)), None)


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
