"""GPT-2: learned positions, LayerNorm, a feed-forward part without a gate, and biases. Names and layout of its own."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from configs.files import DamagedFile, checked
from model.config import ModelConfig
from model.families.family import Family, Fields, Tensors

FIELDS = {  # of config.json -> of ModelConfig
    "n_positions": "max_position_embeddings",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
    "resid_pdrop": "hidden_dropout",
    "attn_pdrop": "attention_dropout",
    "layer_norm_epsilon": "rms_norm_eps",
    **{key: key for key in ("vocab_size", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")},
}
NAMES = {  # of tensors in transformers -> in Headlight; what is not here has the same name
    "transformer.wte": "model.embed_tokens",
    "transformer.wpe": "model.embed_positions",
    "transformer.ln_f": "model.norm",
    "transformer.h": "model.layers",
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.c_attn": "self_attn.qkv_proj",  # cut into three below
    "attn.c_proj": "self_attn.o_proj",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}
QKV = ("q_proj", "k_proj", "v_proj")
MATRIX = re.compile(r"(qkv|o|up|down)_proj\.weight$")


class _Gpt2(Family):
    """Every head has a key and a value of its own, and the heads are as wide as the network together."""

    def differences(self, config: ModelConfig) -> Fields:
        heads = config.num_attention_heads
        wanted = {"num_key_value_heads": heads, "head_dim": config.hidden_size // heads}
        return super().differences(config) | {k: v for k, v in wanted.items() if getattr(config, k) != v}

    def write(self, config: ModelConfig) -> Fields:
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **{theirs: getattr(config, ours) for theirs, ours in FIELDS.items()},
            "n_ctx": config.max_position_embeddings,  # llama.cpp reads this one
            "embd_pdrop": config.hidden_dropout,
            **{name: value for name, value in self.fixed.items() if value is not None},
        }

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        self.check_fixed(fields, file)
        there = self.defaults | fields
        if (of_embedding := there["embd_pdrop"]) != (of_layers := there["resid_pdrop"]):
            raise DamagedFile(
                f"{file}: embd_pdrop ({of_embedding!r:.40}) and resid_pdrop ({of_layers!r:.40}) differ, and Headlight "
                "has one hidden_dropout for both: make them equal"
            )
        values = {ours: there[theirs] for theirs, ours in FIELDS.items() if theirs in there}
        return checked(values | {"num_key_value_heads": there["n_head"]} | self.needs, str(file), ModelConfig)


def _to_files(tensors: Tensors) -> Tensors:
    """transformers' Conv1D: matrices lie the other way round, (inputs, outputs), and those of queries, keys and values
    side by side. One product in place of three adds up in another order, so logits are equal within 1e-5, not `==`."""
    theirs, joined = {ours: theirs for theirs, ours in NAMES.items()}, dict(tensors)
    for name in tensors:
        if "self_attn.q_proj." in name:
            parts = [joined.pop(name.replace("q_proj", part)) for part in QKV]
            joined[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    return {_renamed(name, theirs): x.T if MATRIX.search(name) else x for name, x in joined.items()}


def _from_files(tensors: Tensors) -> Tensors:
    found: Tensors = {}
    for theirs, tensor in tensors.items():
        name = _renamed(theirs, NAMES)
        tensor = tensor.T if MATRIX.search(name) else tensor
        names = [name.replace("qkv_proj", part) for part in QKV] if ".qkv_proj." in name else [name]
        found |= dict(zip(names, tensor.chunk(len(names)), strict=True))
    return found


def _renamed(name: str, names: dict[str, str]) -> str:
    for before, after in names.items():
        name = re.sub(rf"(^|(?<=\.)){re.escape(before)}(?=\.)", after, name)
    return name


def _current(name: str) -> str | None:
    """OpenAI's own files have no `transformer.` in front, and the causal mask of every layer among the weights."""
    if name.endswith((".attn.bias", ".attn.masked_bias")):
        return None
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


# Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
GPT2 = _Gpt2(
    "gpt2",
    "GPT2LMHeadModel",
    needs={
        "position_embedding": "learned",
        "norm": "layernorm",
        "gated_mlp": False,
        "attention_bias": True,
        "mlp_bias": True,
        "qk_norm": False,
    },
    spells=("hidden_act",),
    defaults={
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "bos_token_id": 50256, "eos_token_id": 50256,
    },
    fixed={
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False,
        "add_cross_attention": False, "sliding_window": None, "layer_types": None,
        # other names of n_embd, n_positions, n_head and n_layer
        "hidden_size": None, "max_position_embeddings": None, "num_attention_heads": None, "num_hidden_layers": None,
    },
    to_files=_to_files,
    from_files=_from_files,
    current=_current,
)  # fmt: skip
