"""Does a head matter? A pattern in a picture does not prove that the model uses it; the loss tells.

Copy gain: is a text easier when it comes again? Ablation: is it still, when a head's output is taken away?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.attention.probes import Probe
from eval.attention.snapshots import Ablated, Head
from eval.language_modeling import evaluating
from model import LanguageModel

How = Literal["zero", "mean"]
Change = Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]  # of what goes into o_proj: a forward pre-hook
LOGITS = 2**25  # that are in memory at a time: 128 MB


def copy_gain(lm: LanguageModel, probe: Probe) -> float:
    """Mean loss on the first copy minus mean loss on the second, in nats a token; NaN if nothing comes twice.

    probe: repeated tokens, or songs. Both means are over the same tokens. The first token of a copy counts in neither:
    nothing says that a copy begins there. 0 means that nothing is copied. Perfect copying of random tokens gives the
    whole loss of the first copy. After Olsson et al. 2022 (arXiv 2209.11895).
    """
    losses, (first, second) = token_losses(lm, probe), copied(probe)
    return (losses[first].mean() - losses[second].mean()).item()


def copied(probe: Probe) -> tuple[Tensor, Tensor]:
    """Where the tokens are that copy_gain compares: (B, T) bool of the first copy, and of the second.

    Raises ValueError for a probe in which nothing is repeated.
    """
    first, second = torch.zeros(2, *probe.input_ids.shape, dtype=torch.bool)
    if probe.period is not None:
        begin, again = probe.first, probe.first + probe.period
        first[:, begin + 1 : again] = True
        second[:, again + 1 : again + probe.period] = True
    elif "song" in probe.targets:
        for row, pairs in enumerate(probe.targets["song"]):
            for query, keys in pairs:
                if len(keys) == 1:  # the second singing: the token behind the query is the one at the key
                    first[row, keys[0]] = second[row, query + 1] = True
    else:
        raise ValueError(f"nothing comes twice in the probe {probe.name}: use repeated_2, repeated_4 or songs")
    return first, second


@torch.no_grad()
def token_losses(lm: LanguageModel, probe: Probe) -> Tensor:
    """-ln p of every token of the probe, in nats: (B, T) float32 on the CPU; NaN for the first one, which nothing
    precedes. Some rows at a time, where the vocabulary is large. Leaves every module's mode as it was."""
    given = probe.for_model(next(lm.parameters()).device)
    ids, losses = given["input_ids"], torch.full(probe.input_ids.shape, math.nan)
    rows = max(1, LOGITS // (ids.shape[1] * lm.lm_head.out_features))
    with evaluating(lm):
        for start in range(0, len(ids), rows):
            some = slice(start, start + rows)
            logits = lm(**{name: values[some] for name, values in given.items()})[:, :-1].float()
            losses[some, 1:] = F.cross_entropy(logits.transpose(1, 2), ids[some, 1:], reduction="none").cpu()
    return losses


def second_copy_loss(lm: LanguageModel, probe: Probe) -> float:
    """Mean -ln p on second copies, as `copy_gain` counts it, in nats a token."""
    return token_losses(lm, probe)[copied(probe)[1]].mean().item()


@contextmanager
def ablated(lm: LanguageModel, heads: Sequence[Head], how: How = "zero", real: Tensor | None = None) -> Iterator[None]:
    """Within this context the outputs of these heads, (layer, head) each, are zero, or their mean.

    A head's output is its slice of what goes into o_proj: "zero" is as if its columns of o_proj were zero. "mean" is
    its mean over the rows and tokens of the forward pass (real (B, T): over these alone), so that only what differs
    from token to token is lost. Raises ValueError for a head that does not exist; nothing is left behind.
    """
    if how not in ("zero", "mean"):
        raise ValueError(f"how is {how!r}: use 'zero' or 'mean'")
    chosen: dict[int, list[int]] = {}
    for layer, head in heads:
        chosen.setdefault(layer, []).append(head)
    changes = {layer: _without(numbers, lm.config.value_size, how, real) for layer, numbers in chosen.items()}
    with _changing_outputs(lm, heads, changes):
        yield


@contextmanager
def scaled(lm: LanguageModel, factors: Mapping[Head, float]) -> Iterator[None]:
    """Within this context the outputs of these heads, (layer, head) each, are multiplied by a factor.

    0 is what `ablated` does by "zero"; 1 changes nothing, to the last bit. Raises ValueError for a head that does not
    exist; nothing is left behind.
    """
    chosen: dict[int, dict[int, float]] = {}
    for (layer, head), factor in factors.items():
        chosen.setdefault(layer, {})[head] = factor
    changes = {layer: _times(numbers, lm.config.value_size) for layer, numbers in chosen.items()}
    with _changing_outputs(lm, list(factors), changes):
        yield


@contextmanager
def _changing_outputs(lm: LanguageModel, heads: Sequence[Head], changes: Mapping[int, Change]) -> Iterator[None]:
    """Within this context, what goes into o_proj of a layer is changed first."""
    for layer, head in heads:
        if not (0 <= layer < lm.config.num_hidden_layers and 0 <= head < lm.config.num_attention_heads):
            there = f"{lm.config.num_hidden_layers} layers of {lm.config.num_attention_heads} heads"
            raise ValueError(f"layer {layer} has no head {head}: this model has {there}, counted from 0")
    modules, handles = lm.attention_modules(), []
    try:
        for layer, change in changes.items():
            handles.append(modules[layer].o_proj.register_forward_pre_hook(change))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _times(factors: Mapping[int, float], value_size: int) -> Change:
    def change(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        x = given[0].unflatten(-1, (-1, value_size)).clone()  # (B, T, H, D)
        for head, factor in factors.items():
            x[:, :, head] *= factor
        return (x.flatten(2),)

    return change


def _without(heads: list[int], value_size: int, how: How, real: Tensor | None) -> Change:
    def change(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        x = given[0].unflatten(-1, (-1, value_size)).clone()  # (B, T, H, D)
        if how == "zero":
            x[:, :, heads] = 0
        else:
            seen = x[:, :, heads].flatten(0, 1) if real is None else x[:, :, heads][real.to(x.device)]
            x[:, :, heads] = seen.mean(0)
        return (x.flatten(2),)

    return change


def ablation(lm: LanguageModel, probe: Probe, heads: Sequence[Head], how: How = "zero") -> float:
    """How much the mean loss on second copies rises, in nats a token, when these heads are ablated."""
    before = second_copy_loss(lm, probe)
    with ablated(lm, heads, how, probe.real):
        return second_copy_loss(lm, probe) - before


def ablate_each(lm: LanguageModel, probe: Probe, how: How = "zero") -> Tensor:
    """`ablation` of every head alone: (layer, head) float32, in nats a token. One forward pass a head.

    Shows what an induction head is made of: it and the previous-token head below it cost about the same.
    """
    return rises_without_each(lm, lambda: second_copy_loss(lm, probe), how, probe.real)


def rises_without_each(
    lm: LanguageModel, loss: Callable[[], float], how: How = "zero", real: Tensor | None = None
) -> Tensor:
    """How much a loss rises when a head is ablated, one head at a time: (layer, head) float32."""
    before = loss()
    rises = torch.zeros(lm.config.num_hidden_layers, lm.config.num_attention_heads)
    for layer, head in torch.cartesian_prod(*(torch.arange(size) for size in rises.shape)).tolist():
        with ablated(lm, [(layer, head)], how, real):
            rises[layer, head] = loss() - before
    return rises


@dataclass(frozen=True)
class Ablation:
    """The strongest heads, those that feed them, and random others, each ablated together.

    strongest: the heads with the highest score, strongest first. feeding: the previous-token heads below them; None
    where there are none. draws: of as many other heads, each draw another set.
    """

    strongest: Ablated
    feeding: Ablated | None
    draws: list[Ablated]

    @property
    def random_rise(self) -> float:
        """The mean of the draws; NaN without any."""
        return sum(draw.rise for draw in self.draws) / len(self.draws) if self.draws else math.nan

    @property
    def rows(self) -> list[Ablated]:
        """Everything that was ablated, for a table."""
        return [self.strongest, *([self.feeding] if self.feeding else []), *self.draws]


def ablate_strongest(
    lm: LanguageModel,
    probe: Probe,
    scores: Tensor,
    previous_token: Tensor | None = None,
    k: int = 2,
    draws: int = 5,
    how: How = "zero",
    seed: int = 0,
) -> Ablation:
    """Ablate the k heads with the highest score, the k heads that feed them, and k of the others, `draws` times.

    scores (layer, head): `induction` of all heads; NaN counts as lowest. previous_token (layer, head): that score. An
    induction head needs a previous-token head in a layer below, so the k heads with most of it there belong to the
    circuit: no random draw holds one of them. In a small model k is at most a third of the heads (but at least 1).
    The global random state is not touched. Raises ValueError for scores of another shape.
    """
    shape = (lm.config.num_hidden_layers, lm.config.num_attention_heads)
    for given in (scores, *([] if previous_token is None else [previous_token])):
        if tuple(given.shape) != shape:
            raise ValueError(
                f"scores has shape {tuple(given.shape)}: give one number for each of {shape} (layer, head)"
            )
    k = max(1, min(k, scores.numel() // 3))
    strongest = _ranked(scores)[:k]
    below = max(layer for layer, _ in strongest)
    fed_by = [] if previous_token is None else [head for head in _ranked(previous_token) if head[0] < below]
    feeding = [head for head in fed_by if head not in strongest][:k]
    others, rng = sorted(set(_ranked(scores)) - {*strongest, *feeding}), Random(f"ablation {seed}")
    drawn: list[list[Head]] = []
    while len(drawn) < min(draws, math.comb(len(others), k)):
        if (heads := sorted(rng.sample(others, k))) not in drawn:
            drawn.append(heads)
    before = second_copy_loss(lm, probe)

    def without(what: str, heads: list[Head]) -> Ablated:
        with ablated(lm, heads, how, probe.real):
            return Ablated(what, heads, second_copy_loss(lm, probe) - before)

    return Ablation(
        without("strongest induction heads", strongest),
        without("previous-token heads below them", feeding) if feeding else None,
        [without(f"random draw {number}", heads) for number, heads in enumerate(drawn, start=1)],
    )


def _ranked(scores: Tensor) -> list[Head]:
    """All heads, that with the highest score first; NaN counts as lowest."""
    order = scores.nan_to_num(-math.inf).flatten().argsort(descending=True, stable=True).tolist()
    return [divmod(place, scores.shape[1]) for place in order]
