"""What does every head look at? Maps and scores of all heads while they learn; pictures and the viewer at the end.

While training runs, a look draws one quick picture of all heads, and writes viewer.html anew
(eval/page/viewer.py). Larger pictures, curves and time-lapse are made from the snapshots at the end
(eval/pictures/heads.py).
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.command import InputError
from eval.attention import snapshots
from eval.attention.history import changes, findings, formed, without_them
from eval.attention.metrics import SCORES
from eval.attention.probes import Probe, build_probes, read_probe_file
from eval.attention.snapshots import ablate, take_snapshot
from eval.config import EvalConfig
from eval.hooks import EvalEvent, Hook, Outcome, cadences_of, lines_of
from eval.load_model import run_folder
from eval.page.viewer import VIEWER, Looks, write_page
from eval.pictures.heads import PICTURES, quick_mosaic, render
from model import ModelConfig


class Attention(Hook):
    """Capture the probes, score every head, keep a snapshot: attention/step_XXXXXXXX.npz, and a picture beside it."""

    probes: Sequence[Probe] = ()
    page: Looks | None = None

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        settings = config.attention
        for what, count in (("layers", model.num_hidden_layers), ("heads", model.num_attention_heads)):
            numbers = getattr(settings, what) or [0]
            if max(numbers) >= count or len(set(numbers)) < len(numbers):
                there = f"this model has {what} 0 to {count - 1}: give some of these, each once, or null for all"
                raise InputError(f"eval.attention.{what} ({numbers}): {there}")
        if unknown := [] if settings.metrics == "all" else [name for name in settings.metrics if name not in SCORES]:
            raise InputError(f"eval.attention.metrics: there is no score {unknown[0]!r}: use {', '.join(SCORES)}")
        if settings.probe_file is not None:
            read_probe_file(settings.probe_file)

    def evaluate(self, event: EvalEvent) -> None:
        """Every process captures and scores, since each may hold only a share of the model; the first one writes."""
        before, is_first = time.perf_counter(), not self.probes
        self.probes = self.probes or _probes_of(event)
        settings, moment = event.eval_config.attention, (event.step, event.tokens, event.seconds)
        snapshot = take_snapshot(event.lm, self.probes, settings, moment, event.any_process)
        if event.is_last:
            ablate(event.lm, self.probes, snapshot)
        if event.writes:
            page = self.so_far(event.directory)
            page.add(snapshot)
            for step, line in changes(page.snapshots):
                if step == event.step:
                    event.say(line)
            picture = snapshots.write(snapshot, event.directory / "attention").with_suffix(".png")
            quick_mosaic(snapshot, picture)
            self._write_page(event)
            if is_first:
                event.tracker.say(f"watch it: {(picture.parent / VIEWER).resolve().as_uri()}")
                event.tracker.say(f"beside other runs: python -m serve {shlex.quote(str(event.directory.parent))}")
            if event.is_last or (settings.every and event.step % settings.every == 0):
                event.tracker.show("attention/maps", picture, event.step)
        seconds = round(time.perf_counter() - before, 4)
        event.log("attention", snapshot.scalars | {"attention_seconds": seconds})

    def finish(self, event: EvalEvent) -> None:
        """Every picture of the heads, and the viewer; a few of them go to the trackers."""
        all_snapshots, problems = snapshots.read_all(event.directory)
        for problem in problems:
            event.tracker.say(f"warning: {problem}")
        if not all_snapshots:
            return
        self._write_page(event, "finished")  # whatever becomes of the pictures
        *_, viewer = render(event.directory, all_snapshots)
        for file in (event.directory / "attention" / name for name in PICTURES):
            if file.suffix == ".png" and file.is_file():
                event.tracker.show(f"attention/{file.stem}", file, event.step)
        event.tracker.show("attention/viewer", viewer, event.step)

    def stop(self, event: EvalEvent, why: str) -> None:
        self._write_page(event, "stopped", why)

    def so_far(self, directory: Path) -> Looks:
        """The snapshots of this run on its page; a run that is resumed has its earlier ones there."""
        if self.page is None:
            self.page = Looks(directory.resolve().name)
            for snapshot in snapshots.read_all(directory)[0]:
                self.page.add(snapshot)
        return self.page

    def _write_page(self, event: EvalEvent, state: str = "training", stopped: str = "") -> None:
        """Write the page again, as the run is now."""
        if not self.so_far(event.directory).snapshots:
            return
        every = cadences_of(event.eval_config)["attention"].every or 0
        status: dict[str, Any] = {"state": state, "stopped": stopped, "command": event.command}
        status |= {"step": event.step, "total": event.total_steps, "seconds": event.seconds, "loss": event.loss}
        status["patience"] = max(180, 3 * every * event.seconds / max(1, event.step))  # about three looks
        write_page(self.so_far(event.directory), event.directory, status)

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        all_snapshots = self.so_far(directory).snapshots
        if not all_snapshots:
            return Outcome()
        looks = lines_of(lines, "attention")
        cost = sum(line["attention_seconds"] for line in looks)
        share = cost / max(1e-9, lines[-1]["time_s"])
        summary = f"{len(looks)} looks at all heads took {cost:.1f} seconds, {share:.1%} of the run."
        scalars = {name: line[name] for line in looks[-1:] for name in all_snapshots[-1].scalars if name in line}
        seen = " ".join(filter(None, (formed(all_snapshots), without_them(all_snapshots[-1]))))
        figures = {"attention": scalars, "attention_seconds": cost, "seen": seen}
        drawn = {name: title for name, title in PICTURES.items() if (directory / "attention" / name).is_file()}
        pictures = [f"![{title}](attention/{name})\n" for name, title in drawn.items()]
        sections = ["## Attention heads", "", *findings(all_snapshots), summary, "", *pictures]
        return Outcome(figures, sections=sections)


def _probes_of(event: EvalEvent) -> list[Probe]:
    """The probes of this run, the same at every step."""
    settings = event.eval_config.attention
    texts = {"text" if n == 1 else f"text_{n}": text for n, text in enumerate(settings.texts, start=1)}
    if settings.probe_file is not None:
        texts |= read_probe_file(settings.probe_file)
    length = event.lm.config.max_position_embeddings
    # fine-tuning keeps the random tokens of the model that it starts from: its own text may have a few dozen tokens,
    # which it learns by heart, and a head that copies would look like one that has forgotten it
    began = snapshots.newest(event.directory) or (snapshots.newest(run_folder(event.base)) if event.base else None)
    blocks = began.blocks if began else []
    return build_probes(event.tokenizer, event.data_config, length, texts, event.data.stream("validation"), blocks)
