"""Attention of an answer: its weights, a head to show, and the head's map in a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from configs.text import columns, escape
from eval.attention import snapshots
from eval.attention.capture import AttentionMaps, capture
from eval.attention.history import best_head
from eval.attention.probes import readable_tokens
from eval.chat.session import Conversation
from eval.load_model import run_folder
from model import LanguageModel
from model.kv_cache import KVCache

MOST_TOKENS = 256  # At most so many rows are captured.
BLOCKS = "·▁▂▃▄▅▆▇█"  # A weight from 0 to 1; later tokens are blank.


class AnswerMaps(NamedTuple):
    """The weights of the last answer."""

    maps: AttentionMaps  # (layer, 1, head, query, key); queries are the last tokens, at most 256
    labels: list[str]  # a readable string a key
    first: int  # the key that wrote the answer's first token; a drawn map begins with its row


def look_back(conversation: Conversation) -> AnswerMaps:
    """Capture the last answer and the text before it. Raises ValueError if there is none."""
    last = conversation.last
    if last is None or last.begin == len(last.ids):
        raise ValueError("there is no answer yet to look at: ask something first")
    start = max(0, len(last.ids) - MOST_TOKENS)
    maps = capture_from(conversation.lm, last.ids, start)  # note: this runs the model again
    labels = readable_tokens(conversation.tokenizer, last.ids)
    return AnswerMaps(maps, labels, max(last.begin - 1, start))


def capture_from(lm: LanguageModel, ids: Sequence[int], start: int) -> AttentionMaps:
    """Capture the rows of the tokens from `start` on; keys are all tokens."""
    row = torch.tensor([ids], device=lm.device)
    cache = KVCache(lm.config)
    if start:
        # read the text before into the cache, without its weights
        with torch.no_grad():
            lm(row[:, :start], kv_cache=cache, logits_to_keep=1)
    return capture(lm, row[:, start:], kv_cache=cache)


def head_to_show(run: str | Path, answer: AnswerMaps) -> tuple[int, int, str]:
    """Return layer, head and reason: the strongest induction head of the run's last snapshot.

    Without snapshots: the head most focused on single tokens further back in this answer.
    """
    snapshot = snapshots.newest(run_folder(run))
    best = best_head(snapshot, "induction") if snapshot is not None else None
    if snapshot is not None and best is not None:
        score = float(snapshot.scores["induction"][best])
        reason = f"the run's strongest induction head ({score:.2f} on random tokens)"
        return snapshot.layers[best[0]], snapshot.heads[best[1]], reason
    weights = answer.maps.weights[:, 0]  # (layer, head, query, key)
    queries, keys = weights.shape[2:]
    # leave out the token itself, the one before it and the first
    far = weights.tril(keys - queries - 2)[..., 1:]
    sharpness = far[:, :, answer.first - keys :].amax(-1).mean(-1)
    layer, head = divmod(int(sharpness.argmax()), sharpness.shape[1])
    layer = answer.maps.layers[layer]
    return layer, head, "of all heads the one most focused on single tokens further back"


def attention_map(
    weights: np.ndarray,
    labels: Sequence[str],
    first: int,
    width: int,
    most_rows: int | None = None,
) -> list[str]:
    """Draw one head in lines of at most `width` columns: a line for each query.

    weights:   (query, key); the queries are the last keys
    labels:    one a key
    first:     first key whose row is drawn
    most_rows: leave out later rows, and the keys that only they can see

    A line ends with the token with most weight, and this weight.
    """
    end = len(labels) if most_rows is None else min(len(labels), first + most_rows)
    names = [escape(label) for label in labels[:end]]
    # at most a sixth of the line for a label: the map is what a reader came for
    label_width = min(max(map(columns, names)), max(4, width // 6))
    for key, name in enumerate(names):
        # Chinese is two columns wide, so a label is cut by columns, not by characters
        while columns(name) > label_width:
            name = name[:-1]
        names[key] = name + " " * (label_width - columns(name))
    room = max(1, width - 2 * label_width - 8)  # two edges, three blanks and a number such as .71
    # With more keys than columns, a column shows the largest weight of `pool` keys.
    # rounded up: every key must be in some column
    pool = -(-end // room)
    lines = []
    for key in range(first, end):
        # row 0 of the weights belongs to key len(labels) - len(weights)
        row = weights[key - (len(labels) - len(weights)), : key + 1]
        cells = ""
        for start in range(0, len(row), pool):
            largest = float(row[start : start + pool].max())
            cells += BLOCKS[round(largest * (len(BLOCKS) - 1))]
        top = int(row.argmax())
        number = f"{row[top]:.2f}".removeprefix("0")[:3]  # .71, or 1.0
        lines.append(f"{names[key]} │{cells:{-(-end // pool)}}│ {names[top]} {number}")
    return lines
