"""GPT-2's spelling: learned positions, LayerNorm, biases, a feed-forward part without a gate.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

import re
from pathlib import Path

import torch

from configs.files import DamagedFile, checked
from model.config import ModelConfig
from model.files.family import Family, Fields, Tensors

# config.json -> ModelConfig
FIELDS = {
    "n_positions": "max_position_embeddings", "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "activation_function": "hidden_act",
    "resid_pdrop": "hidden_dropout", "attn_pdrop": "attention_dropout",
    "layer_norm_epsilon": "rms_norm_eps", "vocab_size": "vocab_size",
    "tie_word_embeddings": "tie_word_embeddings", "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id", "pad_token_id": "pad_token_id",
}  # fmt: skip
# part of a tensor's name in transformers -> in Headlight
NAMES = {
    "transformer.wte.": "model.embed_tokens.", "transformer.wpe.": "model.embed_positions.",
    "transformer.ln_f.": "model.norm.", "transformer.h.": "model.layers.",
    ".ln_1.": ".input_layernorm.", ".ln_2.": ".post_attention_layernorm.",
    ".attn.c_attn.": ".self_attn.qkv_proj.", ".attn.c_proj.": ".self_attn.o_proj.",
    ".mlp.c_fc.": ".mlp.up_proj.", ".mlp.c_proj.": ".mlp.down_proj.",
}  # fmt: skip
QKV = ("q_proj", "k_proj", "v_proj")
MATRIX = re.compile(r"(qkv|o|up|down)_proj\.weight$")


def _to_files(tensors: Tensors) -> Tensors:
    """Transpose to Conv1D's (inputs, outputs), and put queries, keys and values side by side."""
    # transformers multiplies those three at once, and adds in another order: its logits are equal
    # within 1e-5, not `==`
    files: Tensors = {}
    for name, tensor in tensors.items():
        if ".k_proj." in name or ".v_proj." in name:
            continue  # stored with the queries
        if ".q_proj." in name:
            tensor = torch.cat([tensors[name.replace("q_proj", part)] for part in QKV])
            name = name.replace("q_proj", "qkv_proj")
        if MATRIX.search(name):
            tensor = tensor.T
        for their_part, our_part in NAMES.items():
            name = name.replace(our_part, their_part)
        files[name] = tensor
    return files


def _from_files(files: Tensors) -> Tensors:
    tensors: Tensors = {}
    for name, tensor in files.items():
        for their_part, our_part in NAMES.items():
            name = name.replace(their_part, our_part)
        if MATRIX.search(name):
            tensor = tensor.T
        if ".qkv_proj." not in name:
            tensors[name] = tensor
            continue
        for part, chunk in zip(QKV, tensor.chunk(3), strict=True):
            tensors[name.replace("qkv_proj", part)] = chunk
    return tensors


def _current_name(name: str) -> str | None:
    # OpenAI's own files: no `transformer.` in front, and a causal mask in every layer
    if name.endswith((".attn.bias", ".attn.masked_bias")):
        return None
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


class Gpt2(Family):
    def write(self, config: ModelConfig) -> Fields:
        fields: Fields = {"architectures": [self.architecture], "model_type": self.model_type}
        for theirs, ours in FIELDS.items():
            fields[theirs] = getattr(config, ours)
        fields["n_ctx"] = config.max_position_embeddings  # llama.cpp reads this one
        fields["embd_pdrop"] = config.hidden_dropout
        return fields | {name: value for name, value in self.fixed.items() if value is not None}

    def read(self, fields: Fields, file: Path) -> ModelConfig:
        fields = self.defaults | fields
        embedding = fields["embd_pdrop"]
        layers = fields["resid_pdrop"]
        if embedding != layers:
            raise DamagedFile(
                f"{file}: embd_pdrop ({embedding!r:.40}) must equal resid_pdrop ({layers!r:.40})"
            )
        values = {ours: fields[theirs] for theirs, ours in FIELDS.items() if theirs in fields}
        values["num_key_value_heads"] = fields["n_head"]
        return checked(values | self.needs, str(file), ModelConfig)


GPT2 = Gpt2(
    "gpt2", "GPT2LMHeadModel",
    needs={
        "position_embedding": "learned", "norm": "layernorm", "gated_mlp": False,
        "attention_bias": True, "mlp_bias": True, "qk_norm": False,
    },
    free=("hidden_act",),
    # every head has its own key and value, and all heads together are as wide as the network
    follows=lambda config: {
        "num_key_value_heads": config.num_attention_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
    },
    defaults={
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1,
        "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
        "bos_token_id": 50256, "eos_token_id": 50256,
    },
    fixed={
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False, "add_cross_attention": False,
        "sliding_window": None, "layer_types": None,
        # other names of n_embd, n_positions, n_head and n_layer
        "hidden_size": None, "max_position_embeddings": None,
        "num_attention_heads": None, "num_hidden_layers": None,
    },
    to_files=_to_files,
    from_files=_from_files,
    current=_current_name,
)  # fmt: skip
