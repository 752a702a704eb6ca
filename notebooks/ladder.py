"""Rungs that no config has: `python -m notebooks.ladder > without.jsonl`, half a minute each.

They are one_file.py without one of its parts, on its made-up words. The results of this command are
in ladder_seeds.json, under "without".
"""

import argparse
import json
import math
from contextlib import redirect_stdout
from io import StringIO
from itertools import product
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from configs.command import exit_on_bad_input
from notebooks import one_file


class NoResidual(one_file.Layer):
    def forward(self, x, cos, sin):  # one_file.py has `x = x + …` and `return x + …`
        x = self.self_attn(self.input_layernorm(x), cos, sin)
        y = self.post_attention_layernorm(x)
        return self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


class Filled(one_file.LanguageModel):
    def __init__(self, config, vocab_size):
        super().__init__(config, vocab_size)
        for layer in self.model.layers:  # zeros would stay zeros: without `x +` nothing passes them
            for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
                nn.init.normal_(matrix.weight, std=matrix.in_features**-0.5)


class NoRoot(one_file.Attention):
    def __init__(self, config):
        super().__init__(config)  # queries are longer by √D, which cancels the kernel's 1/√D
        self.q_norm.register_forward_hook(lambda norm, inputs, q: q * q.shape[-1] ** 0.5)


RUNGS = {  # the names of one_file.py that are replaced
    "baseline": {"Layer": one_file.Layer},
    "no-residual": {"Layer": NoResidual, "LanguageModel": Filled},
    "no-norm": {"RMSNorm": lambda size, gain=1.0: nn.Identity()},  # QK-norm, too
    "no-sqrt": {"Attention": NoRoot},
}


def train(rung, lr=0.005, seed=0, **settings):
    """Return nats a character on unseen lines: where words are new, and where they come again."""
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = np.random.default_rng(0).choice(syllables, (5000, 2, 2))
    lines = [" ".join(["".join(word) for word in line] * 6) for line in words]
    settings = {"sequence_length": 64, "tokens_per_step": 512, "max_steps": 600} | settings
    with mock.patch.multiple(one_file, **RUNGS[rung]), redirect_stdout(StringIO()):
        config = one_file.Config(lr=lr, seed=seed, **settings)
        model, vocabulary, _ = one_file.train("\n".join(lines), config)
    ids = torch.tensor([[vocabulary.index(c) for c in line] for line in lines[-200:]])
    with torch.no_grad():
        logits = model(ids[:, :-1]).transpose(1, 2)  # (line, V, T)
        losses = F.cross_entropy(logits, ids[:, 1:], reduction="none").mean(0)  # (T,)
    results = {"new": losses[:8].mean().item(), "again": losses[20:].mean().item()}
    rounded = {key: round(x, 3) if math.isfinite(x) else None for key, x in results.items()}
    return {"rung": rung, "lr": lr, "seed": seed} | rounded


def main():
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=form).parse_args()
    torch.set_num_threads(1)  # so that a second machine's sums have the same order
    for seed, lr, rung in product(range(3), (0.005, 0.03), RUNGS):
        print(json.dumps(train(rung, lr, seed)), flush=True)


if __name__ == "__main__":
    exit_on_bad_input(main)
