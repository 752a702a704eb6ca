"""What does every head look at? Maps and scores of all heads while they learn; pictures and the viewer at the end.

While training runs, a look draws one plain picture of all heads, and writes viewer.html anew
(eval/attention/viewer.py). Labelled pictures, curves and time-lapse are made from the snapshots at the end
(eval/attention/render.py).
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.command import InputError
from eval.attention import metrics as scores
from eval.attention import snapshots
from eval.attention.pictures.plots import quick_mosaic
from eval.attention.probes import Probe, ProbeText, build_probes, read_probe_file
from eval.attention.record import ablated, look
from eval.attention.viewer import Live, Moment
from eval.config import EvalConfig
from eval.hooks.event import EvalEvent, Hook, Outcome
from model import ModelConfig


class Attention(Hook):
    """Capture the probes, score every head, keep a snapshot: attention/step_XXXXXXXX.npz, and a picture beside it."""

    def __init__(self) -> None:
        self.probes: list[Probe] = []
        self.live: Live | None = None

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        wanted = config.attention
        for what, count in (("layers", model.num_hidden_layers), ("heads", model.num_attention_heads)):
            numbers = getattr(wanted, what)
            if numbers is not None and (not numbers or not set(numbers) <= set(range(count)) or _repeats(numbers)):
                raise InputError(
                    f"eval.attention.{what} ({numbers}): this model has {what} 0 to {count - 1}: give some of these, "
                    "each once, or null for all"
                )
        unknown = [name for name in ([] if wanted.metrics == "all" else wanted.metrics) if name not in scores.SCORES]
        if unknown:
            known = ", ".join(scores.SCORES)
            raise InputError(f"eval.attention.metrics: there is no score {unknown[0]!r}: use {known}")
        if wanted.probe_file is not None:
            read_probe_file(wanted.probe_file)

    def look(self, event: EvalEvent) -> None:
        """Every process captures and scores, since each may hold only a share of the model; the first one writes."""
        before = time.perf_counter()
        self.probes = self.probes or _probes_of(event)
        wanted, agree = event.config.attention, event.any_process
        snapshot = look(event.lm, self.probes, wanted, (event.step, event.tokens, event.seconds), agree)
        if event.is_last:
            snapshot.scalars.update(ablated(event.lm, self.probes, snapshot))
        if event.writes:
            self.live = self.live or _shown_so_far(event.directory)
            for line in self.live.notice(snapshot):
                event.say(line)
            picture = snapshots.write(snapshot, event.directory / "attention").with_suffix(".png")
            is_whole = len(snapshot.heads) == snapshot.num_attention_heads
            first = next(iter(snapshot.maps.values()))
            quick_mosaic(first.weights, picture, snapshot.num_key_value_heads if is_whole else None)
            self._show(self.live, event)
            if event.is_last or (wanted.every and event.step % wanted.every == 0):
                event.log_image("attention/heads", picture)
        seconds = round(time.perf_counter() - before, 4)
        event.log("attention", snapshot.scalars | {"attention_seconds": seconds})

    def finish(self, event: EvalEvent) -> None:
        """Every picture of the heads, and the viewer; a few of them go to wandb."""
        from eval.attention.render import PICTURES, render

        found, problems = snapshots.read_all(event.directory)
        for problem in problems:
            event.tracker.say(f"warning: {problem}")
        if not found:
            return
        try:
            *_, viewer = render(event.directory, found)
        except Exception as error:
            again = f"python -m eval.attention {event.directory}"
            problem = f"{type(error).__name__}: {error}"
            event.tracker.say(f"warning: the heads could not be drawn: {problem}; `{again}` tries again")
            self._show(self.live or _shown_so_far(event.directory), event, is_over=True)
            return
        for name in PICTURES:
            file = event.directory / "attention" / name
            if file.suffix == ".png" and file.is_file():
                event.log_image(f"attention/{file.stem}", file)
        event.tracker.show("attention/viewer", viewer, event.step)
        last = found[-1]
        rows = [
            [layer, head, last.group(head), *(_plain(values[i, j]) for values in last.scores.values())]
            for i, layer in enumerate(last.layers)
            for j, head in enumerate(last.heads)
        ]
        columns = ["layer", "head", "kv_group", *last.scores]
        event.tracker.show("attention/scores", (columns, rows), event.step)

    def stop(self, event: EvalEvent, why: str) -> None:
        live = self.live or _shown_so_far(event.directory)
        if live.run.snapshots:
            self._show(live, event, stopped=why)

    def _show(self, live: Live, event: EvalEvent, is_over: bool = False, stopped: str = "") -> None:
        now = Moment(event.step, event.total_steps, event.seconds, event.loss, is_over, stopped, event.command)
        every = event.config.cadences()["attention"].every
        until_next = every * event.seconds / max(1, event.step)  # seconds, about
        now = replace(now, patience=max(now.patience, 3 * until_next))
        live.show(event.directory, now, event.tracker.say)

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        from eval.attention.findings import findings, in_one_sentence, without_them
        from eval.attention.render import PICTURES

        found, _ = snapshots.read_all(directory)
        if not found:
            return Outcome()
        looked = [m for m in metrics if m["split"] == "attention"]
        cost = sum(m["attention_seconds"] for m in looked)
        share = cost / max(1e-9, metrics[-1]["time_s"])
        looks = f"{len(looked)} looks at all heads took {cost:.1f} seconds, {share:.1%} of the run."
        looks += " Open attention/viewer.html to look around."
        drawn = [(f"attention/{name}", title) for name, title in PICTURES.items()]
        scalars = {name: last[name] for last in looked[-1:] for name in found[-1].scalars if name in last}
        figures = {"attention": scalars, "attention_seconds": cost}
        sections = ["## Attention heads", "", *findings(found), looks, ""]
        seen = " ".join(filter(None, (in_one_sentence(found), without_them(found[-1]))))
        return Outcome(figures, sections=sections, pictures=drawn, seen=seen)


def _probes_of(event: EvalEvent) -> list[Probe]:
    """The probes of this run, the same at every step."""
    wanted = event.config.attention
    texts: list[str | ProbeText] = list(wanted.texts)
    if wanted.probe_file is not None:
        texts += read_probe_file(wanted.probe_file)
    length = event.lm.config.max_position_embeddings
    # fine-tuning keeps the random tokens of the model that it starts from: its own text may have a few dozen tokens,
    # which it learns by heart, and a head that copies would look like one that has forgotten it
    began = snapshots.newest(event.directory) or (snapshots.newest(event.base) if event.base else None)
    blocks = began.blocks if began else []
    return build_probes(event.tokenizer, event.data_config, length, texts, event.data.stream("validation"), blocks)


def _shown_so_far(directory: Path) -> Live:
    """What a run that is resumed had shown: its snapshots so far."""
    live = Live()
    for snapshot in snapshots.read_all(directory)[0]:
        live.notice(snapshot)
    return live


def _repeats(numbers: list[int]) -> bool:
    return len(set(numbers)) < len(numbers)


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
