"""What did the model look at while it wrote an answer? The weights, which head to show, and the pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from configs.command import InputError
from configs.files import checkpoint_directory
from eval.attention import snapshots
from eval.attention.capture import AttentionMaps, capture
from eval.attention.history import best_head
from eval.attention.pictures.plots import mosaic, one_head
from eval.attention.probes import readable_tokens
from eval.attention.snapshots import ProbeMap, Snapshot
from eval.chat.session import Conversation
from model import LanguageModel
from model.kv_cache import KVCache

MOST_TOKENS = 256  # whose rows are looked at: more are too small to see in a picture


@dataclass(frozen=True)
class Looked:
    """The weights of the last answer.

    maps:   .weights (layer, 1, head, query, key); queries are the last tokens, at most 256, keys all of them
    labels: a readable string a key
    first:  the key that wrote the first token of the answer, by the row of which a map begins
    """

    maps: AttentionMaps
    labels: list[str]
    first: int


def look_back(conversation: Conversation) -> Looked:
    """The last answer, read once more, with what came before it. Raises ValueError where there is none."""
    last = conversation.last
    if last is None or last.begin == len(last.ids):
        raise ValueError("there is no answer yet to look at: ask something first")
    start = max(0, len(last.ids) - MOST_TOKENS)
    maps = capture_from(conversation.lm, last.ids, start)
    return Looked(maps, readable_tokens(conversation.tokenizer, last.ids), max(last.begin - 1, start))


def capture_from(lm: LanguageModel, ids: Sequence[int], start: int) -> AttentionMaps:
    """`capture` of a text's tokens from `start` on: queries are these, keys all of them. Raises what it raises."""
    row, cache = torch.tensor([ids], device=next(lm.parameters()).device), KVCache(lm.config)
    if start:
        with torch.no_grad():
            lm(row[:, :start], kv_cache=cache, logits_to_keep=1)
    return capture(lm, row[:, start:], kv_cache=cache)


def head_to_show(run: str | Path, looked: Looked) -> tuple[int, int, str]:
    """Layer, head and why this one: the run's strongest induction head, by the last look at its heads in training.

    Without snapshots: the head that is most focused on single tokens further back in this answer.
    """
    directory = checkpoint_directory(run)
    files = sorted((directory.parents[1] / "attention").glob("step_*.npz")) if len(directory.parents) > 1 else []
    try:
        seen = snapshots.read(files[-1]) if files else None
    except InputError:  # a broken file must not stop the command
        seen = None
    if seen is not None and (place := best_head(seen, "induction")):
        layer, head, score = seen.layers[place[0]], seen.heads[place[1]], float(seen.scores["induction"][place])
        if layer in looked.maps.layers and head in looked.maps.heads:
            return layer, head, f"the run's strongest induction head ({score:.2f} on random tokens)"
    weights = looked.maps.weights[:, 0].numpy()  # (layer, head, query, key)
    queries, keys = weights.shape[2:]
    places = np.arange(keys - queries, keys)[:, None] - np.arange(keys)  # how far back each key is
    far = np.where((places > 1) & (np.arange(keys) > 0), weights, 0.0)
    sharpness = far[:, :, looked.first - keys + queries :].max(-1).mean(-1)
    layer, head = divmod(int(sharpness.argmax()), sharpness.shape[1])
    return layer, head, "of all heads the one most focused on single tokens further back"


def read_head(text: str, looked: Looked) -> tuple[int, int]:
    """`2,0`, `2 0` or `L2 H0` -> layer and head. Raises ValueError for anything else, and a head that is not there."""
    found = re.fullmatch(r"\s*L?(\d+)[\s,]*H?(\d+)\s*", text, re.IGNORECASE)
    numbers = re.findall(r"\d+", text)
    if found is None or len(numbers) != 2:
        raise ValueError("/attention takes a layer and a head, for example /attention 2,0")
    layer, head = map(int, numbers)
    if layer not in looked.maps.layers or head not in looked.maps.heads:
        last = looked.maps.layers[-1], looked.maps.heads[-1]
        raise ValueError(f"there is no L{layer} H{head}: layers are 0 to {last[0]}, heads 0 to {last[1]}")
    return layer, head


def draw(looked: Looked, run: str | Path, layer: int, head: int) -> list[Path]:
    """Every head as chat.png, this one as chat_L2H0.png, in the run's attention folder; in this folder for others."""
    directory = checkpoint_directory(run)
    is_run = (Path(run) / "checkpoints").is_dir()
    folder = Path(run) / "attention" if is_run else Path()
    folder.mkdir(parents=True, exist_ok=True)
    step = re.search(r"step_(\d{8})$", directory.name)
    snapshot = _snapshot(looked, int(step[1]) if step else -1)
    return [
        mosaic(snapshot, folder / "chat.png", str(run)),
        one_head(snapshot, layer, head, folder / f"chat_L{layer}H{head}.png", str(run)),
    ]


def _snapshot(looked: Looked, step: int) -> Snapshot:
    """What plots draws: the last tokens, as rows and as columns."""
    maps = looked.maps
    shown = maps.weights.shape[3]
    left_out = len(looked.labels) - shown
    note = f"tokens 0 to {left_out - 1} of {len(looked.labels)}" if left_out else ""
    answer = ProbeMap(maps.weights[:, 0, :, :, left_out:].numpy(), looked.labels[left_out:], left_out=note)
    numbers = (maps.layers, maps.heads, maps.num_attention_heads, maps.num_key_value_heads)
    answers = {"last answer": answer}
    return Snapshot(step, 0, 0.0, *numbers, maps=answers, scores={}, chance={}, attention=maps.attention)
