"""MHA -> GQA by mean-pooling, and back: `python -m model.convert_kv_heads runs/mha --num-key-value-heads 2 --out DIR`

Fewer heads: the heads that will share a key/value become one, whose `k_proj` and `v_proj` rows are their mean
(Ainslie et al. 2023, arXiv 2305.13245, section 2.1). Training must continue from there: the paper spends another 5 %
of the steps. More heads: each head's rows are repeated, which computes the same.

    4 -> 2   k0, k1 -> (k0 + k1) / 2          2 -> 4   k0 -> k0, k0
             k2, k3 -> (k2 + k3) / 2                   k1 -> k1, k1

Without QK-norm a key is linear in x, so the pooled head's score is the mean of the scores that the query had with each
head of the group. With it, the mean is taken before the norm, which brings it back to full length; but a head with
longer raw keys outweighs the others. With qk_norm: whole, `k_norm.weight` has a gain for every head, pooled likewise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from configs.command import InputError, exit_on_bad_input, integer
from configs.files import read_checkpoint
from model.config import ModelConfig
from model.files.checkpoint import copy_tokenizer, load, new_directory, save
from model.transformer import LanguageModel


def convert_kv_heads(lm: LanguageModel, num_key_value_heads: int) -> LanguageModel:
    """A new model with another number of key/value heads; the one given stays as it is.

    Device, dtype, attention backend and training mode are those of `lm`; no random number is drawn. Raises ValueError
    unless every query head keeps one key/value head, made of whole old ones.
    """
    old, wanted = lm.config, num_key_value_heads
    heads, present = old.num_attention_heads, old.kv_heads
    allowed = [n for n in range(1, heads + 1) if heads % n == 0 and (present % n == 0 or n % present == 0)]
    if old.attention == "mla" or (old.loadable_elsewhere and old.position_embedding == "learned"):  # gpt2
        allowed = [present]  # every query head has a key and a value of its own there
    if wanted not in allowed:
        use = ", ".join(map(str, allowed))
        raise ValueError(f"num_key_value_heads ({wanted}) does not fit {heads} query heads, {present} keys: use {use}")
    tensors = lm.state_dict()
    parts: tuple[str, ...] = ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias")
    parts += ("k_norm.weight",) if old.qk_norm == "whole" else ()
    for name in [name for name in tensors if name.endswith(parts)]:
        by_head = tensors[name].unflatten(0, (present, -1))  # (present, D, …): rows, or numbers of a bias
        if wanted > present:  # query head h reads key head h // groups: copies lie side by side, 0 0 1 1, not 0 1 0 1
            by_head = by_head.repeat_interleave(wanted // present, dim=0)
        else:
            by_head = by_head.unflatten(0, (wanted, -1)).mean(dim=1)
        tensors[name] = by_head.flatten(0, 1)
    with torch.random.fork_rng(devices=[]):  # its random weights are overwritten: the global generator stays as it is
        converted = LanguageModel(ModelConfig(**(old.model_dump() | {"num_key_value_heads": wanted})))
    converted.load_state_dict(tensors)
    converted.set_attn_implementation(lm.attn_implementation)
    return converted.to(next(lm.parameters())).train(lm.training)


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
