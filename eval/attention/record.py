"""One look at every head: capture the probes, score the heads, and keep both as a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from eval.attention import metrics
from eval.attention.capture import AttentionMaps, capture
from eval.attention.controls import ablate_strongest, copy_gain
from eval.attention.probes import BUILT_IN_PROBES, Probe
from eval.attention.snapshots import ProbeMap, Snapshot
from eval.config import AttentionConfig
from model import LanguageModel

MAPS = ("repeated_2", "packed")  # kept as maps besides the texts, whole: some fifty tokens
STRONGEST = "previous_token duplicate_token induction song_induction antecedent_writes antecedent_refers".split()
STRONGEST += "sink max_logit cross_document".split()
MEAN = "entropy_normalised distance saturated_rows".split()
ABLATED = 2  # strongest induction heads that are ablated at the end, and as many random ones


def look(
    lm: LanguageModel,
    probes: Sequence[Probe],
    wanted: AttentionConfig,
    moment: tuple[int, int, float],
    agree: Callable[[bool], bool] = bool,
) -> Snapshot:
    """Capture every probe: the maps of some, the scores of every head on all. moment: step, tokens, seconds.

    agree: whether something is true in one of the processes. If a capture fails in one, all stop there: under FSDP2
    the others would wait forever in a forward pass of the next probe.
    """
    device = next(lm.parameters()).device
    maps: dict[str, ProbeMap] = {}
    scores: dict[str, np.ndarray] = {}
    chance: dict[str, float | None] = {}
    scalars: dict[str, float | None] = {}
    alike = None
    blocks: list[list[int]] = []
    for probe in probes:
        given = probe.for_model(device)
        ids, documents = given["input_ids"], given.get("document_ids")
        captured = _together(agree, partial(capture, lm, ids, wanted.layers, wanted.heads, document_ids=documents))
        for name, values in metrics.score(captured, probe).items():
            if wanted.metrics == "all" or name in wanted.metrics:
                scores[name], chance[name] = values.float().numpy(), metrics.chance(name, probe)
        if probe.name == "repeated_2" and probe.period:
            blocks = probe.input_ids[:, probe.first : probe.first + probe.period].tolist()
        if probe.name == "text":
            similarity = metrics.similarity(captured.weights)
            alike = similarity.float().numpy()
            scalars["group_gap"] = metrics.group_gap(similarity, captured)
            scalars["sink_rate"] = metrics.sink_rate(captured.weights)
        if probe.name in MAPS or probe.name not in BUILT_IN_PROBES:
            most = captured.weights.shape[-1] if probe.name in MAPS else wanted.max_tokens
            maps[probe.name] = shown(captured, probe, most)
    return Snapshot(
        *moment,
        layers=captured.layers,
        heads=captured.heads,
        num_attention_heads=captured.num_attention_heads,
        num_key_value_heads=captured.num_key_value_heads,
        attention=captured.attention,
        maps=maps,
        scores=scores,
        chance=chance,
        similarity=alike,
        scalars=summary(scores) | scalars | copy_gains(lm, probes),
        blocks=blocks,
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


def ablated(lm: LanguageModel, probes: Sequence[Probe], snapshot: Snapshot) -> dict[str, float | None]:
    """What ablating the strongest induction heads does to the loss on second copies, and ablating random ones."""
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
