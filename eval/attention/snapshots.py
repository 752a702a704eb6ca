"""One look at every head: capture the probes, score the heads, and keep both as a snapshot.

On disk: attention/step_XXXXXXXX.npz, and its line in attention/index.jsonl. Everything that is drawn afterwards
(mosaics, curves, time-lapse, viewer, comparison) is drawn from these files.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.command import InputError
from configs.files import append_line, write_atomically
from eval.attention import metrics
from eval.attention.capture import capture
from eval.attention.controls import Ablated, ablate_strongest, copy_gain
from eval.attention.probes import BUILT_IN_PROBES, Probe
from eval.config import AttentionConfig
from model import LanguageModel

MAPS = ("repeated_2", "packed")  # kept as maps besides the texts, whole: some fifty tokens
# figures of the model as a whole: the strongest head of some scores, the mean of others
STRONGEST = "previous_token duplicate_token induction song_induction antecedent_writes antecedent_refers".split()
STRONGEST += "sink max_logit cross_document".split()
MEAN = "entropy_normalised distance saturated_rows".split()
COPY_GAINS = {"repeated_2": "copy_gain", "songs": "song_copy_gain"}  # what telling something twice is worth
SHAPE = ("layers", "heads", "num_attention_heads", "num_key_value_heads", "attention")  # of a model, and what is here
PLAIN = ("step", "tokens", "seconds", *SHAPE, "chance", "blocks", "ablations")


@dataclass(frozen=True)
class ProbeMap:
    """The maps of one sequence."""

    weights: np.ndarray  # (layer, head, query, key), in 0 … 1
    labels: list[str]  # a readable string a token
    documents: list[int] | None = None  # of a packed row: a number for each token's document
    left_out: str = ""  # what of the sequence is not shown, in words


@dataclass(frozen=True)
class Snapshot:
    """All heads at one step."""

    step: int
    tokens: int
    seconds: float  # of training
    layers: list[int]  # the true numbers of what is here; the model has num_attention_heads a layer
    heads: list[int]
    num_attention_heads: int
    num_key_value_heads: int
    maps: dict[str, ProbeMap]  # by probe, in their order
    scores: dict[str, np.ndarray]  # by name: (layer, head) float32; NaN where it is undefined
    chance: dict[str, float | None]  # of uniform causal attention on the same probe; None: there is no such level
    scalars: dict[str, float | None] = field(default_factory=dict)  # of the whole model, such as copy_gain
    ablations: list[Ablated] = field(default_factory=list)  # at the end of a run, what happens without some heads
    attention: str = "heads"  # or mla: what the keys and values of the heads are made of
    blocks: list[list[int]] = field(default_factory=list)  # the tokens that the probe repeated_2 repeats, a block a row

    def group(self, head: int) -> int:
        """The key/value head that this query head reads."""
        return head // (self.num_attention_heads // self.num_key_value_heads)


def take_snapshot(
    lm: LanguageModel,
    probes: Sequence[Probe],
    config: AttentionConfig,
    moment: tuple[int, int, float],
    agree: Callable[[bool], bool] = bool,
) -> Snapshot:
    """Capture every probe: the maps of some, the scores of every head on all. moment: step, tokens, seconds.

    agree: whether something is true in one of the processes. If a capture fails in one, all stop there: under FSDP2
    the others would wait forever in a forward pass of the next probe.
    """
    device, blocks = next(lm.parameters()).device, list[list[int]]()
    maps: dict[str, ProbeMap] = {}
    scores: dict[str, np.ndarray] = {}
    chance: dict[str, float | None] = {}
    scalars: dict[str, float | None] = {}
    for probe in probes:
        given: dict[str, Any] = {"layers": config.layers, "heads": config.heads, **probe.for_model(device)}
        problem = None
        try:
            captured = capture(lm, **given)
        except Exception as error:
            problem = error
        if agree(problem is not None):
            raise problem or RuntimeError("it failed in another process")
        for name, values in metrics.score(captured, probe).items():
            if config.metrics == "all" or name in config.metrics:
                scores[name], chance[name] = values.float().numpy(), metrics.chance(name, probe)
        if probe.name == "repeated_2" and probe.period:
            blocks = probe.input_ids[:, 1 : 1 + probe.period].tolist()
        if probe.name == "text":
            scalars["sink_rate"] = metrics.sink_rate(captured.weights)
        if probe.name in COPY_GAINS:
            scalars[COPY_GAINS[probe.name]] = copy_gain(lm, probe)
        if probe.name in MAPS or probe.name not in BUILT_IN_PROBES:
            length = captured.weights.shape[-1]
            count = length if probe.name in MAPS else min(length, config.max_tokens)
            documents = None if probe.document_ids is None else probe.document_ids[0, :count].tolist()
            left_out = [f"tokens {count} to {length - 1} of {length}"] * (count < length) + [probe.left_out]
            weights = captured.weights[:, 0, :, :count, :count].numpy()
            words = ", ".join(filter(None, left_out))
            maps[probe.name] = ProbeMap(weights, probe.labels[0][:count], documents, words)
    summary: dict[str, float | None] = {}
    for names, suffix, reduce in ((STRONGEST, "_max", np.nanmax), (MEAN, "_mean", np.nanmean)):
        for name in [name for name in names if name in scores]:
            key = name if name == "max_logit" else name + suffix
            summary[key] = None if np.isnan(scores[name]).all() else float(reduce(scores[name]))
    shape = {key: getattr(captured, key) for key in SHAPE}
    scalars = summary | scalars
    return Snapshot(*moment, **shape, maps=maps, scores=scores, chance=chance, scalars=scalars, blocks=blocks)


def ablate(lm: LanguageModel, probes: Sequence[Probe], snapshot: Snapshot) -> None:
    """Add to the snapshot what ablating the strongest induction heads does to the loss on second copies, and ablating
    random ones."""
    probe = next((probe for probe in probes if probe.name == "repeated_2"), None)
    every_head = (lm.config.num_hidden_layers, lm.config.num_attention_heads)
    if probe is None or snapshot.scores.get("induction", np.empty(0)).shape != every_head:
        return
    scores = {name: torch.from_numpy(values) for name, values in snapshot.scores.items()}
    snapshot.ablations.extend(ablate_strongest(lm, probe, scores["induction"], scores.get("previous_token")))
    draws = [ablation.rise for ablation in snapshot.ablations if ablation.what.startswith("random")]
    snapshot.scalars["ablation_induction_heads"] = snapshot.ablations[0].rise
    snapshot.scalars["ablation_random_heads"] = sum(draws) / len(draws) if draws else math.nan


def file_of(folder: Path, step: int) -> Path:
    """Path of the snapshot of this step; the same stem names its picture."""
    return folder / f"step_{step:08d}.npz"


def write(snapshot: Snapshot, folder: Path) -> Path:
    """Write the snapshot, whole or not at all, and its line in index.jsonl."""
    folder.mkdir(exist_ok=True)  # not its parents: a run directory that was moved away is not made again
    maps = {name: {**vars(shown), "weights": None} for name, shown in snapshot.maps.items()}
    scalars = {key: v if v is not None and math.isfinite(v) else None for key, v in snapshot.scalars.items()}
    about = {key: getattr(snapshot, key) for key in PLAIN}
    about |= {"maps": maps, "scores": list(snapshot.scores), "scalars": scalars}  # JSON has no NaN: null
    arrays: dict[str, Any] = {f"map.{name}": shown.weights.astype(np.float16) for name, shown in snapshot.maps.items()}
    arrays |= {f"score.{name}": values.astype(np.float32) for name, values in snapshot.scores.items()}
    archive, file = io.BytesIO(), file_of(folder, snapshot.step)
    np.savez_compressed(archive, about=np.array(json.dumps(about, ensure_ascii=False)), **arrays)
    write_atomically(file, archive.getvalue())
    line = {"step": snapshot.step, "tokens": snapshot.tokens, "time_s": round(snapshot.seconds, 3), "file": file.name}
    append_line(folder / "index.jsonl", line | scalars)
    return file


def read(file: Path) -> Snapshot:
    """Read one snapshot. Raises InputError for any other file, or a broken one."""
    try:
        archive = io.BytesIO(file.read_bytes())  # a damaged archive seeks to places that no file has
        with np.load(archive, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            weights = {name: arrays[f"map.{name}"].astype(np.float32) for name in about["maps"]}
            maps = {name: ProbeMap(**of | {"weights": weights[name]}) for name, of in about["maps"].items()}
            scores = {name: arrays[f"score.{name}"] for name in about["scores"]}
            ablations = [Ablated(what, [(i, j) for i, j in heads], rise) for what, heads, rise in about["ablations"]]
            plain = {key: about[key] for key in (*PLAIN, "scalars")}
            return Snapshot(**plain | {"maps": maps, "scores": scores, "ablations": ablations})
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


def newest(run: Path) -> Snapshot | None:
    """The newest snapshot of a run that can be read."""
    for file in sorted((run / "attention").glob("step_????????.npz"), reverse=True):
        with suppress(InputError):
            return read(file)
    return None
