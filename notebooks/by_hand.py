"""Helpers for notebook 07, in which you write a head by hand, and the solutions of its exercises.

The stream of a token has four fields: its letter, the letter before it, the predicted letter, a 1.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from eval.attention.controls import copied
from eval.attention.probes import Probe
from model import LanguageModel, ModelConfig
from notebooks.pictures import heatmap

letters = "·" + string.ascii_letters + string.digits + "_"
V = len(letters)  # There are 64 tokens, and a head has as many numbers.
# The columns of the fields.
TOKEN = slice(0, V)
BEFORE = slice(V, 2 * V)
NEXT = slice(2 * V, 3 * V)
ONE = 3 * V
# Two layers of one head, with RoPE in layer 0 alone.
CONFIG = ModelConfig(
    vocab_size=V,
    hidden_size=3 * V + 1,
    num_hidden_layers=2,
    intermediate_size=1,
    num_attention_heads=1,
    num_key_value_heads="mha",
    head_dim=V,
    qk_norm=False,
    scale_attn_weights=False,
    no_rope_layers=[1, 0],
    loadable_elsewhere=False,
)


@torch.no_grad()
def blank() -> LanguageModel:
    """Return a model without attention: the embedding writes TOKEN and ONE, lm_head reads NEXT."""
    lm = LanguageModel(CONFIG).eval()
    for parameter in lm.parameters():
        parameter.zero_()
    lm.model.embed_tokens.weight[:, TOKEN] = torch.eye(V)
    lm.model.embed_tokens.weight[:, ONE] = 1
    lm.lm_head.weight[:, NEXT] = torch.eye(V)
    # with the number of ones that a token holds in this layer, a norm changes nothing
    for layer, ones in zip(lm.model.layers, (2, 3), strict=True):
        norm: Any = layer.input_layernorm
        norm.weight.fill_((ones / CONFIG.hidden_size) ** 0.5)
    last: Any = lm.model.norm
    last.weight.fill_(1)
    return lm


@torch.no_grad()
def built(*steps: Callable[..., None]) -> LanguageModel:
    """Return a blank model after these steps. Each step fills the matrices that it gets."""
    lm = blank()
    (q0, k0, v0, o0), (q1, k1, v1, o1) = (layer.parameters() for layer in lm.attention_modules())
    angles = lm.model.rotary_emb.inv_freq
    of_steps = (q0, k0, angles), (v0, o0), (q1, k1, v1, o1), (q1, k1, v1)
    for step, matrices in zip(steps, of_steps, strict=False):
        step(*matrices)
    return lm


def tokens(text: str) -> Tensor:
    return torch.tensor([[letters.index(letter) for letter in text]])  # (1, T)


def repeated(rows: int = 16, period: int = 25) -> Probe:
    """Return the probe repeated_2 for letters: ·, a random block, and the same block again."""
    draw = torch.Generator().manual_seed(0)
    blocks = torch.stack([1 + torch.randperm(V - 1, generator=draw)[:period] for _ in range(rows)])
    ids = torch.cat([torch.zeros(rows, 1, dtype=torch.long), blocks, blocks], dim=1)
    labels = [[letters[letter] for letter in row] for row in ids.tolist()]
    return Probe("repeated_2", ids, labels, period=period, copies=2)


@torch.no_grad()
def fields(lm: LanguageModel, text: str) -> Tensor:
    """Return TOKEN, BEFORE and NEXT of every token after the last layer: (3, T, V)."""
    hidden = lm.outputs(tokens(text), logits_to_keep=None).hidden[0]  # (T, 3 V + 1)
    hidden = hidden[:, :ONE] / hidden[:, ONE:]  # undoes the last norm
    return hidden.unflatten(1, (3, V)).transpose(0, 1)


def show(lm: LanguageModel, text: str) -> None:
    """Print the letter of each field, or – if it is empty."""
    for name, field in zip(("TOKEN", "BEFORE", "NEXT"), fields(lm, text), strict=True):
        print(f"{name:7}", *[letters[row.argmax()] if row.max() > 0.6 else "–" for row in field])


@torch.no_grad()
def right(lm: LanguageModel, probe: Probe) -> float:
    """Return the share of tokens that the model predicts in the second copy."""
    predicted = lm(probe.input_ids)[:, :-1].argmax(-1)
    is_right = predicted == probe.input_ids[:, 1:]
    return is_right[copied(probe)[1][:, 1:]].float().mean().item()


def draw(maps: dict[str, Tensor], labels: Sequence[str] = ()) -> None:
    """Draw maps (T, T) side by side, with their titles."""
    import matplotlib.pyplot as plt

    figure: Any = plt.figure(figsize=(3.9 * len(maps), 3.9), layout="constrained")
    row = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, (title, weights) in zip(row, maps.items(), strict=True):
        heatmap(axes, weights, title, labels, labels)
        axes.set(xlabel="key", ylabel="query")
    plt.show()


def bars(
    values: dict[str, list[float]], names: Sequence[str], title: str, chance: float | None = None
) -> None:
    """Draw a bar for each name and model. chance: the height of a dashed line."""
    import matplotlib.pyplot as plt

    axes: Any = plt.figure(figsize=(7.6, 2.9), layout="constrained").subplots()
    colours = ("#0072B2", "#D55E00")
    for offset, (model, heights), colour in zip((-0.2, 0.2), values.items(), colours, strict=True):
        x = [i + offset for i in range(len(names))]
        drawn = axes.bar(x, heights, width=0.38, color=colour, label=model)
        axes.bar_label(drawn, fmt="{:.2f}", fontsize=8)
    if chance is not None:
        style = {"color": "#444444", "linestyle": "--", "linewidth": 1}
        axes.axhline(chance, label="random matrices", **style)
    axes.set_xticks(range(len(names)), names)
    axes.set_title(title, fontsize=10)
    axes.margins(y=0.12)
    axes.legend(fontsize=8)
    plt.show()


@torch.no_grad()
def followers(
    lm: LanguageModel, words: Sequence[int], begin: int, again: str, rows: int = 400
) -> list[float]:
    """Return the mean probabilities of B and D after … A X B … C X D … `again`, AX or CX."""
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(words), generator=generator)[:17] for _ in range(rows)]
    drawn = torch.tensor(words)[torch.stack(orders)]  # (rows, 17)
    named = dict(zip("AXBCD", drawn[:, 12:].split(1, dim=1), strict=True))  # (rows, 1) each
    gaps = drawn[:, :12].split([3, 4, 5], dim=1)
    parts = [torch.full((rows, 1), begin)]
    for gap, names in zip(gaps, ("AXB", "CXD", again), strict=True):
        parts.append(gap)
        parts += [named[name] for name in names]
    p = lm(torch.cat(parts, dim=1))[:, -1].softmax(-1)
    return [p.gather(1, named[name]).mean().item() for name in "BD"]


# The solutions. A matrix W computes head[row] = Σ W[row, column] · stream[column].


def look_back(q: Tensor, k: Tensor, angles: Tensor) -> None:
    half = len(angles)
    k[:half, ONE] = 10
    q[:half, ONE] = angles.cos()
    q[half:, ONE] = -angles.sin()


def hand_over(v: Tensor, o: Tensor) -> None:
    v[:, TOKEN] = torch.eye(V)
    o[BEFORE, :] = torch.eye(V)


def match(q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> None:
    q[:, TOKEN] = 20 * torch.eye(V)
    k[:, BEFORE] = torch.eye(V)
    v[:, TOKEN] = torch.eye(V)
    o[NEXT, :] = torch.eye(V)
