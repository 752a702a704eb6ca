"""What did each kind of training do to one model? Runs that start from each other are the stages of one life.

Measured on held-out conversations and stories of the built-in world, so what is right is known. A stage is compared
with the first one (what was gained, what was forgotten) and with the run that it started from (what moved).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.command import InputError
from configs.text import table as markdown_table
from data.batches import IGNORED, Batch
from data.chat import TRAINED, encode_conversations
from data.config import StoryworldSource
from data.reading.records import checked_conversation
from data.storyworld import Story, interview, tell
from data.storyworld.questions import KINDS
from data.tokenizer import Tokenizer
from eval.attention.controls import LOGITS, rises_without_each
from eval.compare.runs import RunResult, Variant
from eval.language_modeling import compare_with_floor, evaluating, fitting, mean_loss
from eval.load_model import open_model
from eval.questions import ask, figures, held_out_questions, score, source_of
from model import LanguageModel

QUESTIONS, CONVERSATIONS, STORIES = 200, 24, 60  # that each stage is measured on
MATRIX = re.compile(r"\blayers\.(\d+)\.(\S+?)\.weight$")
SHOWN_HEADS = 2  # that are named in the table: those that the answers need most


@dataclass(frozen=True)
class Text:
    """Rows of ids, padded on the right, and which of them are counted: (N, T) int64 and (N, T) bool."""

    ids: Tensor
    counted: Tensor

    def parts(self, lm: LanguageModel) -> Iterator[Text]:
        """As many rows at a time as their logits fit into memory."""
        rows = max(1, LOGITS // (self.ids.shape[1] * lm.lm_head.out_features))
        for start in range(0, len(self.ids), rows):
            yield Text(self.ids[start : start + rows], self.counted[start : start + rows])


@dataclass(frozen=True)
class Stage:
    """One run of the life.

    started_from:  name of the run whose weights it began with; None for the first one
    right, new:    share of right answers by class, as eval.questions.figures has them; with names of a new form
    kl_answers, kl_stories: KL(stage || first stage), nats a token, over right answers and over stories
    gap:           bits per byte above the entropy floor, on stories
    needed:        (layer, head): rise of the loss on right answers, nats a token, without that head
    moved:         (layer, matrix): |W - W of started_from| / |W of started_from|; empty for the first stage
    """

    name: str
    started_from: str | None
    right: dict[str, float | int]
    new: dict[str, float | int]
    kl_answers: float
    kl_stories: float
    gap: float
    needed: Tensor
    moved: dict[tuple[int, str], float] = field(default_factory=dict)


def chain(variants: Sequence[Variant]) -> list[tuple[RunResult, RunResult | None]]:
    """Each variant's first run with the compared run that it started from; empty where no run started from another.

    Runs that neither started from another nor were started from are left out.
    """
    runs = [variant.runs[0] for variant in variants]
    places = {run.path.resolve(): run for run in runs}
    found = [(run, _origin(run, places)) for run in runs]
    origins = [origin.path for _, origin in found if origin is not None]
    return [(run, origin) for run, origin in found if origin is not None or run.path in origins]


def _origin(run: RunResult, places: dict[Path, RunResult]) -> RunResult | None:
    start = run.settings.get("init_from")
    if not start:
        return None
    path = Path(start).resolve()
    return next((places[at] for at in (path, *path.parents[:2]) if at in places), None)


@dataclass(frozen=True)
class HeldOut:
    """What every stage is measured on. first: the first stage's model, which the others are compared with."""

    source: StoryworldSource
    stories: Sequence[Story]
    right_answers: Text
    whole_stories: Text
    first: LanguageModel


def stages(variants: Sequence[Variant], device: str = "auto") -> list[Stage]:
    """Every stage of the life, measured; empty where there is none, or its last run is not of the built-in world."""
    life = chain(variants)
    try:
        source = source_of(life[-1][0].path) if life else None
    except InputError:
        source = None
    if source is None or source.recall is not None:
        return []
    models = {run.name: open_model(run.path, device) for run, _ in life}
    first, tokenizer = models[life[0][0].name]
    stories = [tell(source.seed, index, "validation", source.level) for index in range(STORIES)]
    texts = right_answers(tokenizer, source), whole_texts(tokenizer, [story.text for story in stories])
    held_out = HeldOut(source, stories, *texts, first)
    found = []
    for run, origin in life:
        before = models[origin.name][0] if origin else None
        found.append(measure(run.name, *models[run.name], held_out, origin.name if origin else None, before))
    return found


def measure(
    name: str,
    lm: LanguageModel,
    tokenizer: Tokenizer,
    held_out: HeldOut,
    started_from: str | None = None,
    before: LanguageModel | None = None,
) -> Stage:
    """One stage. before: the model that it started from, whose name is started_from."""
    source, shares = held_out.source, []
    for new_names in (False, True):
        asked = list(islice(held_out_questions(source, new_names=new_names), QUESTIONS))
        shares.append(figures(score(asked, ask(lm, tokenizer, asked))))
    stories = fitting(lm, tokenizer, held_out.stories)
    return Stage(
        name=name,
        started_from=started_from,
        right=shares[0],
        new=shares[1],
        kl_answers=divergence(lm, held_out.first, held_out.right_answers),
        kl_stories=divergence(lm, held_out.first, held_out.whole_stories),
        gap=compare_with_floor(lm, tokenizer, stories).gap if stories else math.nan,
        needed=needed_heads(lm, held_out.right_answers),
        moved=moved(lm, before) if before is not None else {},
    )


def right_answers(tokenizer: Tokenizer, source: StoryworldSource) -> Text:
    """Held-out conversations with many questions each; what the assistant says is counted."""
    talks = [
        interview(source.seed, index, "validation", source.level, held_out_names=False)["conversations"]
        for index in range(CONVERSATIONS)
    ]
    encoded = encode_conversations(tokenizer, [checked_conversation(one) for one in talks])
    return _text([(ids, [bool(flag & TRAINED) for flag in flags]) for ids, flags in encoded], tokenizer)


def whole_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> Text:
    """Documents from their first token to their end; every token but the first is counted."""
    return _text([(ids, [False] + [True] * (len(ids) - 1)) for ids in tokenizer.encode_documents(texts)], tokenizer)


def _text(rows: Sequence[tuple[Sequence[int], Sequence[bool]]], tokenizer: Tokenizer) -> Text:
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([torch.tensor(ids) for ids, _ in rows], batch_first=True, padding_value=tokenizer.pad_id)
    return Text(ids, pad([torch.tensor(counted) for _, counted in rows], batch_first=True, padding_value=False))


def _fitting(lm: LanguageModel, text: Text) -> Text:
    """The rows that the model can read whole."""
    whole = ~text.counted[:, lm.config.max_position_embeddings :].any(1)
    longest = min(text.ids.shape[1], lm.config.max_position_embeddings)
    return Text(text.ids[whole, :longest], text.counted[whole, :longest])


@torch.no_grad()
def divergence(lm: LanguageModel, base: LanguageModel, text: Text) -> float:
    """KL(lm || base) of the next token, in nats, mean over the counted tokens; NaN where no row fits into a model."""
    total, count = 0.0, 0
    text = _fitting(base, _fitting(lm, text))
    device = next(lm.parameters()).device
    with evaluating(lm), evaluating(base):
        for part in text.parts(lm):
            ids, asked = part.ids.to(device), part.counted[:, 1:].to(device)
            ours, theirs = (F.log_softmax(one(ids)[:, :-1][asked].float(), -1) for one in (lm, base))
            total += (ours.exp() * (ours - theirs)).sum().item()
            count += int(asked.sum())
    return total / count if count else math.nan


def answer_loss(lm: LanguageModel, text: Text) -> float:
    """Mean -ln p of the counted tokens, in nats; NaN where no row fits into the model."""
    text = _fitting(lm, text)
    parts = [
        Batch({"input_ids": part.ids, "labels": part.ids.masked_fill(~part.counted, IGNORED)}, [*range(len(part.ids))])
        for part in text.parts(lm)
    ]
    return mean_loss(lm, parts)


def needed_heads(lm: LanguageModel, text: Text) -> Tensor:
    """How much `answer_loss` rises when a head is ablated: (layer, head) float32, nats a token; one head at a time."""
    return rises_without_each(lm, lambda: answer_loss(lm, text))


def moved(lm: LanguageModel, before: LanguageModel) -> dict[tuple[int, str], float]:
    """(layer, name of a matrix) -> Frobenius norm of its change, as a share of the norm it had."""
    old, found = before.state_dict(), {}
    for name, weight in lm.state_dict().items():
        if (place := MATRIX.search(name)) and weight.dim() == 2 and name in old:
            change = (weight - old[name]).norm() / old[name].norm().clamp_min(1e-12)
            found[int(place[1]), place[2].rsplit(".", 1)[-1]] = change.item()
    return found


# ---------------------------------------------------------------------------------------------------------
# the table, and the file of numbers


def table(life: Sequence[Stage]) -> str:
    """Markdown: a column for each stage."""

    def percent(values: dict[str, float | int], key: str) -> str:
        return f"{values[key]:.1%}" if key in values else "–"

    def number(value: float, digits: int = 3) -> str:
        return "–" if math.isnan(value) else f"{value:.{digits}f}"

    rows = [["started from", *(one.started_from or "–" for one in life)]]
    rows += [[f"answers right, all {life[0].right['asked']}", *(percent(one.right, "exact_match") for one in life)]]
    for kind in KINDS:
        if any(f"exact_match_{kind}" in one.right for one in life):
            rows.append([f"… {kind}", *(percent(one.right, f"exact_match_{kind}") for one in life)])
    rows.append(["answers right, names of a new form", *(percent(one.new, "exact_match") for one in life)])
    rows.append([f"KL from {life[0].name}, right answers (nats a token)", *(number(one.kl_answers) for one in life)])
    rows.append([f"KL from {life[0].name}, stories (nats a token)", *(number(one.kl_stories) for one in life)])
    rows.append(["gap to the entropy floor, stories (bits per byte)", *(number(one.gap, 4) for one in life)])
    rows.append(["heads that right answers need most (nats a token)", *(_most_needed(one.needed) for one in life)])
    for layer in sorted({layer for one in life for layer, _ in one.moved}):
        rows.append([f"weights moved, layer {layer}", *(_moved_in(one, layer) for one in life)])
    return markdown_table(["", *(one.name for one in life)], rows)


def _most_needed(needed: Tensor) -> str:
    best = needed.flatten().argsort(descending=True)[:SHOWN_HEADS].tolist()
    places = [divmod(place, needed.shape[1]) for place in best]
    return ", ".join(f"L{layer} H{head} {needed[layer, head]:+.2f}" for layer, head in places)


def _moved_in(stage: Stage, layer: int) -> str:
    found = [value for (at, _), value in stage.moved.items() if at == layer]
    return f"{sum(found) / len(found):.1%}" if found else "–"


def numbers(stage: Stage) -> dict[str, Any]:
    """A stage as JSON."""
    plain = {key: getattr(stage, key) for key in ("name", "started_from", "right", "new")}
    for key in ("kl_answers", "kl_stories", "gap"):
        value = getattr(stage, key)
        plain[key] = round(value, 4) if math.isfinite(value) else None
    plain["needed"] = [[round(value, 4) for value in row] for row in stage.needed.tolist()]
    return plain | {"moved": [[layer, name, round(value, 5)] for (layer, name), value in stage.moved.items()]}


def from_numbers(plain: dict[str, Any]) -> Stage:
    """A stage as `numbers` wrote it."""
    kl_answers, kl_stories, gap = (
        math.nan if plain[key] is None else plain[key] for key in ("kl_answers", "kl_stories", "gap")
    )
    moved = {(layer, name): value for layer, name, value in plain["moved"]}
    shares, needed = (plain["right"], plain["new"]), torch.tensor(plain["needed"])
    return Stage(plain["name"], plain["started_from"], *shares, kl_answers, kl_stories, gap, needed, moved)
