"""The experts of a mixture: the share of tokens of each, and the value of the router's choice.

    used = routing(lm, batches, pad_id)       shares, mean weights and ids of every expert
    loss_with(lm, batches, at_random())       the loss if tokens go to other experts

The hook `experts` writes experts.jsonl, which the terminal and report.md show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt
from torch import Tensor

from configs.command import InputError
from configs.files import append_line
from configs.text import table
from data.batches import Batch, validation_batches
from data.tokenizer import Tokenizer
from eval.config import EvalConfig
from eval.hooks import EvalEvent, Hook, Outcome
from eval.language_modeling import Autocast, evaluating, mean_loss
from eval.run_files import EXPERTS, Warn, read_log
from model import LanguageModel, ModelConfig

if TYPE_CHECKING:
    from model.variants.experts import Router  # loads the compiler, which takes a second

TOKENS = 8192  # Each evaluation reads so many held-out tokens.
WORDS = 8  # experts.jsonl has so many tokens of each expert.
DEAD = 0.01  # An expert with less than this part of a fair share is dead.
# A router returns probabilities (N, E), weights (N, k) and experts (N, k).
Routes = tuple[Tensor, Tensor, Tensor]
Change = Callable[[int, Routes], Routes]  # layer, routes -> other routes


@dataclass(frozen=True)
class Routing:
    """The choices of all routers on a text, for L layers with E experts and V ids."""

    layers: list[int]
    share: np.ndarray  # (L, E) of the layer's choices; a row adds up to 1
    weight: np.ndarray  # (L, E) mean weight of the chosen expert; NaN: never chosen
    ids: np.ndarray  # (L, E, V) number of tokens with this id


def routers(lm: LanguageModel) -> dict[int, Router]:
    from model.variants.experts import Router

    layer_routers = {}
    for number, layer in enumerate(lm.model.layers):
        for part in layer.modules():
            if isinstance(part, Router):
                # one router a layer; layers without experts have none, and no entry
                layer_routers[number] = part
    return layer_routers


@contextmanager
def through(lm: LanguageModel, change: Change) -> Iterator[None]:
    """Replace the routes of every layer by change(layer, routes), within this context."""
    # PyTorch's forward hooks replace what a router returns, so model/ has no code for this.
    with ExitStack() as hooks:
        for layer, router in routers(lm).items():
            hook = partial(lambda layer, _module, _x, routes: change(layer, routes), layer)
            hooks.enter_context(router.register_forward_hook(hook))
        yield


@torch.no_grad()
def routing(
    lm: LanguageModel,
    batches: Iterable[Batch],
    pad_id: int,
    autocast: Autocast = nullcontext,
) -> Routing:
    """Count the choices of all real tokens. Raises ValueError for a model without experts."""
    E = lm.config.num_experts
    V = lm.model.embed_tokens.num_embeddings
    if E is None:
        raise ValueError("this model has no experts (num_experts is null)")
    layers = list(routers(lm))
    device = lm.device
    ids = torch.zeros(len(layers), E * V, dtype=torch.long)
    weights = torch.zeros(len(layers), E, dtype=torch.double)

    def count(layer: int, routes: Routes) -> Routes:
        i = layers.index(layer)
        real = tokens != pad_id  # (N,)
        # padding has no meaning, and its choices would count as those of a real token
        _, weight, experts = (x[real.to(x.device)].cpu() for x in routes)  # (real tokens, k)
        # one bin for each pair of expert and id
        ids[i] += torch.bincount((experts * V + tokens[real, None]).flatten(), minlength=E * V)
        weights[i] += torch.bincount(experts.flatten(), weight.flatten().double(), minlength=E)
        return routes

    with evaluating(lm), autocast(), through(lm, count):
        for batch in batches:
            tokens = batch["input_ids"].flatten()  # (N,), which `count` reads
            lm(**batch.to(device).tensors)
    by_id = ids.view(len(layers), E, V)
    counts = by_id.sum(-1)
    share = (counts / counts.sum(-1, keepdim=True)).double()
    return Routing(layers, share.numpy(), (weights / counts).numpy(), by_id.numpy())


def loss_with(
    lm: LanguageModel,
    batches: Iterable[Batch],
    change: Change | None = None,
    autocast: Autocast = nullcontext,
) -> float:
    """Return the mean loss in nats a token, with a changed choice of the routers."""
    # None: the learned one
    with through(lm, change) if change else nullcontext():
        return mean_loss(lm, batches, autocast)


def at_random() -> Change:
    """Draw every token's experts at random, and keep its weights."""
    # its own generator: training's random state stays
    generator = torch.Generator().manual_seed(0)

    def change(layer: int, routes: Routes) -> Routes:
        probabilities, weights, experts = routes
        # topk of noise draws k different experts, as a real router chooses
        noise = torch.rand(probabilities.shape, generator=generator)
        drawn = noise.topk(experts.shape[1], dim=-1).indices  # (N, k), k different experts
        return probabilities, weights, drawn.to(experts.device)

    return change


def characteristic_ids(routing: Routing) -> np.ndarray:
    """Return the most typical ids of each expert: (L, E, WORDS), best first, or -1.

    The score is p(id | expert) ln( p(id | expert) / p(id) ).
    """
    # The scores of an expert add up to the KL divergence between its tokens and all tokens.
    counts = routing.ids
    in_expert = counts / np.maximum(1, counts.sum(-1, keepdims=True))
    in_all = counts.sum(1, keepdims=True) / np.maximum(1, counts.sum((1, 2), keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(in_expert > 0, in_expert * np.log(in_expert / in_all), 0.0)
    # stable: equal scores keep the order of ids, so two runs show the same words
    best = np.argsort(-score, axis=-1, kind="stable")[..., :WORDS]
    return np.where(np.take_along_axis(score, best, -1) > 0, best, -1)


class ExpertUse(BaseModel):
    """A line of experts.jsonl."""

    step: NonNegativeInt
    tokens: NonNegativeInt
    layers: Annotated[list[int], Field(min_length=1)]
    # As in Routing; null = never chosen.
    share: list[list[Annotated[FiniteFloat, Field(ge=0, le=1)]]]
    weight: list[list[FiniteFloat | None]]
    words: list[list[list[str]]] = []  # the most typical tokens of each expert
    loss: dict[str, FiniteFloat] = {}  # with learned and with random routing, in nats a token

    @property
    def fair_shares(self) -> np.ndarray:
        """Shares as parts of a fair share: 1 is as much as the others have. (L, E)"""
        return np.array(self.share) * len(self.share[0])

    def figures(self) -> dict[str, float]:
        shares = self.fair_shares
        return {"weakest": float(shares.min()), "strongest": float(shares.max()), **self.loss}

    def in_words(self) -> str:
        """Describe the weakest expert and the dead ones."""
        shares = self.fair_shares
        layer, expert = np.unravel_index(shares.argmin(), shares.shape)
        weakest = f"L{self.layers[layer]} E{expert} with {shares.min():.2f} of a fair share"
        dead = [f"L{self.layers[i]} E{j}" for i, j in np.argwhere(shares < DEAD)]
        verdict = f"dead: {', '.join(dead)}" if dead else "none is dead"
        return f"the weakest is {weakest}; {verdict}"


def use_of(routing: Routing, step: int, tokens: int, tokenizer: Tokenizer) -> ExpertUse:
    """Make a line of this routing, without losses."""
    weight = [[None if np.isnan(x) else round(float(x), 4) for x in row] for row in routing.weight]
    words = []
    for layer in characteristic_ids(routing):
        words.append([tokenizer.token_labels(ids[ids >= 0].tolist()) for ids in layer])
    # six digits are enough for a page, and keep the log small
    share = routing.share.round(6).tolist()
    about = {"step": step, "tokens": tokens, "layers": routing.layers}
    return ExpertUse(**about, share=share, weight=weight, words=words)


def read(directory: Path, warn: Warn) -> list[ExpertUse]:
    return read_log(directory / EXPERTS, ExpertUse, warn)


class Experts(Hook):
    """Write lines of experts.jsonl; the last one has the loss with random routing."""

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        if model.num_experts is None:
            raise InputError(
                "eval.hooks: experts needs model.num_experts (null): "
                "set it, or take experts off the list"
            )

    def evaluate(self, event: EvalEvent) -> None:
        # Every process reads the same text, because each may have a part of the model.
        data = event.data_config
        options = event.rows_per_batch, data.isolate_documents, data.restart_positions, TOKENS
        batches = list(validation_batches(event.held_out, event.tokenizer, *options))
        measured = routing(event.lm, batches, event.tokenizer.pad_id, event.autocast)
        use = use_of(measured, event.step, event.tokens, event.tokenizer)
        if event.is_last:  # once, because it reads the text twice more
            for name, choice in {"learned": None, "random": at_random()}.items():
                use.loss[name] = loss_with(event.lm, batches, choice, event.autocast)
        if event.writes:
            append_line(event.directory / EXPERTS, use.model_dump(exclude_defaults=True))
        event.say(f"experts: {use.in_words()}")
        event.log("experts", use.figures())

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        uses = read(directory, lambda problem: None)
        if not uses:
            return Outcome()
        last = uses[-1]
        line = f"experts: {last.in_words()}"
        return Outcome({"experts": last.figures()}, [line], sections=findings(last))


def findings(last: ExpertUse) -> list[str]:
    """Return the section of report.md: each layer's balance, and the loss with random routing."""
    count = f"{len(last.share[0])} in each of {len(last.layers)} layers"
    page = ["## Experts", "", f"{count}: {last.in_words()}.", ""]
    page += ["Shares are parts of a fair share: 1 = as many tokens as every other expert.", ""]
    rows = []
    for layer, shares in zip(last.layers, last.fair_shares, strict=True):
        ends = shares.argmin(), shares.argmax()
        rows.append([f"L{layer}", *(f"{shares[expert]:.2f} (E{expert})" for expert in ends)])
    page += [table(("Layer", "weakest", "strongest"), rows), ""]
    if "random" in last.loss:
        losses = f"from {last.loss['learned']:.3f} to {last.loss['random']:.3f} nats"
        page += [f"With experts drawn at random, the loss rises {losses}.", ""]
    return page
