"""Stages of training: runs that start from each other, and the changes in each.

They are measured on held-out conversations and stories of the built-in world.
"""

import math
import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
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
from eval.compare.runs import RunResult, Variant
from eval.language_modeling import compare_with_floor, evaluating, mean_loss
from eval.load_model import open_model
from eval.questions import ask, figures, held_out_questions, source_of
from model import LanguageModel
from storyworld import interview, tell
from storyworld.questions import KINDS

# The size of the held-out sample for each stage.
QUESTIONS = 200
CONVERSATIONS = 24
STORIES = 60
MATRIX = re.compile(r"\blayers\.(\d+)\.(\S+?)\.weight$")
# The table names so many heads that right answers need.
NAMED_HEADS = 2
Stage = dict[str, Any]


def measure(variants: Sequence[Variant], device: str = "auto") -> list[Stage]:
    """Return the stages in the order of the runs, as in histories.json (null: not measured).

    [] if no run started from another, or for other data than the built-in world.
    """
    life = chain(variants)
    if not life:
        return []
    try:
        # of the last stage: earlier ones may have learned from texts without questions
        source = source_of(life[-1][0].path)
    except InputError:
        return []
    if not source.tells_stories:
        return []
    # note: all models are in memory at once
    models = {run.path: open_model(run.path, device) for run, _ in life}
    first, tokenizer = models[life[0][0].path]
    # every stage reads the same texts
    longest = min(lm.config.max_position_embeddings for lm, _ in models.values())
    stories = [tell(source.seed, i, "validation", source.level) for i in range(STORIES)]
    # the text of the data, not of the models: so every stage is measured on the same answers
    answers = right_answers(tokenizer, source, longest)
    documents = tokenizer.encode_documents([story.text for story in stories])
    texts = [_row(ids, [True] * len(ids)) for ids in documents if len(ids) <= longest]
    # A stage is compared with the first one (gained, forgotten) and with its origin (moved).
    stages = []
    for run, origin in life:
        lm, its_tokenizer = models[run.path]
        stage: Stage = {"name": run.name, "started_from": origin.name if origin else None}
        # Figures of eval.questions; new: with names of a form that training does not have.
        # a model that has learned its names by heart falls on new ones; one that copies does not
        for key, new_names in (("right", False), ("new", True)):
            questions = list(islice(held_out_questions(source, new_names=new_names), QUESTIONS))
            stage[key] = figures(questions, ask(lm, its_tokenizer, questions))
        # KL(stage || first stage), in nats a token.
        stage["kl_answers"] = divergence(lm, first, answers)
        # grows where a stage forgets what it could before
        stage["kl_stories"] = divergence(lm, first, texts)
        # Bits per byte above the entropy floor, on stories.
        _, bits, floor = compare_with_floor(lm, its_tokenizer, stories)
        stage["gap"] = bits - floor
        # [layer][head]: rise of the loss on right answers without the head, in nats a token.
        stage["needed"] = ablate_each(lm, partial(mean_loss, lm, answers)).tolist()
        # [layer, matrix, |W - W of the origin| / |W of the origin|]
        stage["moved"] = moved(lm, models[origin.path][0]) if origin else []
        stages.append(stage)
    return stages


def chain(variants: Sequence[Variant]) -> list[tuple[RunResult, RunResult | None]]:
    """Return (run, the compared run that it started from) for each variant's first run."""
    runs = {variant.runs[0].path.resolve(): variant.runs[0] for variant in variants}
    origins: dict[Path, RunResult | None] = {}
    for path, run in runs.items():
        origins[path] = None
        if run.settings.get("init_from"):
            # a run, or a checkpoint in it
            start = run_path(run.settings["init_from"]).resolve()
            folders = (start, *start.parents[:2])
            origins[path] = next((runs[folder] for folder in folders if folder in runs), None)
    # without the runs that neither start from another nor begin one
    starts = [origin.path for origin in origins.values() if origin]
    pairs = [(run, origins[path]) for path, run in runs.items()]
    return [(run, origin) for run, origin in pairs if origin or run.path in starts]


def right_answers(tokenizer: Tokenizer, source: StoryworldSource, longest: int) -> list[Batch]:
    """Return held-out conversations of at most `longest` tokens; the answers have labels."""
    conversations = []
    for i in range(CONVERSATIONS):
        talk = interview(source.seed, i, "validation", source.level, held_out_names=False)
        conversations.append(checked_conversation(talk["conversations"]))
    rows = []
    for ids, flags in encode_conversations(tokenizer, conversations):
        if len(ids) <= longest:
            rows.append(_row(ids, [bool(flag & TRAINED) for flag in flags]))
    return rows


def _row(ids: Sequence[int], has_label: Sequence[bool]) -> Batch:
    row = torch.tensor([ids])  # (1, T)
    labels = row.masked_fill(~torch.tensor([has_label]), IGNORED)
    return Batch({"input_ids": row, "labels": labels}, [0])


@torch.no_grad()
def divergence(lm: LanguageModel, base: LanguageModel, text: Sequence[Batch]) -> float:
    """Return the mean KL(lm || base) over the labels, in nats; NaN for no text."""
    total = 0.0
    count = 0
    device = lm.device
    with evaluating(lm), evaluating(base):
        for row in text:
            ids = row["input_ids"].to(device)
            # position t predicts the label at t + 1
            has_label = (row["labels"][:, 1:] != IGNORED).to(device)
            # in float32: a KL of two close models is a small difference of large numbers
            ours = F.log_softmax(lm(ids)[:, :-1][has_label].float(), -1)  # (labels, V)
            theirs = F.log_softmax(base(ids)[:, :-1][has_label].float(), -1)
            total += (ours.exp() * (ours - theirs)).sum().item()
            count += int(has_label.sum())
    return total / count if count else math.nan


def moved(lm: LanguageModel, before: LanguageModel) -> list[tuple[int, str, float]]:
    """Return (layer, matrix, Frobenius norm of its change / its norm)."""
    old = before.state_dict()
    shares = []
    for name, weight in lm.state_dict().items():
        match = MATRIX.search(name)
        # a stage may have new matrices, such as adapters
        if match and weight.dim() == 2 and name in old:
            # relative, so that large and small matrices can be compared
            change = (weight - old[name]).norm() / old[name].norm().clamp_min(1e-12)
            shares.append((int(match[1]), match[2].rsplit(".", 1)[-1], change.item()))
    return shares


def table(life: Sequence[Stage]) -> str:
    """Return a Markdown table of `measure` or histories.json, a column for each stage."""

    def cells(values: Iterable[float | None], form: str = ".1%") -> list[str]:
        return ["–" if value is None or value != value else f"{value:{form}}" for value in values]

    rows = [["started from", *(stage["started_from"] or "–" for stage in life)]]
    shares = [stage["right"]["exact_match"] for stage in life]
    rows.append([f"answers right, all {life[0]['right']['asked']}", *cells(shares)])
    for kind in KINDS:
        shares = [stage["right"].get(f"exact_match_{kind}") for stage in life]
        if any(share is not None for share in shares):
            rows.append([f"… {kind}", *cells(shares)])
    shares = [stage["new"]["exact_match"] for stage in life]
    rows.append(["answers right, names of a new form", *cells(shares)])
    for key, label, form in (
        ("kl_answers", f"KL from {life[0]['name']}, right answers (nats a token)", ".3f"),
        ("kl_stories", f"KL from {life[0]['name']}, stories (nats a token)", ".3f"),
        ("gap", "gap to the entropy floor, stories (bits per byte)", ".4f"),
    ):
        rows.append([label, *cells((stage[key] for stage in life), form)])
    needed = []
    for stage in life:
        rises = np.array(stage["needed"], float)
        best = np.argsort(-rises, axis=None, kind="stable")[:NAMED_HEADS]
        heads = zip(*np.unravel_index(best, rises.shape), strict=True)
        needed.append(", ".join(f"L{i} H{j} {rises[i, j]:+.2f}" for i, j in heads))
    rows.append(["heads that right answers need most (nats a token)", *needed])
    for layer in sorted({layer for stage in life for layer, *_ in stage["moved"]}):
        row = [f"weights moved, layer {layer}"]
        for stage in life:
            changes = [share for i, _, share in stage["moved"] if i == layer]
            row += cells([fmean(changes) if changes else None])
        rows.append(row)
    return markdown_table(["", *(stage["name"] for stage in life)], rows)
