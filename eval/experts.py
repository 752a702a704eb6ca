"""Which expert does a token go to, and does the router choose well? For models with a mixture of experts.

    used = routing(lm, batches, pad_id)             shares, mean weights and ids of every expert
    loss_with(lm, batches, at_random())             what the loss is if tokens go elsewhere

The routers are watched, and overruled, by PyTorch's forward hooks: nothing in model/ knows of it. While a model trains,
the hook `experts` leaves experts.jsonl: a line on the terminal, a part of report.md and a tab of the page show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
from configs.text import escape, table
from data.batches import Batch, validation_batches
from data.tokenizer import Tokenizer
from eval.config import EvalConfig
from eval.hooks import EvalEvent, Hook, Outcome
from eval.language_modeling import Autocast, evaluating, mean_loss
from eval.run_files import EXPERTS, Warn, read_log
from model import LanguageModel, ModelConfig

if TYPE_CHECKING:
    from model.variants.experts import Router  # loads the compiler, which takes a second

TOKENS = 8192  # held-out tokens of a look
WORDS = 8  # of each expert
DEAD, STARVED = 0.01, 0.25  # of the fair share
Routes = tuple[Tensor, Tensor, Tensor]  # what a router returns: probabilities (N, E), weights (N, k), experts (N, k)
Change = Callable[[int, Routes], Routes]  # layer, routes -> other routes


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
    from model.variants.experts import Router

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
def routing(lm: LanguageModel, batches: Iterable[Batch], pad_id: int, autocast: Autocast = nullcontext) -> Routing:
    """Where the tokens of the batches go; padding does not count. Raises ValueError for a model without experts."""
    E, V = lm.config.num_experts, lm.model.embed_tokens.num_embeddings
    if E is None:
        raise ValueError("this model has no experts (num_experts is null)")
    layers, device = list(routers(lm)), next(lm.parameters()).device
    ids, weights = torch.zeros(len(layers), E * V, dtype=torch.long), torch.zeros(len(layers), E, dtype=torch.double)

    def count(layer: int, routes: Routes) -> Routes:
        i, real = layers.index(layer), tokens != pad_id
        _, weight, experts = (x[real.to(x.device)].cpu() for x in routes)
        ids[i] += torch.bincount((experts * V + tokens[real, None]).flatten(), minlength=E * V)
        weights[i] += torch.bincount(experts.flatten(), weight.flatten().double(), minlength=E)
        return routes

    with evaluating(lm), autocast(), through(lm, count):
        for batch in batches:
            tokens = batch["input_ids"].flatten()
            lm(**batch.to(device).tensors)
    by_id = ids.view(len(layers), E, V)
    counts = by_id.sum(-1)
    share = (counts / counts.sum(-1, keepdim=True)).double()
    return Routing(layers, share.numpy(), (weights / counts).numpy(), by_id.numpy())


def loss_with(
    lm: LanguageModel, batches: Iterable[Batch], change: Change | None = None, autocast: Autocast = nullcontext
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


def characteristic_ids(routing: Routing) -> np.ndarray:
    """(L, E, WORDS) ids that tell an expert from the others, the strongest first; -1 where there are not so many.

    By p(id | expert) ln( p(id | expert) / p(id) ): what an id adds to the divergence between the expert's tokens and
    all tokens. So an id must be frequent there and more frequent than elsewhere.
    """
    of_expert = routing.ids / np.maximum(1, routing.ids.sum(-1, keepdims=True))
    of_all = routing.ids.sum(1, keepdims=True) / np.maximum(1, routing.ids.sum((1, 2), keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(of_expert > 0, of_expert * np.log(of_expert / of_all), 0.0)
    best = np.argsort(-score, axis=-1, kind="stable")[..., :WORDS]
    return np.where(np.take_along_axis(score, best, -1) > 0, best, -1)


class ExpertUse(BaseModel):
    """One line. share, weight: of every layer and expert, as in Routing; null = never chosen. words: the tokens that
    tell each expert from the others. loss: in nats a token, as the router chooses and with a random choice."""

    step: NonNegativeInt
    tokens: NonNegativeInt
    layers: Annotated[list[int], Field(min_length=1)]
    share: list[list[Annotated[FiniteFloat, Field(ge=0, le=1)]]]
    weight: list[list[FiniteFloat | None]]
    words: list[list[list[str]]] = []
    loss: dict[str, FiniteFloat] = {}

    @property
    def experts(self) -> int:
        """How many a layer has."""
        return len(self.share[0])

    @property
    def of_fair(self) -> np.ndarray:
        """(L, E) share of every expert over its fair share: 1 is as much as the others have."""
        return np.array(self.share) * self.experts

    def figures(self) -> dict[str, float]:
        """For the log and result.json."""
        return {"weakest": float(self.of_fair.min()), "strongest": float(self.of_fair.max()), **self.loss}

    def in_words(self) -> str:
        """How evenly the tokens are shared out, and which experts are dead."""
        layer, expert = divmod(int(self.of_fair.argmin()), self.experts)
        weakest = f"L{self.layers[layer]} E{expert} with {self.of_fair.min():.2f} of a fair share"
        dead = ", ".join(f"L{self.layers[i]} E{expert}" for i, expert in np.argwhere(self.of_fair < DEAD))
        return f"the weakest is {weakest}; {f'dead: {dead}' if dead else 'none is dead'}"


def use_of(routing: Routing, step: int, tokens: int, tokenizer: Tokenizer) -> ExpertUse:
    """The line for this routing, without losses."""
    weight = [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in routing.weight]
    labels, best = tokenizer.token_labels, characteristic_ids(routing).tolist()
    words = [[labels(x for x in ids if x >= 0) for ids in layer] for layer in best]
    share = routing.share.round(6).tolist()
    return ExpertUse(step=step, tokens=tokens, layers=routing.layers, share=share, weight=weight, words=words)


def read(directory: Path, warn: Warn) -> list[ExpertUse]:
    """The lines of a run, in order; none without the file."""
    return read_log(directory / EXPERTS, ExpertUse, warn)


class Experts(Hook):
    """experts.jsonl: share of the tokens and mean weight of every expert, and which tokens go where, at every look; at
    the end also what random routing costs."""

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        if model.num_experts is None:
            why = "experts looks at a mixture of experts, and model.num_experts is null"
            raise InputError(f"eval.hooks: {why}: set it, or take experts off the list")

    def evaluate(self, event: EvalEvent) -> None:
        """Every process looks at the same text, since each may hold only a share of the model; the first one writes."""
        options = event.data_config.isolate_documents, event.data_config.restart_positions, TOKENS
        batches = list(validation_batches(event.held_out, event.tokenizer, event.rows_per_batch, *options))
        measured = routing(event.lm, batches, event.tokenizer.pad_id, event.autocast)
        use = use_of(measured, event.step, event.tokens, event.tokenizer)
        if event.is_last:
            for name, choice in {"learned": None, "random": at_random()}.items():
                use.loss[name] = loss_with(event.lm, batches, choice, event.autocast)
        if event.writes:
            append_line(event.directory / EXPERTS, use.model_dump(exclude_defaults=True))
        event.say(f"experts: {use.in_words()}")
        event.log("experts", use.figures())

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        if not (uses := read(directory, lambda problem: None)):
            return Outcome()
        last = uses[-1]
        return Outcome({"experts": last.figures()}, [f"experts: {last.in_words()}"], sections=findings(last))


def findings(last: ExpertUse) -> list[str]:
    """Lines of Markdown: the balance of every layer, what the router's choice is worth, and which words go where."""
    page = ["## Experts", "", f"{last.experts} in each of {len(last.layers)} layers: {last.in_words()}.", ""]
    page += ["Shares are parts of a fair share: 1 = as many tokens as every other expert.", ""]
    balance, words_of = [], []
    for i, (layer, shares) in enumerate(zip(last.layers, last.of_fair, strict=True)):
        balance.append([f"L{layer}", *(f"{shares[at]:.2f} (E{at})" for at in (shares.argmin(), shares.argmax()))])
        for expert, words in enumerate(last.words[i]):
            words_of.append([f"L{layer} E{expert}", f"{shares[expert]:.2f}", " ".join(words)])
    page += [table(("Layer", "weakest", "strongest"), balance), ""]
    if "random" in last.loss:
        losses = f"the loss rises from {last.loss['learned']:.3f} to {last.loss['random']:.3f} nats."
        page += [f"Every token sent to other experts, drawn at random: {losses}", ""]
    page += ["The tokens that tell an expert from the others of its layer:", ""]
    return [*page, table(("Expert", "share", "tokens"), words_of), ""]


def for_viewer(lines: Sequence[ExpertUse]) -> dict[str, Any] | None:
    """What the page shows: layers, experts and every line, in order, ready for JSON; None for no line."""
    if not lines:
        return None
    last, steps = lines[-1], []
    for line in lines:
        words = [[[escape(word) for word in of_expert] for of_expert in layer] for layer in line.words]
        about = line.model_dump(include={"step", "tokens", "weight", "loss"})
        steps.append(about | {"share": line.of_fair.round(3).tolist(), "words": words})
    return {"layers": last.layers, "experts": last.experts, "steps": steps, "dead": DEAD, "starved": STARVED}
