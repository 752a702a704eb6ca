"""Given: open, train, write and save. The end of notebooks/mine/my_model.py; nothing to fill in."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import tokenizers
import torch
from safetensors.torch import load_file
from torch import Tensor

from notebooks.solutions.batches import batches
from notebooks.solutions.block import Config
from notebooks.solutions.kv_cache import KVCache
from notebooks.solutions.loop import Training, train
from notebooks.solutions.model import MyModel
from notebooks.solutions.sampling import probabilities, sample
from notebooks.solutions.tokenizer import BOS, EOS, decode, encode, vocabulary_of

FOLDER = Path("notebooks/mine/model")  # A training saves its model here.
CHAT_LETTERS = "system user assistant tool\n"  # Headlight's characters include those of its chat.


class FromFile:
    """The tokenizer of a trained model: a tokenizer.json."""

    def __init__(self, file: Path):
        self.backend = tokenizers.Tokenizer.from_file(str(file))

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        return self.backend.decode(ids)


def open_model(folder: Path) -> tuple[MyModel, FromFile]:
    """Open a folder in Hugging Face's format: Llama, SmolLM2, Qwen3, or a model of Headlight."""
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = fields["model_type"]
    if kind not in ("llama", "qwen3"):
        sys.exit(f"error: {folder} is a {kind} model: MyModel computes llama and qwen3")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling != "default" or fields.get("attention_bias") or fields.get("mlp_bias"):
        sys.exit(f"error: {folder} has scaled RoPE or biases, which MyModel does not compute")
    given = {name: fields.get(name) for name in Config.__dataclass_fields__}
    known = {name: value for name, value in given.items() if value is not None}
    known.setdefault("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    known.setdefault("tie_word_embeddings", False)
    if "rope_theta" not in known:
        known["rope_theta"] = rope.get("rope_theta", 10000.0)
    model = MyModel(Config(**known, qk_norm=kind == "qwen3"))
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return model, FromFile(folder / "tokenizer.json")


@torch.no_grad()
def write(model: MyModel, ids: list[int], count: int, temperature: float = 0.8) -> list[int]:
    """Return `count` new ids after these. Every token is read once, into your caches."""
    generator = torch.Generator().manual_seed(0)
    caches = [KVCache() for _ in model.model.layers]
    new: list[int] = []
    while len(new) < count:
        logits = model(torch.tensor([new[-1:] or ids]), caches=caches)[:, -1]
        new.append(int(sample(probabilities(logits, temperature, top_k=20), generator)))
    return new


def announced(stream: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yield the batches, and print the step now and then."""
    began = time.perf_counter()
    for step, batch in enumerate(stream):
        if step % 100 == 0:
            print(f"step {step:,} of 1,000, after {time.perf_counter() - began:.0f} s", flush=True)
        yield batch


def save_model(model: MyModel, text: str, folder: Path) -> None:
    """Save as a model directory of Headlight: its page, its heads and its chat open it."""
    from data.config import TokenizerConfig
    from data.tokenizer import train_tokenizer
    from model import LanguageModel, ModelConfig, save

    sizes = asdict(model.config)
    library = LanguageModel(ModelConfig(**sizes))
    library.load_state_dict(model.state_dict())
    save(library, folder)
    train_tokenizer(TokenizerConfig(kind="char"), [text]).save(folder)


def main() -> None:
    """Train on a text, or write with a trained model."""
    usage = "usage: python -m notebooks.mine.my_model train TEXT.txt | write FOLDER [PROMPT]"
    if sys.argv[1:2] == ["train"] and len(sys.argv) == 3:
        text = Path(sys.argv[2]).read_text(encoding="utf-8")
        vocabulary = vocabulary_of(text + CHAT_LETTERS)
        torch.manual_seed(0)
        model = MyModel(Config(vocab_size=len(vocabulary)))
        model.initialise()
        stream = np.array([BOS, *encode(text, vocabulary), EOS])
        losses = train(model, announced(batches(stream, 128, 16, seed=0)), Training())
        print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at the end")
        save_model(model, text, FOLDER)
        print(decode(write(model, [BOS], 300), vocabulary))
        print(f"\nSee its heads:  python -m eval.attention {FOLDER} --text {text[:40]!r}")
    elif sys.argv[1:2] == ["write"] and len(sys.argv) in (3, 4):
        model, tokenizer = open_model(Path(sys.argv[2]))
        ids = tokenizer.encode(sys.argv[3] if len(sys.argv) == 4 else "Once upon a time")
        print(tokenizer.decode(ids + write(model, ids, 60)))
    else:
        sys.exit(usage)


if __name__ == "__main__":
    main()
