"""Controls: what heads do to the loss, since a pattern in a picture is no proof that anything comes of it.

Copy gain: is a text easier when it comes again? Ablation: does it stay so when a head is silenced?
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.attention.probes import Probe
from eval.eval_mode import evaluating
from model import LanguageModel

Head = tuple[int, int]  # layer, head
How = Literal["zero", "mean"]
LOGITS = 2**25  # that are in memory at a time: 128 MB


def copy_gain(lm: LanguageModel, probe: Probe) -> float:
    """Mean loss on the first copy minus mean loss on the second, in nats a token; NaN if nothing comes twice.

    probe: repeated tokens, or songs. The same tokens are compared, each as it is predicted from what precedes it. The
    first token of a copy counts in neither: nothing says that a copy begins there. 0 = nothing is copied. Random tokens
    that are copied without a doubt give the whole loss of the first copy. After Olsson et al. 2022 (arXiv 2209.11895).
    """
    losses, (first, second) = token_losses(lm, probe), copied(probe)
    return (losses[first].mean() - losses[second].mean()).item()


def copied(probe: Probe) -> tuple[Tensor, Tensor]:
    """Where the tokens are that copy_gain compares: (B, T) bool of the first copy, and of the second.

    Raises ValueError for a probe in which nothing is told again.
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
        raise ValueError(f"nothing is told twice in the probe {probe.name}: use repeated_2, repeated_4 or songs")
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
        if not (0 <= layer < lm.config.num_hidden_layers and 0 <= head < lm.config.num_attention_heads):
            there = f"{lm.config.num_hidden_layers} layers of {lm.config.num_attention_heads} heads"
            raise ValueError(f"layer {layer} has no head {head}: this model has {there}, counted from 0")
        chosen.setdefault(layer, []).append(head)
    modules = lm.attention_modules()
    handles = []
    try:
        for layer, numbers in chosen.items():
            silence = _silence(numbers, lm.config.head_size, how, real)
            handles.append(modules[layer].o_proj.register_forward_pre_hook(silence))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _silence(heads: list[int], head_dim: int, how: How, real: Tensor | None):
    def change(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        x = given[0].unflatten(-1, (-1, head_dim)).clone()  # (B, T, H, D)
        if how == "zero":
            x[:, :, heads] = 0
        else:
            seen = x[:, :, heads].flatten(0, 1) if real is None else x[:, :, heads][real.to(x.device)]
            x[:, :, heads] = seen.mean(0)
        return (x.flatten(2),)

    return change


def ablation(lm: LanguageModel, probe: Probe, heads: Sequence[Head], how: How = "zero") -> float:
    """How much the mean loss on second copies rises, in nats a token, when these heads are silenced."""
    before = second_copy_loss(lm, probe)
    with ablated(lm, heads, how, probe.real):
        return second_copy_loss(lm, probe) - before


def ablate_each(lm: LanguageModel, probe: Probe, how: How = "zero") -> Tensor:
    """`ablation` of every head alone: (layer, head) float32, in nats a token. One forward pass a head.

    Shows what an induction head is made of: it and the previous-token head below it cost about the same.
    """
    before = second_copy_loss(lm, probe)
    rises = torch.zeros(lm.config.num_hidden_layers, lm.config.num_attention_heads)
    for layer, head in torch.cartesian_prod(*(torch.arange(size) for size in rises.shape)).tolist():
        with ablated(lm, [(layer, head)], how, probe.real):
            rises[layer, head] = second_copy_loss(lm, probe) - before
    return rises


@dataclass(frozen=True)
class Ablation:
    """What silencing does to the loss on second copies, in nats a token.

    heads: the strongest ones, strongest first; rise: when they are silenced
    random_heads: as many of the others, several different draws; random_rises: when these are
    """

    heads: list[Head]
    rise: float
    random_heads: list[list[Head]]
    random_rises: list[float]

    @property
    def random_rise(self) -> float:
        """The mean of the draws; NaN if there was none."""
        return sum(self.random_rises) / len(self.random_rises) if self.random_rises else math.nan


def ablate_strongest(
    lm: LanguageModel, probe: Probe, scores: Tensor, k: int = 2, draws: int = 5, how: How = "zero", seed: int = 0
) -> Ablation:
    """Silence the k heads with the highest score, and for comparison k of the others, `draws` times.

    scores (layer, head): of all heads, such as `induction`; NaN counts as lowest. Where a model has fewer than 2 k
    heads, k is half of them (at least 1; a single head has no others, so there are no draws). Global random state is
    not touched. Raises ValueError for scores of another shape.
    """
    shape = (lm.config.num_hidden_layers, lm.config.num_attention_heads)
    if tuple(scores.shape) != shape:
        raise ValueError(f"scores has shape {tuple(scores.shape)}: give one number for each of {shape} (layer, head)")
    order = scores.nan_to_num(-math.inf).flatten().argsort(descending=True, stable=True).tolist()
    ranked = [divmod(place, shape[1]) for place in order]
    k = max(1, min(k, len(ranked) // 2))
    strongest, others, rng = ranked[:k], sorted(ranked[k:]), Random(f"ablation {seed}")
    drawn: list[list[Head]] = []
    while len(drawn) < min(draws, math.comb(len(others), k)):
        if (heads := sorted(rng.sample(others, k))) not in drawn:
            drawn.append(heads)
    before, rises = second_copy_loss(lm, probe), []
    for heads in (strongest, *drawn):
        with ablated(lm, heads, how, probe.real):
            rises.append(second_copy_loss(lm, probe) - before)
    return Ablation(strongest, rises[0], drawn, rises[1:])
