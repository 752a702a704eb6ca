"""The attention hook: capture the probes, score every head, keep a snapshot. What is drawn, is drawn from snapshots.

While training runs, nothing is drawn but one plain picture of all heads; labelled pictures, curves, time-lapse and
viewer are made from the snapshots at the end (`eval.attention.render`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from configs.loader import InputError
from eval.attention import metrics, snapshots
from eval.attention.capture import AttentionMaps, capture
from eval.attention.controls import ablate_strongest, copy_gain
from eval.attention.pictures.plots import quick_mosaic
from eval.attention.probes import BUILT_IN, Probe, ProbeText, build_probes, read_probe_file
from eval.attention.snapshots import ProbeMap, Snapshot
from eval.config import AttentionConfig
from model import LanguageModel, ModelConfig

if TYPE_CHECKING:
    from eval.hooks import EvalEvent

MAPS = ("repeated_2", "packed")  # kept as maps besides the texts, whole: some fifty tokens
STRONGEST = "previous_token duplicate_token induction song_induction antecedent_writes antecedent_refers".split()
STRONGEST += "sink max_logit cross_document".split()
MEAN = "entropy_normalised distance saturated_rows".split()
ABLATED = 2  # strongest induction heads that are silenced at the end, and as many random ones


def record(event: EvalEvent) -> None:
    """Look at every head; the first process writes the snapshot and its picture. Figures go to the `attention` split.

    Every process captures and scores, since each may hold a share of the model only.
    """
    before = time.perf_counter()
    probes = event.kept.get("probes")
    if probes is None:
        probes = event.kept["probes"] = probes_of(event)
    agree = event.any_process
    snapshot = look(event.lm, probes, event.config.attention, (event.step, event.tokens, event.seconds), agree)
    if event.is_last:
        snapshot.scalars.update(silenced(event.lm, probes, snapshot))
    if event.writes:
        folder = event.directory / "attention"
        picture = snapshots.write(snapshot, folder).with_suffix(".png")
        is_whole = len(snapshot.heads) == snapshot.num_attention_heads
        first = next(iter(snapshot.maps.values()))
        quick_mosaic(first.weights, picture, snapshot.num_key_value_heads if is_whole else None)
        if event.is_last or (event.config.every and event.step % event.config.every == 0):
            event.log_image("attention/heads", picture)
    event.log("attention", snapshot.scalars | {"attention_seconds": round(time.perf_counter() - before, 4)})


def check(wanted: AttentionConfig, model: ModelConfig) -> None:
    """Raises InputError for layers, heads and scores that do not exist, and a file of probes that cannot be read."""
    for what, count in (("layers", model.num_hidden_layers), ("heads", model.num_attention_heads)):
        numbers = getattr(wanted, what)
        if numbers is not None and (not numbers or sorted(set(numbers).intersection(range(count))) != sorted(numbers)):
            raise InputError(
                f"eval.attention.{what} ({numbers}): this model has {what} 0 to {count - 1}: give some of these, each "
                "once, or null for all"
            )
    unknown = [name for name in ([] if wanted.metrics == "all" else wanted.metrics) if name not in metrics.SCORES]
    if unknown:
        raise InputError(f"eval.attention.metrics: there is no score {unknown[0]!r}: use {', '.join(metrics.SCORES)}")
    if wanted.probe_file is not None:
        read_probe_file(wanted.probe_file)


def probes_of(event: EvalEvent) -> list[Probe]:
    """The probes of this run, the same at every step."""
    wanted = event.config.attention
    texts: list[str | ProbeText] = list(wanted.texts)
    if wanted.probe_file is not None:
        texts += read_probe_file(wanted.probe_file)
    length = event.lm.config.max_position_embeddings
    return build_probes(event.tokenizer, event.data_config, length, texts, event.data.stream("validation"))


def look(
    lm: LanguageModel,
    probes: Sequence[Probe],
    wanted: AttentionConfig,
    moment: tuple[int, int, float],
    agree: Callable[[bool], bool] = bool,
) -> Snapshot:
    """Capture every probe: the maps of some, the scores of every head on all. moment: step, tokens, seconds.

    agree: whether something is true in one of the processes. If a capture fails in one, all stop there: under FSDP2
    the others would wait for ever in a forward pass of the next probe.
    """
    device = next(lm.parameters()).device
    maps: dict[str, ProbeMap] = {}
    scores: dict[str, np.ndarray] = {}
    chance: dict[str, float | None] = {}
    scalars: dict[str, float | None] = {}
    alike = None
    for probe in probes:
        given = probe.for_model(device)
        ids, documents = given["input_ids"], given.get("document_ids")
        captured = _together(agree, partial(capture, lm, ids, wanted.layers, wanted.heads, document_ids=documents))
        for name, values in metrics.score(captured, probe).items():
            if wanted.metrics == "all" or name in wanted.metrics:
                scores[name], chance[name] = values.float().numpy(), metrics.chance(name, probe)
        if probe.name == "text":
            similarity = metrics.similarity(captured.weights)
            alike = similarity.float().numpy()
            scalars["group_gap"] = metrics.group_gap(similarity, captured)
            scalars["sink_rate"] = metrics.sink_rate(captured.weights)
        if probe.name in MAPS or probe.name not in BUILT_IN:
            most = captured.weights.shape[-1] if probe.name in MAPS else wanted.max_tokens
            maps[probe.name] = shown(captured, probe, most)
    return Snapshot(
        *moment,
        layers=captured.layers,
        heads=captured.heads,
        num_attention_heads=captured.num_attention_heads,
        num_key_value_heads=captured.num_key_value_heads,
        maps=maps,
        scores=scores,
        chance=chance,
        similarity=alike,
        scalars=summary(scores) | scalars | copy_gains(lm, probes),
    )


def copy_gains(lm: LanguageModel, probes: Sequence[Probe]) -> dict[str, float | None]:
    """What telling something twice is worth, on random tokens and on songs, in nats a token."""
    names = {"repeated_2": "copy_gain", "songs": "song_copy_gain"}
    return {names[probe.name]: copy_gain(lm, probe) for probe in probes if probe.name in names}


def _together(agree: Callable[[bool], bool], act: Callable[[], AttentionMaps]) -> AttentionMaps:
    """What act returns; raises in every process if it raises in one."""
    found, problem = None, None
    try:
        found = act()
    except Exception as error:
        problem = error
    if agree(problem is not None):
        raise problem or RuntimeError("it failed in another process")
    assert found is not None
    return found


def shown(captured: AttentionMaps, probe: Probe, max_tokens: int) -> ProbeMap:
    """The map of the probe's first row, of its first tokens."""
    length = captured.weights.shape[-1]
    kept = min(length, max_tokens)
    weights = captured.weights[:, 0, :, :kept, :kept].numpy()
    documents = probe.document_ids[0, :kept].tolist() if probe.document_ids is not None else None
    parts = [f"tokens {kept} to {length - 1} of {length}" if kept < length else "", probe.left_out]
    left_out = ", ".join(filter(None, parts))
    return ProbeMap(weights, probe.labels[0][:kept], documents, left_out)


def summary(scores: dict[str, np.ndarray]) -> dict[str, float | None]:
    """A few figures of the model as a whole: the strongest head of some scores, the mean of others."""
    found: dict[str, float | None] = {}
    for names, how, reduce in ((STRONGEST, "max", np.nanmax), (MEAN, "mean", np.nanmean)):
        for name in names:
            if name in scores:
                values = scores[name]
                key = name if name == "max_logit" else f"{name}_{how}"
                found[key] = None if np.isnan(values).all() else float(reduce(values))
    return found


def silenced(lm: LanguageModel, probes: Sequence[Probe], snapshot: Snapshot) -> dict[str, float | None]:
    """What silencing the strongest induction heads does to the loss on second copies, and silencing random ones."""
    probe = next((probe for probe in probes if probe.name == "repeated_2"), None)
    is_whole = snapshot.scores.get("induction", np.empty(0)).shape == (
        lm.config.num_hidden_layers,
        lm.config.num_attention_heads,
    )
    if probe is None or not is_whole:
        return {}
    scores = {name: torch.from_numpy(values) for name, values in snapshot.scores.items()}
    found = ablate_strongest(lm, probe, scores["induction"], scores.get("previous_token"), ABLATED)
    snapshot.ablations.extend(found.rows)
    return {"ablation_induction_heads": found.strongest.rise, "ablation_random_heads": found.random_rise}
