"""What did each kind of training do to one model? Runs that start from each other are the stages of one life.

Measured on held-out conversations and stories of the built-in world, so what is right is known. A stage is compared
with the first one (what was gained, what was forgotten) and with the run that it started from (what moved).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean as mean
from typing import Any

import torch
import torch.nn.functional as F

from configs import IGNORED
from configs.command import InputError
from configs.files import run_path
from configs.text import table as markdown_table
from data.batches import Batch
from data.chat import TRAINED, encode_conversations
from data.config import StoryworldSource
from data.reading.records import checked_conversation
from data.tokenizer import Tokenizer
from eval.attention.controls import ablate_each
from eval.compare import RunResult, Variant
from eval.language_modeling import compare_with_floor, evaluating, mean_loss
from eval.load_model import open_model
from eval.questions import ask, figures, held_out_questions, source_of
from model import LanguageModel
from storyworld import interview, tell
from storyworld.questions import KINDS

QUESTIONS, CONVERSATIONS, STORIES = 200, 24, 60  # that each stage is measured on
MATRIX = re.compile(r"\blayers\.(\d+)\.(\S+?)\.weight$")
SHOWN_HEADS = 2  # that are named in the table: those that the answers need most
Stage = dict[str, Any]


def measure(variants: Sequence[Variant], device: str = "auto") -> list[Stage]:
    """The stages in the order of the runs; none where no run started from another, or not in the built-in world.

    A stage, as histories.json has it (null: not measured):
    name, started_from:     the run, and the one whose weights it began with
    right, new:             share of right answers by class (eval.questions.figures); with names of a new form
    kl_answers, kl_stories: KL(stage || first stage), nats a token, over right answers and over stories
    gap:                    bits per byte above the entropy floor, on stories
    needed:                 [layer][head]: rise of the loss on right answers, nats a token, without that head
    moved:                  [layer, matrix, |W - W of started_from| / |W of started_from|]
    """
    life = chain(variants)
    try:
        source = source_of(life[-1][0].path) if life else None
    except InputError:
        source = None
    if source is None or source.recall is not None:
        return []
    models = {run.path: open_model(run.path, device) for run, _ in life}
    first, tokenizer = models[life[0][0].path]
    longest = min(lm.config.max_position_embeddings for lm, _ in models.values())
    stories = [tell(source.seed, index, "validation", source.level) for index in range(STORIES)]
    answers = right_answers(tokenizer, source, longest)
    texts = whole_texts(tokenizer, [story.text for story in stories], longest)
    stages = []
    for run, origin in life:
        lm, its_tokenizer = models[run.path]
        stage: Stage = {"name": run.name, "started_from": origin.name if origin else None}
        for key, new_names in (("right", False), ("new", True)):
            questions = list(islice(held_out_questions(source, new_names=new_names), QUESTIONS))
            stage[key] = figures(questions, ask(lm, its_tokenizer, questions))
        stage["kl_answers"], stage["kl_stories"] = divergence(lm, first, answers), divergence(lm, first, texts)
        _, bits, floor = compare_with_floor(lm, its_tokenizer, stories)
        stage["gap"] = bits - floor
        stage["needed"] = ablate_each(lm, partial(mean_loss, lm, answers)).tolist()
        stage["moved"] = moved(lm, models[origin.path][0]) if origin else []
        stages.append(stage)
    return stages


def chain(variants: Sequence[Variant]) -> list[tuple[RunResult, RunResult | None]]:
    """Each variant's first run with the compared run that it started from; empty where no run started from another.

    Runs that neither started from another nor were started from are left out.
    """
    runs = {variant.runs[0].path.resolve(): variant.runs[0] for variant in variants}
    origins: dict[Path, RunResult | None] = {}
    for path, run in runs.items():
        start = run_path(run.settings.get("init_from") or path / "itself").resolve()  # a run, or a checkpoint in one
        origins[path] = next((runs[at] for at in (start, *start.parents[:2]) if at in runs and at != path), None)
    began = [origin.path for origin in origins.values() if origin]
    return [(runs[path], origin) for path, origin in origins.items() if origin or runs[path].path in began]


def right_answers(tokenizer: Tokenizer, source: StoryworldSource, longest: int) -> list[Batch]:
    """Held-out conversations of at most `longest` tokens, with many questions; what the assistant says has labels."""
    talks = [interview(source.seed, i, "validation", source.level, held_out_names=False) for i in range(CONVERSATIONS)]
    encoded = encode_conversations(tokenizer, [checked_conversation(talk["conversations"]) for talk in talks])
    return [_row(ids, [bool(flag & TRAINED) for flag in flags]) for ids, flags in encoded if len(ids) <= longest]


def whole_texts(tokenizer: Tokenizer, texts: Sequence[str], longest: int) -> list[Batch]:
    """Documents of at most `longest` tokens, from their first token to their end."""
    return [_row(ids, [True] * len(ids)) for ids in tokenizer.encode_documents(texts) if len(ids) <= longest]


def _row(ids: Sequence[int], has_label: Sequence[bool]) -> Batch:
    row = torch.tensor([ids])
    return Batch({"input_ids": row, "labels": row.masked_fill(~torch.tensor([has_label]), IGNORED)}, [0])


@torch.no_grad()
def divergence(lm: LanguageModel, base: LanguageModel, text: Sequence[Batch]) -> float:
    """KL(lm || base) of the next token, in nats, mean over the labels; NaN for no text."""
    total, count, device = 0.0, 0, next(lm.parameters()).device
    with evaluating(lm), evaluating(base):
        for row in text:
            ids, counted = row["input_ids"].to(device), (row["labels"][:, 1:] != IGNORED).to(device)
            ours, theirs = (F.log_softmax(model(ids)[:, :-1][counted].float(), -1) for model in (lm, base))
            total += (ours.exp() * (ours - theirs)).sum().item()
            count += int(counted.sum())
    return total / count if count else math.nan


def moved(lm: LanguageModel, before: LanguageModel) -> list[tuple[int, str, float]]:
    """(layer, name of a matrix, Frobenius norm of its change as a share of the norm it had)."""
    old, shares = before.state_dict(), []
    for name, weight in lm.state_dict().items():
        if (place := MATRIX.search(name)) and weight.dim() == 2 and name in old:
            change = (weight - old[name]).norm() / old[name].norm().clamp_min(1e-12)
            shares.append((int(place[1]), place[2].rsplit(".", 1)[-1], change.item()))
    return shares


def table(life: Sequence[Stage]) -> str:
    """Markdown: a column for each stage. life: as `measure` gives it, or as histories.json has it."""

    def cells(values: Iterable[float | None], form: str = ".1%") -> list[str]:
        return ["–" if value is None or value != value else f"{value:{form}}" for value in values]

    right = [stage["right"] for stage in life]
    rows = [["started from", *(stage["started_from"] or "–" for stage in life)]]
    rows.append([f"answers right, all {right[0]['asked']}", *cells(shares["exact_match"] for shares in right)])
    for kind, key in [(kind, f"exact_match_{kind}") for kind in KINDS]:
        if any(key in shares for shares in right):
            rows.append([f"… {kind}", *cells(shares.get(key) for shares in right)])
    rows.append(["answers right, names of a new form", *cells(stage["new"]["exact_match"] for stage in life)])
    for key, what in (("kl_answers", "right answers"), ("kl_stories", "stories")):
        label = f"KL from {life[0]['name']}, {what} (nats a token)"
        rows.append([label, *cells((stage[key] for stage in life), ".3f")])
    rows.append(["gap to the entropy floor, stories (bits per byte)", *cells((stage["gap"] for stage in life), ".4f")])
    needed = []
    for stage in life:
        heads = [(rise, f"L{i} H{j}") for i, layer in enumerate(stage["needed"]) for j, rise in enumerate(layer)]
        best = sorted(heads, key=lambda head: -head[0])[:SHOWN_HEADS]
        needed.append(", ".join(f"{head} {rise:+.2f}" for rise, head in best))
    rows.append(["heads that right answers need most (nats a token)", *needed])
    for layer in sorted({layer for stage in life for layer, *_ in stage["moved"]}):
        shares = [[share for at, _, share in stage["moved"] if at == layer] for stage in life]
        rows.append([f"weights moved, layer {layer}", *cells(mean(some) if some else None for some in shares)])
    return markdown_table(["", *(stage["name"] for stage in life)], rows)
