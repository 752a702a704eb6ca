"""What did the heads do at one step? On disk: attention/step_XXXXXXXX.npz, and its line in attention/index.jsonl.

Everything that is drawn afterwards (mosaics, curves, time-lapse, viewer, comparison) is drawn from these files.
"""

from __future__ import annotations

import io
import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from configs.command import InputError
from configs.files import append_line

Head = tuple[int, int]  # layer, head
PLAIN = (
    "step", "tokens", "seconds", "layers", "heads", "num_attention_heads", "num_key_value_heads", "attention", "chance",
)  # fmt: skip


class Ablated(NamedTuple):
    """What happens without some heads. what: in words, such as "random draw 1"; rise: of the loss on second copies, in
    nats a token."""

    what: str
    heads: list[Head]
    rise: float


@dataclass(frozen=True)
class ProbeMap:
    """The maps of one sequence: weights (layer, head, query, key), in 0 … 1; labels: a readable string a token.

    documents: a number for each token's document, for a packed row; None where there is one only.
    left_out: what of the sequence is not shown, in words, or "".
    """

    weights: np.ndarray
    labels: list[str]
    documents: list[int] | None = None
    left_out: str = ""


@dataclass(frozen=True)
class Snapshot:
    """All heads at one step.

    step, tokens, seconds: of training, when it was taken
    layers, heads:         the true numbers of what is kept; the model has num_attention_heads a layer
    maps:                  probe's name -> its maps, in the order of the probes
    scores:                score's name -> (layer, head) float32; NaN where it is undefined
    chance:                score's name -> what uniform causal attention scores on the same probe; None: no such level
    similarity:            (layer, head, head): 1 - Jensen-Shannon divergence / ln 2, on text
    scalars:               figures of the model as a whole, such as copy_gain; None where undefined
    ablations:             at the end of a run, what happens without some heads
    attention:             heads, or mla: what the keys and values of the heads are made of
    blocks:                the random tokens that the probe repeated_2 repeats, a block a row
    """

    step: int
    tokens: int
    seconds: float
    layers: list[int]
    heads: list[int]
    num_attention_heads: int
    num_key_value_heads: int
    maps: dict[str, ProbeMap]
    scores: dict[str, np.ndarray]
    chance: dict[str, float | None]
    similarity: np.ndarray | None = None
    scalars: dict[str, float | None] = field(default_factory=dict)
    ablations: list[Ablated] = field(default_factory=list)
    attention: str = "heads"
    blocks: list[list[int]] = field(default_factory=list)

    def group(self, head: int) -> int:
        """The key/value head that this query head reads."""
        return head // (self.num_attention_heads // self.num_key_value_heads)


def file_of(folder: Path, step: int) -> Path:
    """Path of the snapshot of this step; the same stem names its picture."""
    return folder / f"step_{step:08d}.npz"


def write(snapshot: Snapshot, folder: Path) -> Path:
    """Write the snapshot, whole or not at all, and its line in index.jsonl."""
    folder.mkdir(exist_ok=True)  # not its parents: a run directory that was moved away is not made again
    maps = {
        name: {"labels": one.labels, "documents": one.documents, "left_out": one.left_out}
        for name, one in snapshot.maps.items()
    }
    about: dict[str, Any] = {key: getattr(snapshot, key) for key in PLAIN}
    about |= {"maps": maps, "scores": list(snapshot.scores), "scalars": _numbers(snapshot.scalars)}
    about |= {"ablations": snapshot.ablations, "blocks": snapshot.blocks}
    arrays: dict[str, Any] = {f"map.{name}": one.weights.astype(np.float16) for name, one in snapshot.maps.items()}
    arrays |= {f"score.{name}": values.astype(np.float32) for name, values in snapshot.scores.items()}
    if snapshot.similarity is not None:
        arrays["similarity"] = snapshot.similarity.astype(np.float32)
    file = file_of(folder, snapshot.step)
    temporary = file.with_suffix(".tmp")
    try:
        with temporary.open("wb") as stream:
            np.savez_compressed(stream, about=np.array(json.dumps(about, ensure_ascii=False)), **arrays)
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    line = {"step": snapshot.step, "tokens": snapshot.tokens, "time_s": round(snapshot.seconds, 3), "file": file.name}
    append_line(folder / "index.jsonl", line | _numbers(snapshot.scalars))
    return file


def read(file: Path) -> Snapshot:
    """Read one snapshot. Raises InputError for any other file, or a broken one."""
    try:
        archive = io.BytesIO(file.read_bytes())  # a damaged archive seeks to places that no file has
        with np.load(archive, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            maps = {
                name: ProbeMap(arrays[f"map.{name}"].astype(np.float32), **of) for name, of in about["maps"].items()
            }
            return Snapshot(
                **{key: about[key] for key in (*PLAIN, "scalars", "blocks")},
                maps=maps,
                scores={name: arrays[f"score.{name}"] for name in about["scores"]},
                similarity=arrays.get("similarity"),
                ablations=[Ablated(what, [(layer, head) for layer, head in heads], rise)
                           for what, heads, rise in about["ablations"]],
            )  # fmt: skip
    except Exception as error:  # zlib.error, BadZipFile, KeyError, …: whatever a damaged archive leads to
        problem = f"{type(error).__name__}: {error}"[:200]
        raise InputError(f"{file}: not a whole snapshot ({problem}): delete it, the others still open") from None


def read_all(run: Path) -> tuple[list[Snapshot], list[str]]:
    """Every snapshot of a run that can be read, by step, and a line for each that cannot."""
    snapshots, problems = [], []
    for file in sorted((run / "attention").glob("step_????????.npz")):
        try:
            snapshots.append(read(file))
        except InputError as error:
            problems.append(str(error))
    return snapshots, problems


def newest(folder: Path) -> Snapshot | None:
    """The newest snapshot of a run that can be read. folder: the run's directory, its checkpoints' or one of these."""
    folder = folder.resolve()
    for run in (folder, *folder.parents[:2]):
        for file in sorted((run / "attention").glob("step_????????.npz"), reverse=True):
            with suppress(InputError):
                return read(file)
    return None


def _numbers(values: dict[str, float | None]) -> dict[str, float | None]:
    """JSON has no NaN and no infinity: they are null."""
    return {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}
