"""What does the router of every layer do with a text? Shares, weights, words; and the loss with another choice.

The routers are watched, and overruled, by PyTorch's forward hooks: nothing in model/ knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from data.batches import Batch
from eval.language_modeling import evaluating, mean_loss
from model import LanguageModel

if TYPE_CHECKING:
    from model.experts import Router  # loads the compiler, which takes a second

Routes = tuple[Tensor, Tensor, Tensor]  # what a router returns: probabilities (N, E), weights (N, k), experts (N, k)


@dataclass(frozen=True)
class Routing:
    """Of every layer that has experts, over some text; L such layers, E experts, V ids.

    share: (L, E) share of the layer's choices that are this expert; a row adds up to 1. weight: (L, E) mean weight of
    the expert where it was chosen, NaN where it never was. ids: (L, E, V) how often a token with this id chose it.
    """

    layers: list[int]
    share: np.ndarray
    weight: np.ndarray
    ids: np.ndarray


def routers(lm: LanguageModel) -> dict[int, Router]:
    """Layer -> its router, of the layers that have one."""
    from model.experts import Router

    parts = ((number, part) for number, layer in enumerate(lm.model.layers) for part in layer.modules())
    return {number: part for number, part in parts if isinstance(part, Router)}


@torch.no_grad()
def routing(
    lm: LanguageModel,
    batches: Iterable[Batch],
    pad_id: int,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> Routing:
    """Where the tokens of the batches go; padding does not count. Raises ValueError for a model without experts."""
    E, V, seen = lm.config.num_experts, lm.model.embed_tokens.num_embeddings, dict[int, Routes]()
    if E is None:
        raise ValueError("this model has no experts (num_experts is null)")
    layers = list(routers(lm))
    weights, ids = torch.zeros(len(layers), E, dtype=torch.double), torch.zeros(len(layers), E * V, dtype=torch.long)

    def note(layer: int, routes: Routes) -> Routes:
        seen[layer] = routes
        return routes

    device = next(lm.parameters()).device
    with evaluating(lm), autocast(), through(lm, note):
        for batch in batches:
            lm(**batch.to(device).tensors)
            tokens = batch["input_ids"].flatten()
            for i, layer in enumerate(layers):
                _, weight, experts = (x[(tokens != pad_id).to(device)].cpu() for x in seen[layer])
                places = experts * V + tokens[tokens != pad_id, None]
                ids[i] += torch.bincount(places.flatten(), minlength=E * V)
                weights[i] += torch.bincount(experts.flatten(), weight.flatten().double(), minlength=E)
    counts = ids.view(len(layers), E, V).sum(-1)
    share = (counts / counts.sum(-1, keepdim=True)).double().numpy()
    return Routing(layers, share, (weights / counts).numpy(), ids.view(len(layers), E, V).numpy())


@contextmanager
def through(lm: LanguageModel, change: Callable[[int, Routes], Routes]) -> Iterator[None]:
    """Within this context change(layer, routes) stands between the router of every layer and its experts."""
    handles = [
        router.register_forward_hook(partial(lambda layer, _module, _x, routes: change(layer, routes), layer))
        for layer, router in routers(lm).items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def loss_with(
    lm: LanguageModel,
    batches: Iterable[Batch],
    change: Callable[[int, Routes], Routes] | None = None,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> float:
    """Mean loss in nats a token, with the routers as they are or with their choice changed."""
    with through(lm, change) if change else nullcontext():
        return mean_loss(lm, batches, autocast)


def at_random(seed: int = 0) -> Callable[[int, Routes], Routes]:
    """Every token goes to other experts, drawn at random, with the weights that its own would have had."""
    generator = torch.Generator().manual_seed(seed)

    def change(layer: int, routes: Routes) -> Routes:
        probabilities, weights, experts = routes
        drawn = torch.rand(probabilities.shape, generator=generator).topk(experts.shape[1], dim=-1).indices
        return probabilities, weights, drawn.to(experts.device)

    return change


def all_alike(layer: int, routes: Routes) -> Routes:
    """Every token goes to all experts, which count alike: as much computing as E experts, and no choice."""
    probabilities, weights, _ = routes
    tokens, count = probabilities.shape
    equal_weights = (weights.sum(-1, keepdim=True) / count).expand(-1, count)
    return probabilities, equal_weights, torch.arange(count, device=weights.device).expand(tokens, -1)
