"""GPT-2: learned positions, LayerNorm, a feed-forward part without a gate, and biases. Names and layout of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from configs.files import DamagedFile, checked
from model.config import Activation, ModelConfig
from model.families.family import Family, Fields, Tensors, model_config
from model.saving.config_json import EveryConfigJson, Positive, Share, Size, TokenId

NAMES = {  # of transformers -> of Headlight; what is not here has the same name
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


class Gpt2Json(EveryConfigJson):
    """Its config.json, with transformers' default where a field is left out."""

    vocab_size: Size = 50257
    n_positions: Annotated[int, Field(ge=1, lt=1 << 31)] = 1024
    n_embd: Size = 768
    n_layer: Annotated[int, Field(ge=1)] = 12
    n_head: Size = 12
    n_inner: Size | None = None
    activation_function: Activation = "gelu_new"
    resid_pdrop: Share = 0.1
    embd_pdrop: Share = 0.1
    attn_pdrop: Share = 0.1
    layer_norm_epsilon: Positive = 1e-5
    bos_token_id: TokenId | None = 50256
    eos_token_id: TokenId | list[TokenId] | None = 50256
    tie_word_embeddings: bool = True
    # with any other value transformers computes what Headlight does not build
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False
    reorder_and_upcast_attn: Literal[False] = False
    add_cross_attention: Literal[False] = False
    sliding_window: None = None
    layer_types: None = None
    # other names of n_embd, n_positions, n_head and n_layer
    hidden_size: None = None
    max_position_embeddings: None = None
    num_attention_heads: None = None
    num_hidden_layers: None = None


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
            "vocab_size": config.vocab_size,
            "n_positions": config.max_position_embeddings,
            "n_ctx": config.max_position_embeddings,  # llama.cpp reads this one
            "n_embd": config.hidden_size,
            "n_layer": config.num_hidden_layers,
            "n_head": config.num_attention_heads,
            "n_inner": config.intermediate_size,
            "activation_function": config.hidden_act,
            "resid_pdrop": config.hidden_dropout,
            "embd_pdrop": config.hidden_dropout,
            "attn_pdrop": config.attention_dropout,
            "layer_norm_epsilon": config.rms_norm_eps,
            "tie_word_embeddings": config.tie_word_embeddings,
            "bos_token_id": config.bos_token_id,
            "eos_token_id": config.eos_token_id,
            "pad_token_id": config.pad_token_id,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
            "add_cross_attention": False,
            "initializer_range": 0.02,
            "use_cache": True,
            "dtype": "float32",
            "torch_dtype": "float32",
        }

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        there: Gpt2Json = checked(fields, str(file), Gpt2Json)
        if there.embd_pdrop != there.resid_pdrop:
            raise DamagedFile(
                f"{file}: embd_pdrop ({there.embd_pdrop}) and resid_pdrop ({there.resid_pdrop}) differ, and Headlight "
                "has one hidden_dropout for both: make them equal"
            )
        values = {
            "vocab_size": there.vocab_size,
            "max_position_embeddings": there.n_positions,
            "hidden_size": there.n_embd,
            "num_hidden_layers": there.n_layer,
            "num_attention_heads": there.n_head,
            "num_key_value_heads": there.n_head,
            "intermediate_size": there.n_inner or 4 * there.n_embd,
            "hidden_act": there.activation_function,
            "hidden_dropout": there.resid_pdrop,
            "attention_dropout": there.attn_pdrop,
            "rms_norm_eps": there.layer_norm_epsilon,
            "tie_word_embeddings": there.tie_word_embeddings,
            "bos_token_id": there.bos_token_id,
            "eos_token_id": there.eos_token_id,
            "pad_token_id": there.pad_token_id,
        }
        return model_config(values | self.needs, file)


def _to_files(tensors: Tensors) -> Tensors:
    """transformers' Conv1D: matrices lie the other way round, (inputs, outputs), and those of queries, keys and values
    side by side. One product in place of three adds up in another order, so logits are equal within 1e-5, not `==`."""
    import torch

    joined: Tensors = {}
    for name, tensor in tensors.items():
        if "self_attn.q_proj." in name:
            tensor = torch.cat([tensors[name.replace("q_proj", part)] for part in QKV])
        elif "self_attn.k_proj." in name or "self_attn.v_proj." in name:
            continue
        name = name.replace("self_attn.q_proj.", "self_attn.qkv_proj.")
        joined[_renamed(name, {ours: theirs for theirs, ours in NAMES.items()})] = (
            tensor.T if MATRIX.search(name) else tensor
        )
    return joined


def _from_files(tensors: Tensors) -> Tensors:
    found: Tensors = {}
    for theirs, tensor in tensors.items():
        name = _renamed(theirs, NAMES)
        tensor = tensor.T if MATRIX.search(name) else tensor
        if ".qkv_proj." in name:
            found |= {name.replace("qkv_proj", part): x for part, x in zip(QKV, tensor.chunk(3), strict=True)}
        else:
            found[name] = tensor
    return found


def _current(name: str) -> str | None:
    """OpenAI's own files have no `transformer.` in front, and the causal mask of every layer among the weights."""
    if name.endswith((".attn.bias", ".attn.masked_bias")):
        return None
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def _renamed(name: str, names: dict[str, str]) -> str:
    for before, after in names.items():
        name = re.sub(rf"(^|(?<=\.)){re.escape(before)}(?=\.)", after, name)
    return name


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
    to_files=_to_files,
    from_files=_from_files,
    current=_current,
)
