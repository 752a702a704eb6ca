"""Snapshots: maps and scores of all heads at one step.

On disk: attention/step_XXXXXXXX.npz, and its line in attention/index.jsonl. Everything drawn later
(mosaics, curves, time-lapse, viewer, comparison) comes from these files.
"""

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
from eval.attention.capture import capture, layers_with_weights
from eval.attention.controls import Ablated, ablate_strongest, copy_gain
from eval.attention.probes import BUILT_IN_PROBES, Probe
from eval.config import AttentionConfig
from model import LanguageModel

# The maps of these probes and of texts are stored. These have some fifty tokens.
MAPS = ("repeated_2", "packed")
# The model's figure is the largest of the heads' scores for some scores, the mean for others.
STRONGEST = (
    "previous_token duplicate_token induction song_induction antecedent_writes antecedent_refers "
    "sink max_logit cross_document"
).split()
MEAN = ("entropy_normalised", "distance", "saturated_rows")
COPY_GAINS = {"repeated_2": "copy_gain", "songs": "song_copy_gain"}  # probe -> figure
# Fields that AttentionMaps and Snapshot share, and fields that JSON holds as they are.
SHAPE = ("layers", "heads", "num_attention_heads", "num_key_value_heads", "attention")
PLAIN = ("step", "tokens", "seconds", *SHAPE, "chance", "blocks", "ablations")


@dataclass(frozen=True)
class ProbeMap:
    """The maps of one sequence."""

    weights: np.ndarray  # (layer, head, query, key), in 0 … 1
    labels: list[str]  # a readable string a token
    documents: list[int] | None = None  # the document number of each token of a packed row
    left_out: str = ""  # the part that is not shown, in words


@dataclass(frozen=True)
class Snapshot:
    """All heads at one step."""

    # Of training so far.
    step: int
    tokens: int
    seconds: float
    # Numbers in the model of the captured layers and heads.
    layers: list[int]
    heads: list[int]
    # As in ModelConfig.
    num_attention_heads: int
    num_key_value_heads: int
    maps: dict[str, ProbeMap]  # by probe, in their order
    scores: dict[str, np.ndarray]  # name -> (layer, head) float32; NaN if undefined
    chance: dict[str, float | None]  # score of uniform causal attention; None: there is none
    scalars: dict[str, float | None] = field(default_factory=dict)  # figures of the whole model
    ablations: list[Ablated] = field(default_factory=list)  # at the end of a run
    attention: str = "heads"  # or mla
    # The tokens that repeated_2 repeats, by row. Fine-tuning measures on the same ones.
    blocks: list[list[int]] = field(default_factory=list)

    def group(self, head: int) -> int:
        """Return the key/value head that this query head reads."""
        return head // (self.num_attention_heads // self.num_key_value_heads)


def take_snapshot(
    lm: LanguageModel,
    probes: Sequence[Probe],
    config: AttentionConfig,
    moment: tuple[int, int, float],
    agree: Callable[[bool], bool] = bool,
) -> Snapshot:
    """Capture every probe: score all heads, and keep the maps of some probes.

    moment: step, tokens, seconds
    agree:  returns True if its argument is true in any process
    """
    device = lm.device
    blocks: list[list[int]] = []
    maps: dict[str, ProbeMap] = {}
    scores: dict[str, np.ndarray] = {}
    chance: dict[str, float | None] = {}
    figures: dict[str, float | None] = {}
    for probe in probes:
        inputs: dict[str, Any] = probe.for_model(device)
        # One process must not raise alone: under FSDP2 the others would wait forever in the next
        # forward pass. So first all agree.
        problem = None
        try:
            captured = capture(lm, **inputs, layers=config.layers, heads=config.heads)
        except Exception as error:
            problem = error
        if agree(problem is not None):
            raise problem or RuntimeError("it failed in another process")
        for name, values in metrics.score(captured, probe).items():
            if config.metrics == "all" or name in config.metrics:
                scores[name] = values.float().numpy()
                chance[name] = metrics.chance(name, probe)
        if probe.name == "repeated_2" and probe.period:
            blocks = probe.input_ids[:, 1 : 1 + probe.period].tolist()
        if probe.name == "text":
            figures["sink_rate"] = metrics.sink_rate(captured.weights)
        if probe.name in COPY_GAINS:
            # one more forward pass: the capture keeps no logits
            figures[COPY_GAINS[probe.name]] = copy_gain(lm, probe)
        if probe.name in MAPS or probe.name not in BUILT_IN_PROBES:
            length = captured.weights.shape[-1]
            count = length if probe.name in MAPS else min(length, config.max_tokens)
            left_out = [probe.left_out] if probe.left_out else []
            if count < length:
                left_out.insert(0, f"tokens {count} to {length - 1} of {length}")
            documents = None
            if probe.document_ids is not None:
                documents = probe.document_ids[0, :count].tolist()
            # The map of the first row only. Only scores need the others.
            weights = captured.weights[:, 0, :, :count, :count].numpy()  # (layer, head, query, key)
            labels = probe.labels[0][:count]
            maps[probe.name] = ProbeMap(weights, labels, documents, ", ".join(left_out))
    summary: dict[str, float | None] = {}
    for name in STRONGEST:
        if name in scores:
            key = name if name == "max_logit" else f"{name}_max"
            # the maximum: one head that copies is enough, and a mean over all would hide it
            summary[key] = _reduce(np.nanmax, scores[name])
    for name in MEAN:
        if name in scores:
            summary[f"{name}_mean"] = _reduce(np.nanmean, scores[name])
    return Snapshot(
        *moment,
        # the shape is the same for every probe, so the last capture serves
        **{key: getattr(captured, key) for key in SHAPE},
        maps=maps,
        scores=scores,
        chance=chance,
        scalars=summary | figures,
        blocks=blocks,
    )


def _reduce(reduce: Callable[[np.ndarray], Any], values: np.ndarray) -> float | None:
    return None if np.isnan(values).all() else float(reduce(values))


def ablate(lm: LanguageModel, probes: Sequence[Probe], snapshot: Snapshot) -> None:
    """Ablate the strongest induction heads, and random ones; add the results to the snapshot."""
    probe = next((probe for probe in probes if probe.name == "repeated_2"), None)
    # The strongest head may be one that was not captured: then nothing is ablated.
    all_heads = (len(layers_with_weights(lm.config)), lm.config.num_attention_heads)
    induction = snapshot.scores.get("induction", np.empty(0))
    if probe is None or induction.shape != all_heads:
        return
    previous = snapshot.scores.get("previous_token")
    previous_token = None if previous is None else _by_layer(lm, snapshot, previous)
    ablations = ablate_strongest(lm, probe, _by_layer(lm, snapshot, induction), previous_token)
    snapshot.ablations.extend(ablations)
    draws = [ablation.rise for ablation in ablations if ablation.what.startswith("random")]
    snapshot.scalars["ablation_induction_heads"] = ablations[0].rise
    snapshot.scalars["ablation_random_heads"] = sum(draws) / len(draws) if draws else math.nan


def _by_layer(lm: LanguageModel, snapshot: Snapshot, scores: np.ndarray) -> torch.Tensor:
    """Return scores for all layers: NaN for the heads of linear attention, which have none."""
    # NaN, not 0: a head that was not measured must never rank above one that was
    everything = torch.full((lm.config.num_hidden_layers, scores.shape[1]), math.nan)
    everything[snapshot.layers] = torch.from_numpy(scores)
    return everything


def file_of(folder: Path, step: int) -> Path:
    """Return the path of this step's snapshot; its picture has the same stem."""
    return folder / f"step_{step:08d}.npz"


def write(snapshot: Snapshot, folder: Path) -> Path:
    """Write the snapshot atomically, and its line in index.jsonl."""
    # not its parents: the run directory may have been moved away
    folder.mkdir(exist_ok=True)
    scalars = {}
    for key, value in snapshot.scalars.items():
        # JSON has no NaN
        scalars[key] = value if value is not None and math.isfinite(value) else None
    arrays: dict[str, Any] = {}
    maps = {}
    for name, probe_map in snapshot.maps.items():
        # float16 halves the file; a picture does not show the difference
        arrays[f"map.{name}"] = probe_map.weights.astype(np.float16)
        maps[name] = {**vars(probe_map), "weights": None}
    for name, values in snapshot.scores.items():
        arrays[f"score.{name}"] = values.astype(np.float32)
    about = {key: getattr(snapshot, key) for key in PLAIN}
    about |= {"maps": maps, "scores": list(snapshot.scores), "scalars": scalars}
    archive = io.BytesIO()
    text = json.dumps(about, ensure_ascii=False)
    # text as an array of characters: no pickle, so a file from elsewhere runs no code
    np.savez_compressed(archive, about=np.array(text), **arrays)
    file = file_of(folder, snapshot.step)
    write_atomically(file, archive.getvalue())
    line = {
        "step": snapshot.step,
        "tokens": snapshot.tokens,
        "time_s": round(snapshot.seconds, 3),
        "file": file.name,
    }
    append_line(folder / "index.jsonl", line | scalars)
    return file


def read(file: Path) -> Snapshot:
    """Read one snapshot. Raises InputError for any other file, or a broken one."""
    try:
        # read at once: a damaged archive seeks to places that no file has
        archive = io.BytesIO(file.read_bytes())
        with np.load(archive, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            maps = {}
            for name, fields in about["maps"].items():
                fields["weights"] = arrays[f"map.{name}"].astype(np.float32)
                maps[name] = ProbeMap(**fields)
            ablations = []
            for name, heads, rise in about["ablations"]:
                ablations.append(Ablated(name, [(layer, head) for layer, head in heads], rise))
            fields = {key: about[key] for key in (*PLAIN, "scalars")}
            fields |= {"maps": maps, "ablations": ablations}
            fields["scores"] = {name: arrays[f"score.{name}"] for name in about["scores"]}
            return Snapshot(**fields)
    except Exception as error:
        # a damaged archive raises zlib.error, BadZipFile, KeyError, …
        problem = f"{type(error).__name__}: {error}"[:200]
        raise InputError(
            f"{file}: the snapshot is damaged ({problem}): delete it, the others still open"
        ) from None


def read_all(run: Path) -> tuple[list[Snapshot], list[str]]:
    """Read a run's snapshots, by step; and a line for each that cannot be read."""
    snapshots = []
    problems = []
    for file in sorted((run / "attention").glob("step_????????.npz")):
        try:
            snapshots.append(read(file))
        except InputError as error:
            problems.append(str(error))
    return snapshots, problems


def newest(run: Path) -> Snapshot | None:
    """Read the newest snapshot of a run, skipping broken ones."""
    # the names have eight digits, so their order is that of the steps
    for file in sorted((run / "attention").glob("step_????????.npz"), reverse=True):
        with suppress(InputError):
            return read(file)
    return None
