"""Tests of whether the model uses a head, by its loss.

Copy gain: is a text easier when it comes again? Ablation: is it still, without some heads?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
    """Mean loss on the first copy minus mean loss on the second, in nats a token.

    probe: repeated tokens, or songs; NaN if it repeats nothing. 0: nothing is copied.
    Olsson et al. 2022 (arXiv 2209.11895).
    """
    losses = token_losses(lm, probe)  # (B, T)
    first, second = copied(probe)
    return (losses[first].mean() - losses[second].mean()).item()


def copied(probe: Probe) -> tuple[Tensor, Tensor]:
    """Masks (B, T) of the tokens that copy_gain compares: first copy, second copy."""
    first, second = torch.zeros(2, *probe.input_ids.shape, dtype=torch.bool)
    if probe.period is not None:
        # The row is: bos, block, block. Without each block's first token: nothing announces it.
        first[:, 2 : 1 + probe.period] = True
        second[:, 2 + probe.period : 1 + 2 * probe.period] = True
        return first, second
    for row, pairs in enumerate(probe.targets["song"]):
        for query, keys in pairs:
            if len(keys) == 1:  # the second singing repeats the token at the key
                first[row, keys[0]] = True
                second[row, query + 1] = True
    return first, second


def token_losses(lm: LanguageModel, probe: Probe) -> Tensor:
    """Return -ln p of every token in nats, (B, T) on the CPU; NaN for the first one."""
    return predictions(lm, **probe.for_model())[0]


def second_copy_loss(lm: LanguageModel, probe: Probe) -> float:
    """Mean loss on the second copy, over the tokens of `copy_gain`."""
    return token_losses(lm, probe)[copied(probe)[1]].mean().item()


@contextmanager
def scaled(
    lm: LanguageModel,
    factors: Mapping[Head, float | Tensor],
    instead: Mapping[int, Tensor] | None = None,
) -> Iterator[None]:
    """Multiply the outputs of these (layer, head) by a factor, within this context; 0 removes one.

    instead: layer -> (B, T, H, D), of which a head writes the share 1 - factor; default: nothing

    Raises ValueError for a head that does not exist.
    """
    # before any hook is set, so that nothing has to be undone
    check_heads(lm, factors)
    config = lm.config
    modules = lm.attention_modules()

    def scale(layer: int, _module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        # a head's output is its slice of the input of o_proj
        x = inputs[0].unflatten(-1, (config.num_attention_heads, -1)).clone()  # (…, H, D)
        for (factor_layer, head), factor in factors.items():
            if factor_layer == layer:
                x[..., head, :] *= factor
                if instead is not None:
                    x[..., head, :] += (1 - factor) * instead[layer][..., head, :]
        return (x.flatten(-2),)  # (…, H * D)

    with ExitStack() as hooks:
        for layer in {layer for layer, _ in factors}:
            o_proj = modules[layer].o_proj
            hooks.enter_context(o_proj.register_forward_pre_hook(partial(scale, layer)))
        yield


def check_heads(lm: LanguageModel, heads: Iterable[Head]) -> None:
    """Raise ValueError for a head that does not exist."""
    layers = lm.config.num_hidden_layers
    count = lm.config.num_attention_heads
    for layer, head in heads:
        if not (0 <= layer < layers and 0 <= head < count):
            raise ValueError(
                f"layer {layer} has no head {head}: this model has {layers} layers "
                f"of {count} heads, counted from 0"
            )


def ablated(lm: LanguageModel, heads: Sequence[Head]) -> AbstractContextManager[None]:
    """Set the outputs of these (layer, head) to zero, within this context."""
    return scaled(lm, dict.fromkeys(heads, 0.0))


def ablation(lm: LanguageModel, probe: Probe, heads: Sequence[Head]) -> float:
    """Rise of the second copy's loss without these heads, in nats a token."""
    before = second_copy_loss(lm, probe)
    with ablated(lm, heads):
        return second_copy_loss(lm, probe) - before


def ablate_each(lm: LanguageModel, loss: Callable[[], float]) -> Tensor:
    """Ablate one head at a time, and return the rise of `loss` for each: (layer, head)."""
    before = loss()
    # note: of two heads that do the same job, each alone seems useless
    rises = torch.zeros(lm.config.num_hidden_layers, lm.config.num_attention_heads)
    for layer, head in torch.ones_like(rises).nonzero().tolist():
        with ablated(lm, [(layer, head)]):
            rises[layer, head] = loss() - before
    return rises


class Ablated(NamedTuple):
    """The rise of the second copy's loss, in nats a token, without some heads."""

    what: str  # a name of the heads, such as "random draw 1"
    heads: list[Head]
    rise: float


def ablate_strongest(
    lm: LanguageModel,
    probe: Probe,
    scores: Tensor,
    previous_token: Tensor | None = None,
    k: int = 2,
    draws: int = 5,
) -> list[Ablated]:
    """Ablate the k strongest heads, the k heads that feed them, and k random others.

    scores:         `induction` of every head, (layer, head); NaN counts as lowest
    previous_token: that score, to find the heads that feed them
    draws:          number of different random draws
    """
    k = max(1, min(k, scores.numel() // 3))  # at most a third, so that others are left to draw
    ranking = _ranked(scores)
    strongest = ranking[:k]
    # An induction head needs a previous-token head in a layer below.
    last_layer = max(layer for layer, _ in strongest)
    feeding = []
    if previous_token is not None:
        for head in _ranked(previous_token):
            if head[0] < last_layer and head not in strongest:
                feeding.append(head)
    feeding = feeding[:k]
    # in this order: the first group is the one of the run's report
    groups = {"strongest induction heads": strongest, "previous-token heads below them": feeding}
    rest = sorted(set(ranking) - {*strongest, *feeding})
    rng = Random("ablation 0")  # the same draws in every run
    drawn: list[list[Head]] = []
    # a small model may not have so many different draws
    while len(drawn) < min(draws, math.comb(len(rest), k)):
        heads = sorted(rng.sample(rest, k))
        if heads not in drawn:
            drawn.append(heads)
            groups[f"random draw {len(drawn)}"] = heads
    before = second_copy_loss(lm, probe)
    ablations = []
    for name, heads in groups.items():
        if heads:
            with ablated(lm, heads):
                ablations.append(Ablated(name, heads, second_copy_loss(lm, probe) - before))
    return ablations


def _ranked(scores: Tensor) -> list[Head]:
    order = scores.nan_to_num(-math.inf).flatten().argsort(descending=True, stable=True)
    return [divmod(index, scores.shape[1]) for index in order.tolist()]
