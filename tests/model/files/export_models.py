"""Tiny models with a tokenizer, as checkpoint directories."""

from functools import cache
from pathlib import Path

import torch

from data.config import TokenizerConfig
from data.tokenizer import Tokenizer, train_tokenizer
from model import LanguageModel, save
from tests.conftest import GPT2, random_model, tiny_config

SENTENCES = [
    "Once there was a fox named Tiko, and the fox had two red apples.",
    "It's 2026! A bird sang, and nobody's dog barked.",
    "Eyjafjallajökull é 中文 🦊 <|im_start|>user\n\n  two  spaces\t",
]
LLAMA = {"qk_norm": False}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
# what llama.cpp can compute, family by family
WRITTEN = {
    "llama": LLAMA | {"num_key_value_heads": 1, "tie_word_embeddings": False},
    "llama, biases": LLAMA | {"attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "llama, linear": LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "qwen3, yarn": {"rope_scaling": YARN},
    "qwen3": {"rope_theta": 5e5, "head_dim": 16, "rms_norm_eps": 1e-2, "tie_word_embeddings": True},
    "qwen2": LLAMA | {"qkv_bias": True},
    "olmo2": {"qk_norm": "whole", "norm_position": "after", "tie_word_embeddings": False},
    "olmo2, tied": {"qk_norm": "whole", "norm_position": "after", "tie_word_embeddings": True},
    "smollm3": LLAMA | {"no_rope_layers": [1, 1, 1, 0], "num_hidden_layers": 4},
    "gpt2": GPT2,
}


@cache
def tokenizer(kind: str = "bpe") -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=384 if kind == "bpe" else None), SENTENCES * 20)


def model(**changes) -> LanguageModel:
    tokens = tokenizer()
    ids = {"vocab_size": tokens.vocab_size, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return random_model(tiny_config(**(ids | changes)))


def save_with_tokenizer(lm: LanguageModel, directory: Path, kind: str = "bpe") -> Path:
    save(lm, directory)
    tokenizer(kind).save(directory, lm.config.max_position_embeddings)
    return directory


def taught(lm: LanguageModel) -> LanguageModel:
    """A model that knows the sentences by heart, so that the likeliest token is likeliest by far."""
    tokens = tokenizer()
    rows = [torch.tensor([[1, *tokens.encode(text), 2]]) for text in SENTENCES]
    optimizer = torch.optim.AdamW(lm.train().parameters(), lr=5e-3)
    for step in range(240):
        row = rows[step % len(rows)]
        loss, count = lm(row, labels=row)
        (loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return lm.eval()
