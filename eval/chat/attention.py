"""What did the model look at while it wrote an answer? The weights, which head to show, and its map in a terminal."""

from __future__ import annotations

import re
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

MOST_TOKENS = 256  # whose rows are looked at
NUMBERS = 2**26  # weights that are kept at a time: 256 MB
BLOCKS = "·▁▂▃▄▅▆▇█"  # of a weight, from 0 to 1; what is still to come is blank


class AnswerMaps(NamedTuple):
    """The weights of the last answer.

    maps:   .weights (layer, 1, head, query, key); queries are the last tokens, at most 256, keys all of them
    labels: a readable string a key
    first:  the key that wrote the first token of the answer, by the row of which a map begins
    """

    maps: AttentionMaps
    labels: list[str]
    first: int


def look_back(conversation: Conversation) -> AnswerMaps:
    """The last answer, read once more, with what came before it. Raises ValueError where there is none."""
    last = conversation.last
    if last is None or last.begin == len(last.ids):
        raise ValueError("there is no answer yet to look at: ask something first")
    start = max(0, len(last.ids) - MOST_TOKENS)
    maps = capture_from(conversation.lm, last.ids, start)
    return AnswerMaps(maps, readable_tokens(conversation.tokenizer, last.ids), max(last.begin - 1, start))


def capture_from(lm: LanguageModel, ids: Sequence[int], start: int) -> AttentionMaps:
    """`capture` of a text's tokens from `start` on: queries are these, keys all of them. Raises what it raises."""
    row, cache = torch.tensor([ids], device=next(lm.parameters()).device), KVCache(lm.config)
    if start:
        with torch.no_grad():
            lm(row[:, :start], kv_cache=cache, logits_to_keep=1)
    return capture(lm, row[:, start:], kv_cache=cache)


def rows_around(lm: LanguageModel, ids: Sequence[int], position: int) -> tuple[int, int]:
    """Which tokens' rows to capture together with the one that predicted the token at `position`: first, and end. In a
    short text all of them, so that one capture is enough for every token."""
    heads = lm.config.num_hidden_layers * lm.config.num_attention_heads
    rows = max(1, min(MOST_TOKENS, NUMBERS // (heads * len(ids))))
    first = (position - 1) // rows * rows
    return first, min(first + rows, len(ids))


def head_to_show(run: str | Path, answer: AnswerMaps) -> tuple[int, int, str]:
    """Layer, head and why this one: the run's strongest induction head, by the last look at its heads in training.

    Without snapshots: the head that is most focused on single tokens further back in this answer.
    """
    snapshot = snapshots.newest(run_folder(run))
    if snapshot is not None and (place := best_head(snapshot, "induction")):
        score = float(snapshot.scores["induction"][place])
        why = f"the run's strongest induction head ({score:.2f} on random tokens)"
        return snapshot.layers[place[0]], snapshot.heads[place[1]], why
    weights = answer.maps.weights[:, 0]  # (layer, head, query, key)
    queries, keys = weights.shape[2:]
    far = weights.tril(keys - queries - 2)[..., 1:]  # neither itself, nor the token before, nor the first
    sharpness = far[:, :, answer.first - keys :].amax(-1).mean(-1)
    layer, head = divmod(int(sharpness.argmax()), sharpness.shape[1])
    return layer, head, "of all heads the one most focused on single tokens further back"


def read_head(text: str, answer: AnswerMaps) -> tuple[int, int]:
    """`2,0` or `L2 H0` -> layer and head. Raises ValueError for anything else, and a head that is not there."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    layers, heads = answer.maps.layers, answer.maps.heads
    if len(numbers) != 2 or numbers[0] not in layers or numbers[1] not in heads:
        raise ValueError(f"/attention takes a layer, 0 to {layers[-1]}, and a head, 0 to {heads[-1]}, for example 1,0")
    return numbers[0], numbers[1]


def attention_map(
    weights: np.ndarray, labels: Sequence[str], first: int, width: int, most_rows: int | None = None
) -> list[str]:
    """One head in lines of at most `width` columns: a row a token that looks, from left to right what it looks at.

    weights: (query, key), the queries are the last ones of the keys. labels: one a key. first: the first key whose
    row is drawn. Several keys share a column where there are more of them than columns: the largest weight is drawn.
    At the right of a row stands the token that has most, and its weight. most_rows: later rows, and keys that only
    they could see, are left out.
    """
    end = len(labels) if most_rows is None else min(len(labels), first + most_rows)
    names = [escape(label) for label in labels[:end]]
    label_width = min(max(map(columns, names)), max(4, width // 6))
    for key, name in enumerate(names):  # Chinese is two columns wide
        while columns(name) > label_width:
            name = name[:-1]
        names[key] = name + " " * (label_width - columns(name))
    room = max(1, width - 2 * label_width - 8)  # two edges, three blanks and a number such as .71
    pool = -(-end // room)
    lines = []
    for key in range(first, end):
        row = weights[key - (len(labels) - len(weights)), : key + 1]
        largest = [row[at : at + pool].max() for at in range(0, len(row), pool)]
        cells = "".join(BLOCKS[round(float(weight) * (len(BLOCKS) - 1))] for weight in largest)
        top = int(row.argmax())
        number = f"{row[top]:.2f}".removeprefix("0")[:3]  # .71, or 1.0
        lines.append(f"{names[key]} │{cells:{-(-end // pool)}}│ {names[top]} {number}")
    return lines
