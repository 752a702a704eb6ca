"""Does a head matter? A pattern in a picture does not prove that the model uses it; the loss tells.

Copy gain: is a text easier when it comes again? Ablation: is it still, when a head's output is taken away?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor, nn

from eval.attention.probes import Probe
from eval.language_modeling import predictions
from model import LanguageModel

Head = tuple[int, int]  # layer, head


def copy_gain(lm: LanguageModel, probe: Probe) -> float:
    """Mean loss on the first copy minus mean loss on the second, in nats a token; NaN if nothing comes twice.

    probe: repeated tokens, or songs. Both means are over the same tokens. The first token of a copy counts in neither:
    nothing says that a copy begins there. 0 means that nothing is copied. Perfect copying of random tokens gives the
    whole loss of the first copy. After Olsson et al. 2022 (arXiv 2209.11895).
    """
    losses, (first, second) = token_losses(lm, probe), copied(probe)
    return (losses[first].mean() - losses[second].mean()).item()


def copied(probe: Probe) -> tuple[Tensor, Tensor]:
    """Where the tokens are that copy_gain compares: (B, T) bool of the first copy, and of the second."""
    first, second = torch.zeros(2, *probe.input_ids.shape, dtype=torch.bool)
    if probe.period is not None:
        first[:, 2 : 1 + probe.period] = True
        second[:, 2 + probe.period : 1 + 2 * probe.period] = True
    else:
        for row, pairs in enumerate(probe.targets["song"]):
            for query, keys in pairs:
                if len(keys) == 1:  # the second singing: the token behind the query is the one at the key
                    first[row, keys[0]] = second[row, query + 1] = True
    return first, second


def token_losses(lm: LanguageModel, probe: Probe) -> Tensor:
    """-ln p of every token of the probe, in nats: (B, T) on the CPU; NaN for the first one, which nothing precedes."""
    return predictions(lm, **probe.for_model())[0]


def second_copy_loss(lm: LanguageModel, probe: Probe) -> float:
    """Mean -ln p on second copies, as `copy_gain` counts it, in nats a token."""
    return token_losses(lm, probe)[copied(probe)[1]].mean().item()


@contextmanager
def scaled(lm: LanguageModel, factors: Mapping[Head, float | Tensor]) -> Iterator[None]:
    """Within this context the outputs of these heads, (layer, head) each, are multiplied by a factor.

    A head's output is its slice of what goes into o_proj: 0 is as if its columns there were zero. Raises ValueError for
    a head that does not exist.
    """
    config, modules = lm.config, lm.attention_modules()
    for layer, head in factors:
        if not (0 <= layer < len(modules) and 0 <= head < config.num_attention_heads):
            there = f"{len(modules)} layers of {config.num_attention_heads} heads"
            raise ValueError(f"layer {layer} has no head {head}: this model has {there}, counted from 0")

    def change(layer: int, _module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        x = given[0].unflatten(-1, (-1, config.value_size)).clone()  # (…, H, D)
        for (at, head), factor in factors.items():
            if at == layer:
                x[..., head, :] *= factor
        return (x.flatten(-2),)

    changed = {layer: modules[layer].o_proj for layer, _ in factors}
    handles = [o_proj.register_forward_pre_hook(partial(change, layer)) for layer, o_proj in changed.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def ablated(lm: LanguageModel, heads: Sequence[Head]) -> AbstractContextManager[None]:
    """Within this context the outputs of these heads, (layer, head) each, are zero."""
    return scaled(lm, dict.fromkeys(heads, 0.0))


def ablation(lm: LanguageModel, probe: Probe, heads: Sequence[Head]) -> float:
    """How much the mean loss on second copies rises, in nats a token, when these heads are ablated."""
    before = second_copy_loss(lm, probe)
    with ablated(lm, heads):
        return second_copy_loss(lm, probe) - before


def ablate_each(lm: LanguageModel, loss: Callable[[], float]) -> Tensor:
    """How much a loss, such as `second_copy_loss`, rises when a head is ablated, one head at a time: (layer, head)
    float32."""
    before = loss()
    rises = torch.zeros(lm.config.num_hidden_layers, lm.config.num_attention_heads)
    for layer, head in torch.cartesian_prod(*(torch.arange(size) for size in rises.shape)).tolist():
        with ablated(lm, [(layer, head)]):
            rises[layer, head] = loss() - before
    return rises


class Ablated(NamedTuple):
    """What happens without some heads. what: in words, such as "random draw 1"; rise: of the loss on second copies, in
    nats a token."""

    what: str
    heads: list[Head]
    rise: float


def ablate_strongest(
    lm: LanguageModel, probe: Probe, scores: Tensor, previous_token: Tensor | None = None, k: int = 2, draws: int = 5
) -> list[Ablated]:
    """Ablate the k heads with the highest score, the k heads that feed them, and k of the others, `draws` times.

    scores, previous_token (layer, head): `induction` of all heads, and that score; NaN counts as lowest. An induction
    head needs a previous-token head in a layer below, so the k heads with most of it there belong to the circuit: no
    random draw holds one of them. In a small model k is at most a third of the heads (but at least 1).
    """

    def ranked(scores: Tensor) -> list[Head]:
        order = scores.nan_to_num(-math.inf).flatten().argsort(descending=True, stable=True).tolist()
        return [divmod(place, scores.shape[1]) for place in order]

    k = max(1, min(k, scores.numel() // 3))
    strongest = ranked(scores)[:k]
    below = max(layer for layer, _ in strongest)
    fed_by = [] if previous_token is None else [head for head in ranked(previous_token) if head[0] < below]
    feeding = [head for head in fed_by if head not in strongest][:k]
    groups = {"strongest induction heads": strongest, "previous-token heads below them": feeding}
    others, rng = sorted(set(ranked(scores)) - {*strongest, *feeding}), Random("ablation 0")
    drawn: list[list[Head]] = []
    while len(drawn) < min(draws, math.comb(len(others), k)):
        if (heads := sorted(rng.sample(others, k))) not in drawn:
            drawn.append(heads)
    groups |= {f"random draw {number}": heads for number, heads in enumerate(drawn, start=1)}
    before, ablations = second_copy_loss(lm, probe), []
    for what, heads in groups.items():
        if heads:
            with ablated(lm, heads):
                ablations.append(Ablated(what, heads, second_copy_loss(lm, probe) - before))
    return ablations
