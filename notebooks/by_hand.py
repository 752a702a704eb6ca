"""What notebook 07 uses to look at a head that was written by hand. At the end stand the solutions of its exercises.

The stream of a token has four fields: which letter it is, which stands before it, which it predicts, and a 1.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eval.attention.controls import copied
from eval.attention.probes import Probe
from model import LanguageModel
from notebooks.pictures import heatmap

letters = "·" + string.ascii_letters + string.digits + "_"
V = len(letters)  # 64 different tokens; a head has as many numbers
TOKEN, BEFORE, NEXT, ONE = slice(0, V), slice(V, 2 * V), slice(2 * V, 3 * V), 3 * V  # which columns hold what


def tokens(text: str) -> Tensor:
    return torch.tensor([[letters.index(letter) for letter in text]])  # (1, T)


def repeated(rows: int = 16, period: int = 25) -> Probe:
    """·, a block of different random letters, and the block again: the probe repeated_2, for letters."""
    draw = torch.Generator().manual_seed(0)
    blocks = torch.stack([1 + torch.randperm(V - 1, generator=draw)[:period] for _ in range(rows)])
    ids = torch.cat([torch.zeros(rows, 1, dtype=torch.long), blocks, blocks], dim=1)
    labels = [[letters[letter] for letter in row] for row in ids.tolist()]
    return Probe("repeated_2", ids, labels, period=period, copies=2)


@torch.no_grad()
def fields(lm: LanguageModel, text: str) -> Tensor:
    """TOKEN, BEFORE and NEXT of every token after the last layer: (3, T, V). Dividing by ONE undoes the last norm."""
    hidden = lm.outputs(tokens(text), logits_to_keep=None).hidden[0]  # (T, 3 V + 1)
    return (hidden[:, :ONE] / hidden[:, ONE:]).unflatten(1, (3, V)).transpose(0, 1)


def show(lm: LanguageModel, text: str) -> None:
    """Print the letter that each field holds; –: none."""
    for name, field in zip(("TOKEN", "BEFORE", "NEXT"), fields(lm, text), strict=True):
        print(f"{name:7}", *[letters[row.argmax()] if row.max() > 0.6 else "–" for row in field])


@torch.no_grad()
def right(lm: LanguageModel, probe: Probe) -> float:
    """Share of the tokens of the second copy that the model holds for the most likely ones."""
    said = lm(probe.input_ids)[:, :-1].argmax(-1)
    return (said == probe.input_ids[:, 1:])[copied(probe)[1][:, 1:]].float().mean().item()


def draw(maps: dict[str, Tensor], labels: Sequence[str] = ()) -> None:
    """Maps (T, T) by their titles, side by side."""
    import matplotlib.pyplot as plt

    figure: Any = plt.figure(figsize=(3.9 * len(maps), 3.9), layout="constrained")
    for axes, (title, weights) in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps.items(), strict=True):
        heatmap(axes, weights, title, labels, labels)
        axes.set(xlabel="key", ylabel="query")
    plt.show()


def bars(values: dict[str, list[float]], names: Sequence[str], title: str, chance: float | None = None) -> None:
    """A group of bars a name, one for each model. chance: where a line is drawn."""
    import matplotlib.pyplot as plt

    axes: Any = plt.figure(figsize=(7.6, 2.9), layout="constrained").subplots()
    for offset, (model, heights), colour in zip((-0.2, 0.2), values.items(), ("#0072B2", "#D55E00"), strict=True):
        places = [place + offset for place in range(len(names))]
        labels = axes.bar(places, heights, width=0.38, color=colour, label=model)
        axes.bar_label(labels, fmt="{:.2f}", fontsize=8)
    if chance is not None:
        axes.axhline(chance, color="#444444", linestyle="--", linewidth=1, label="random matrices")
    axes.set_xticks(range(len(names)), names)
    axes.set_title(title, fontsize=10)
    axes.margins(y=0.12)
    axes.legend(fontsize=8)
    plt.show()


@torch.no_grad()
def followers(lm: LanguageModel, words: Sequence[int], begin: int, again: str, rows: int = 400) -> list[float]:
    """Mean probability of B and of D at the end of rows of random words: … A X B … C X D … and then `again`, AX or
    CX."""
    source = torch.Generator().manual_seed(0)
    drawn = torch.stack([torch.tensor(words)[torch.randperm(len(words), generator=source)[:17]] for _ in range(rows)])
    named = dict(zip("AXBCD", drawn[:, 12:].split(1, dim=1), strict=True))  # (rows, 1) each
    others = drawn[:, :12].split([3, 4, 5], dim=1)
    spelled = [[named[name] for name in part] for part in ("AXB", "CXD", again)]
    row = [torch.full((rows, 1), begin)]
    for some, part in zip(others, spelled, strict=True):
        row += [some, *part]
    p = lm(torch.cat(row, dim=1))[:, -1].softmax(-1)
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
