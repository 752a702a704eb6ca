"""MHA -> GQA by mean-pooling, and back: `python -m model.convert_kv_heads RUN --num-key-value-heads 2 --out DIR`"""

from __future__ import annotations

import argparse
from pathlib import Path

from configs.command import InputError, exit_on_bad_input, integer
from configs.files import read_checkpoint
from model.files.checkpoint import copy_tokenizer, load, new_directory, save
from model.transformer import LanguageModel
from model.variants.surgery import convert_kv_heads


def write_converted(source: Path, num_key_value_heads: int, out: Path) -> str:
    """Convert the model in `source` (a run or a model directory) and write a model directory; returns what to print.
    `out` must be new, and appears whole or not at all. Raises InputError."""

    def convert(directory: Path) -> tuple[LanguageModel, LanguageModel]:
        lm = load(directory)
        try:
            converted = convert_kv_heads(lm, num_key_value_heads)
        except ValueError as error:
            raise InputError(str(error)) from None
        with new_directory(out) as folder:
            save(converted, folder)
            copy_tokenizer(directory, folder)
        return lm, converted

    models = read_checkpoint(source, convert)
    parameters = " -> ".join(f"{lm.num_parameters():,}" for lm in models)
    cache = " -> ".join(f"{4 * lm.config.num_hidden_layers * lm.config.cache_numbers:,}" for lm in models)
    # trained on with the run's own config if there is one: data and tokenizer must be the same
    config = source / "config.yaml" if (source / "config.yaml").is_file() else "configs/YOURS.yaml"
    changes = f"name={out.resolve().name}_trained init_from={out} model.num_key_value_heads={num_key_value_heads}"
    return (
        f"{models[0].config.kv_heads} -> {num_key_value_heads} key-value heads; {parameters} parameters; {cache} bytes "
        f"of key-value cache per token (float32)\ntrain on:  python -m train.pretrain {config} {changes} seed=1 "
        "train.max_steps=N   (another seed, other rows; Ainslie et al.: N = 5 % of the steps so far)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Give a trained model fewer or more key/value heads.")
    parser.add_argument("source", type=Path, help="a run (its newest checkpoint) or a model directory")
    heads = integer("--num-key-value-heads", 1)
    parser.add_argument("--num-key-value-heads", type=heads, required=True, metavar="N", help="heads afterwards")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the directory to write; must be new")
    given = parser.parse_args()
    print(write_converted(given.source, given.num_key_value_heads, given.out))


if __name__ == "__main__":
    exit_on_bad_input(main)
