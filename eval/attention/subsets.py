"""Every subset of a model's heads: what does each head add, alone and together with others?

With n heads there are 2^n subsets. For each, all other heads are switched off, and a value is
measured, such as the copy gain. So three things are exact that are usually sampled:

    Shapley values   a head's mean contribution over all orders of switching heads on; they add up
                     to the value of all heads minus that of none (Shapley 1953)
    smallest set     the fewest heads that keep 95 % of the value
    rank of a pair   among all pairs, by what the two reach alone, and by what is lost without both:
                     rank / pairs is an exact p-value of choosing a pair at random

Off can mean three things: a head's output becomes zero, its mean, or that of another row
(resample). The pair is chosen on one half of the rows, and the values are measured on the other.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from configs.text import table
from eval.attention import metrics
from eval.attention.capture import capture, layers_with_weights
from eval.attention.controls import Head, copied, scaled
from eval.attention.inside import passing
from eval.attention.probes import Probe
from eval.language_modeling import LOGITS, predictions
from model import LanguageModel
from model.accounting import flops_per_token

ABLATIONS = ("zero", "mean", "resample")
# 4,096 subsets. One more head takes twice as long.
MOST_HEADS = 12
# A run's report has the subsets if they take at most this many floating-point operations: a minute
# on a slow core.
QUICK = 1e12
# The most tokens of one forward pass: small matrices stay in a processor's cache.
TOKENS = 1 << 13
# The smallest set of heads keeps this share of the value.
KEPT = 0.95


class Value(NamedTuple):
    """A figure of a model: the sum of (weight x loss) over the tokens of a probe."""

    name: str
    probe: Probe
    weights: Tensor  # (B, T)


class Subsets(NamedTuple):
    """Values of all subsets. A subset is a number whose bit i is 1 if heads[i] is on."""

    heads: list[Head]
    values: dict[str, np.ndarray]  # ablation -> (2^n,)

    def shapley(self, ablation: str) -> np.ndarray:
        """Return each head's Shapley value, (n,). Their sum is values[-1] - values[0]."""
        values = self.values[ablation]
        n = len(self.heads)
        subsets = np.arange(2**n)
        sizes = sizes_of(n)
        # the share of orders in which exactly the heads of a subset come before this head
        share = np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)])
        shapley = np.zeros(n)
        for i in range(n):
            # compare every subset without head i with the same subset and head i
            without = subsets[(subsets >> i) & 1 == 0]
            gains = values[without | (1 << i)] - values[without]
            shapley[i] = (share[sizes[without]] * gains).sum()
        return shapley

    def smallest(self, ablation: str) -> list[Head]:
        """Return the smallest set that keeps KEPT of the value; if there are several, the best."""
        values = self.values[ablation]
        enough = values[0] + KEPT * (values[-1] - values[0])
        sizes = sizes_of(len(self.heads))
        # if all heads together are no better than none, the empty set is enough
        sufficient = np.flatnonzero(values >= enough) if values[-1] > values[0] else np.array([0])
        fewest = sufficient[sizes[sufficient] == sizes[sufficient].min()]
        best = int(fewest[np.argmax(values[fewest])])
        return [head for i, head in enumerate(self.heads) if (best >> i) & 1]

    def rank(self, ablation: str, pair: Sequence[Head], is_on: bool) -> tuple[int, int]:
        """Return the rank of a pair among all pairs (1 = first), and the number of pairs.

        is_on: rank by the value with only these two heads on. Else by the value that is lost
               without them: if one head alone is necessary, all pairs with it lose as much.
        """
        values = self.values[ablation]
        all_heads = len(values) - 1
        amounts = {}
        for i, j in combinations(range(len(self.heads)), 2):
            subset = (1 << i) | (1 << j)
            amounts[i, j] = values[subset] if is_on else -values[all_heads & ~subset]
        first, second = sorted(map(self.heads.index, pair))
        own = amounts[first, second]
        # equal pairs count as better, so the p-value is never too small
        return sum(amount >= own for amount in amounts.values()), len(amounts)


def sizes_of(n: int) -> np.ndarray:
    """Return the number of heads in each of the 2^n subsets."""
    return np.array([subset.bit_count() for subset in range(2**n)])


def copy_value(probe: Probe) -> Value:
    """The copy gain: mean loss on first copies minus mean loss on second copies."""
    first, second = copied(probe)  # (B, T): 1 for the tokens of that copy
    return Value("copy gain", probe, first / first.sum() - second / second.sum())


def name_value(probe: Probe) -> Value:
    """The mean ln p of words that a story mentions again."""
    again = torch.zeros(probe.input_ids.shape)
    for row, pairs in enumerate(probe.targets["writes"]):
        for query, _ in pairs:
            again[row, query + 1] = 1.0
    return Value("name in a story", probe, -again / again.sum())


def is_quick(lm: LanguageModel, probe: Probe) -> bool:
    """Return True if a run's report should have all subsets of its heads, on half of the rows."""
    # layers of linear attention have no heads that could be switched off
    n = len(layers_with_weights(lm.config)) * lm.config.num_attention_heads
    B, T = probe.input_ids.shape
    per_token = flops_per_token(lm, T, training=False)
    # A forward pass for each subset, in each of the three ways to switch heads off.
    # B // 2: half of the rows are measured, the other half only chooses the pair.
    return n <= MOST_HEADS and len(ABLATIONS) * 2**n * B // 2 * T * per_token <= QUICK


def halves(probe: Probe) -> tuple[Probe, Probe]:
    """Split a probe's rows: to choose heads on, and to measure them on."""
    middle = len(probe.input_ids) // 2
    return _rows(probe, slice(0, middle)), _rows(probe, slice(middle, None))


def _rows(probe: Probe, rows: slice) -> Probe:
    return replace(
        probe,
        input_ids=probe.input_ids[rows],
        labels=probe.labels[rows],
        real=None if probe.real is None else probe.real[rows],
        targets={kind: targets[rows] for kind, targets in probe.targets.items()},
    )


def named_pair(lm: LanguageModel, probe: Probe) -> list[Head]:
    """Return the strongest previous-token head, and the strongest induction head above it.

    They are named by their scores, before any head is switched off. probe: repeated tokens.
    Returns [] if there is no layer below the induction head's.
    """
    maps = capture(lm, probe.input_ids.to(lm.device))
    induction = metrics.score(maps, probe)["induction"].nan_to_num(-1)
    layer, head = divmod(int(induction.argmax()), induction.shape[1])
    # below only: a head cannot read what a later layer writes
    previous = metrics.previous_token(maps.weights).mean(1)[:layer]  # (layers below, head)
    if not len(previous):
        return []
    layer_below, partner = divmod(int(previous.argmax()), previous.shape[1])
    return [(maps.layers[layer_below], partner), (maps.layers[layer], head)]


@torch.no_grad()
def measure_subsets(
    lm: LanguageModel, value: Value, ablations: Sequence[str] = ABLATIONS
) -> Subsets:
    """Measure a value with every subset of the heads. Raises ValueError above MOST_HEADS."""
    layers = layers_with_weights(lm.config)
    heads = [(layer, head) for layer in layers for head in range(lm.config.num_attention_heads)]
    n = len(heads)
    if n > MOST_HEADS:
        raise ValueError(
            f"{n} heads have {2**n:,} subsets: at most {MOST_HEADS} heads are measured"
        )
    inputs = value.probe.for_model(lm.device)
    modules = lm.attention_modules()
    passes = passing(lm, inputs["input_ids"], [modules[layer].o_proj for layer in layers])
    outputs = {}  # of the heads, beside each other in the input of o_proj: (B, T, H, D)
    for layer, (z, _) in zip(layers, passes, strict=True):
        outputs[layer] = z.unflatten(-1, (lm.config.num_attention_heads, -1))
    B, T = value.probe.input_ids.shape
    tokens = min(TOKENS, LOGITS // lm.lm_head.out_features)
    at_once = max(1, tokens // (B * T))  # subsets in one forward pass
    values = {}
    for ablation in ablations:
        replacements = {layer: replacement(outputs[layer], ablation) for layer in layers}
        parts = []
        for subsets in torch.arange(2**n).split(at_once):
            repeats = len(subsets)
            factors = {}
            for i, head in enumerate(heads):
                # (subsets * B,): the rows of a subset are neighbours
                is_on = ((subsets >> i) & 1).repeat_interleave(B)
                factors[head] = is_on[:, None, None].to(outputs[head[0]])
            tiled = {layer: x.repeat(repeats, 1, 1, 1) for layer, x in replacements.items()}
            # the same rows once for each subset: the subsets differ only in the factors
            batch = {name: x.repeat(repeats, 1) for name, x in inputs.items()}
            with scaled(lm, factors, tiled):
                losses = predictions(lm, **batch)[0].view(repeats, B, T)
            # the first token has no loss, and its weight is 0
            parts.append((losses.nan_to_num(0) * value.weights).double().sum((1, 2)))
        # float64 sums: of thousands of subsets, close ones must not tie by rounding
        values[ablation] = torch.cat(parts).numpy()
    return Subsets(heads, values)


def replacement(outputs: Tensor, ablation: str) -> Tensor:
    """Return what a head writes instead when it is off, (B, T, H, D)."""
    # Zeros are far from all that later layers have seen, and may cost more than the head is worth.
    # The two others stay among what heads write.
    if ablation == "zero":
        return torch.zeros_like(outputs)
    if ablation == "mean":  # over all rows and tokens
        return outputs.mean((0, 1), keepdim=True).expand_as(outputs)
    return outputs.roll(1, dims=0)  # resample: the same position of another row


def summary(subsets: Subsets, value: Value, pair: Sequence[Head]) -> str:
    """Return a table: Shapley values, some subsets, the smallest set, the rank of the pair."""
    rows = []
    shapley = {ablation: subsets.shapley(ablation) for ablation in subsets.values}
    for i, (layer, head) in enumerate(subsets.heads):
        mark = " (named)" if (layer, head) in pair else ""
        cells = [f"{values[i]:+.3f}" for values in shapley.values()]
        rows.append([f"L{layer} H{head}{mark}", *cells])
    # bits again: all ones is every head, and `& ~named` takes the pair out
    all_heads = 2 ** len(subsets.heads) - 1
    named = sum(1 << subsets.heads.index(head) for head in pair)
    lines = {"all heads": all_heads, "no head": 0}
    if pair:
        lines |= {"only the named pair": named, "all but the named pair": all_heads & ~named}
    for label, subset in lines.items():
        rows.append([label, *(f"{values[subset]:+.3f}" for values in subsets.values.values())])
    sets = []
    ranks: dict[str, list[str]] = {"alone": [], "missing": []} if pair else {}
    for ablation in subsets.values:
        sets.append(", ".join(f"L{i} H{j}" for i, j in subsets.smallest(ablation)) or "none")
        for state, cells in ranks.items():
            rank, pairs = subsets.rank(ablation, pair, state == "alone")
            cells.append(f"{rank} of {pairs} (p = {rank / pairs:.3f})")
    rows.append([f"fewest heads that keep {KEPT:.0%}", *sets])
    for state, cells in ranks.items():
        rows.append([f"rank of the named pair, {state}", *cells])
    header = [f"{value.name}, nats", *(f"off = {ablation}" for ablation in subsets.values)]
    return table(header, rows)
