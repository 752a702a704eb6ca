"""What does the router of every layer do with a text? Shares, weights, words; and the loss with another choice.

The routers are watched, and overruled, by PyTorch's forward hooks: nothing in model/ knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from configs.command import InputError
from configs.files import append_line
from data.batches import Batch, validation_batches
from eval.config import EvalConfig
from eval.experts.log import Routing, findings, read, use_of
from eval.hooks.event import EvalEvent, Hook, Outcome
from eval.language_modeling import evaluating, mean_loss
from eval.run_files import EXPERTS
from model import LanguageModel, ModelConfig

if TYPE_CHECKING:
    from model.experts import Router  # loads the compiler, which takes a second

TOKENS = 8192  # held-out tokens of a look
Routes = tuple[Tensor, Tensor, Tensor]  # what a router returns: probabilities (N, E), weights (N, k), experts (N, k)
Change = Callable[[int, Routes], Routes]  # layer, routes -> other routes


def routers(lm: LanguageModel) -> dict[int, Router]:
    """Layer -> its router, of the layers that have one."""
    from model.experts import Router

    parts = ((number, part) for number, layer in enumerate(lm.model.layers) for part in layer.modules())
    return {number: part for number, part in parts if isinstance(part, Router)}


@contextmanager
def through(lm: LanguageModel, change: Change) -> Iterator[None]:
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


# ---------------------------------------------------------------------------------------------------------
# with another choice


def loss_with(
    lm: LanguageModel,
    batches: Iterable[Batch],
    change: Change | None = None,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> float:
    """Mean loss in nats a token, with the routers as they are or with their choice changed."""
    with through(lm, change) if change else nullcontext():
        return mean_loss(lm, batches, autocast)


def at_random(seed: int = 0) -> Change:
    """Every token goes to other experts, drawn at random, with the weights that its own would have had."""
    generator = torch.Generator().manual_seed(seed)

    def change(layer: int, routes: Routes) -> Routes:
        probabilities, weights, experts = routes
        drawn = torch.rand(probabilities.shape, generator=generator).topk(experts.shape[1], dim=-1).indices
        return probabilities, weights, drawn.to(experts.device)

    return change


# ---------------------------------------------------------------------------------------------------------
# while it trains


class Experts(Hook):
    """experts.jsonl: share of the tokens and mean weight of every expert, and which tokens go where, at every look; at
    the end also what random routing costs."""

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        if model.num_experts is None:
            why = "experts looks at a mixture of experts, and model.num_experts is null"
            raise InputError(f"eval.hooks: {why}: set it, or take experts off the list")

    def look(self, event: EvalEvent) -> None:
        """Every process looks at the same text, since each may hold only a share of the model; the first one writes."""

        def batches() -> Iterator[Batch]:
            packed = (event.data_config.isolate_documents, event.data_config.restart_positions)
            return validation_batches(event.held_out, event.tokenizer, event.rows_per_batch, *packed, TOKENS)

        measured = routing(event.lm, batches(), event.tokenizer.pad_id, event.autocast)
        use = use_of(measured, event.step, event.tokens, event.tokenizer)
        if event.is_last:
            for name, choice in {"learned": None, "random": at_random()}.items():
                use.loss[name] = loss_with(event.lm, batches(), choice, event.autocast)
        if event.writes:
            append_line(event.directory / EXPERTS, use.model_dump(exclude_defaults=True))
        event.say(f"experts: {use.in_words()}")
        event.log("experts", use.figures())

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        if not (uses := read(directory, lambda problem: None)):
            return Outcome()
        last = uses[-1]
        return Outcome({"experts": last.figures()}, [f"experts: {last.in_words()}"], sections=findings(last))
