"""The hook `in_context`: does a longer context help?

The in-context-learning score of Olsson et al. 2022 (arXiv 2209.11895): the loss of late tokens
minus that of early ones, in nats. Below 0, the context helps. The paper compares one token, the
500th, with the 50th. These rows are shorter and fewer, so each side is a mean over several tokens:
of 128, early are 8 to 15 and late 112 to 126, counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from eval.attention import snapshots
from eval.attention.controls import Head, ablated
from eval.attention.probes import SCAN
from eval.hooks.hook import EvalEvent
from eval.language_modeling import predictions
from model import LanguageModel

TOKENS = 128  # Of a row; fewer if data.sequence_length is less.
ROWS = 64  # Held-out ones; fewer if there are not as many.
INDUCTION = 0.2  # The score of an induction head. Chance is 0.03 on rows of 51 tokens.


def in_context(event: EvalEvent) -> dict[str, float]:
    """Return the score; at the end, also without some heads (docs/measure.md)."""
    rows = event.memory.get("rows")
    if rows is None:
        rows = event.memory["rows"] = beginnings(event)
    figures = {"score": score(event.lm, rows)}
    # Of the hook `attention`, on random tokens: so heads are not chosen on these rows. Each
    # process has waited for the others in the pass above, so the last snapshot is written.
    newest = snapshots.newest(event.directory) if event.is_last else None
    if newest is None or "induction" not in newest.scores:
        return figures
    draws = []
    for name, heads, _ in newest.ablations:
        if name == "strongest induction heads":
            figures["without_strongest"] = score_without(event.lm, rows, heads)
        elif name.startswith("random"):
            draws.append(score_without(event.lm, rows, heads))
    if draws:
        figures["without_random"] = sum(draws) / len(draws)
    # there may be more than those, so that without some the others do their job
    layers, numbers = np.nonzero(newest.scores["induction"] >= INDUCTION)
    figures["induction_heads"] = len(layers)
    if len(layers):
        heads = [(newest.layers[i], newest.heads[j]) for i, j in zip(layers, numbers, strict=True)]
        figures["without_induction_heads"] = score_without(event.lm, rows, heads)
    return figures


def score_without(lm: LanguageModel, rows: Tensor, heads: Sequence[Head]) -> float:
    with ablated(lm, heads):
        return score(lm, rows)


def beginnings(event: EvalEvent) -> Tensor:
    """Return the first tokens of held-out documents (B, T). Raises ValueError.

    If these are too few, more rows follow from long documents, such as books.
    """
    length = min(TOKENS, event.data_config.sequence_length)
    stream = event.data.stream("validation")
    ids = stream.read(0, min(len(stream), SCAN))
    starts = np.flatnonzero(ids == event.tokenizer.bos_id)
    sizes = np.diff(starts, append=len(ids))
    most = max(sizes, default=0) // length
    # the first row of each document, then the second of each that has one, and so on
    rows = np.concatenate(
        [starts[sizes >= (row + 1) * length] + row * length for row in range(most)] or [starts[:0]]
    )[:ROWS]
    if not len(rows):
        raise ValueError(f"no held-out document has {length} tokens: leave in_context out")
    return torch.from_numpy(ids[rows[:, None] + np.arange(length)].astype(np.int64))


def score(lm: LanguageModel, rows: Tensor) -> float:
    """Return the mean loss of late tokens minus that of early ones, in nats. rows (B, T)."""
    losses = predictions(lm, rows)[0]  # (B, T)
    length = rows.shape[1]
    early = losses[:, length // 16 : length // 8]
    # not the last token: it may be a document's end, which its position alone predicts
    late = losses[:, length * 7 // 8 : -1]
    return (late.mean() - early.mean()).item()
