"""The hook `attention`: maps and scores of all heads while they learn.

During training it draws quick pictures and rewrites viewer.html (eval/page/viewer.py). Larger
pictures, curves and time-lapse are drawn from snapshots at the end (eval/pictures/run_pictures.py).
"""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.command import InputError
from eval.attention import snapshots
from eval.attention.capture import layers_with_weights, without_weights
from eval.attention.history import (
    ENOUGH_TO_COPY,
    changes,
    findings,
    formed,
    like_the_last,
    phase_change,
    without_them,
)
from eval.attention.metrics import SCORES
from eval.attention.probes import Probe, build_probes, read_probe_file
from eval.attention.snapshots import ablate, take_snapshot
from eval.attention.subsets import (
    copy_value,
    halves,
    is_quick,
    measure_subsets,
    named_pair,
    summary,
)
from eval.band import band_of, departure, health
from eval.config import EvalConfig
from eval.hooks import EvalEvent, Hook, Outcome, cadences_of, lines_of
from eval.load_model import run_folder
from eval.page.viewer import VIEWER, Looks, write_page
from eval.pictures.heads import quick_mosaic
from eval.pictures.run_pictures import PICTURES, render
from eval.pictures.scores import draw_subsets
from eval.run_files import read_metrics
from model import ModelConfig

# The table of all subsets, in attention/; its picture has the same stem.
SUBSETS = "subsets.md"
HEADING = "### Every subset of the heads"
EXPLANATION = """
Every subset of the heads was switched off. A head's Shapley value is its mean contribution over all
orders of switching heads on; they add up to *all heads* minus *no head*. The named pair is the
strongest induction head and the strongest previous-token head below it, chosen on other rows than
these. p is the chance that a random pair ranks as high, alone or missing.
""".strip()


class Attention(Hook):
    """Score every head on the probes, and write attention/step_XXXXXXXX.npz and its picture."""

    # Both are made at the first evaluation.
    probes: Sequence[Probe] = ()
    page: Looks | None = None
    has_left = False  # the band of recorded runs

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        settings = config.attention
        with_weights = layers_with_weights(model)
        if not with_weights:
            raise InputError(f"eval.hooks: attention: {without_weights(model)}: leave it out")
        if not set(settings.layers or []) <= set(with_weights) and any(model.is_linear):
            raise InputError(f"eval.attention.layers: {without_weights(model)}: leave them out")
        for name, numbers, count in (
            ("layers", settings.layers or [], model.num_hidden_layers),
            ("heads", settings.heads or [], model.num_attention_heads),
        ):
            if not set(numbers) <= set(range(count)) or len(set(numbers)) < len(numbers):
                raise InputError(
                    f"eval.attention.{name} ({numbers}): this model has {name} 0 to {count - 1}: "
                    f"give some of these, each once, or null for all"
                )
        if settings.metrics != "all":
            for name in settings.metrics:
                if name not in SCORES:
                    raise InputError(
                        f"eval.attention.metrics: there is no score {name!r}: "
                        f"use {', '.join(SCORES)}"
                    )
        if settings.probe_file is not None:
            read_probe_file(settings.probe_file)

    def evaluate(self, event: EvalEvent) -> None:
        # Every process captures, since each may hold a share of the model; rank 0 writes.
        start = time.perf_counter()
        is_first = not self.probes
        # built once: a curve needs the same texts at every step
        self.probes = self.probes or _probes_of(event)
        settings = event.eval_config.attention
        moment = (event.step, event.tokens, event.seconds)
        snapshot = take_snapshot(event.lm, self.probes, settings, moment, event.any_process)
        if event.is_last:  # only once, because each group of heads takes a forward pass
            ablate(event.lm, self.probes, snapshot)
            # of a model that does not copy, they would be noise
            if (snapshot.scalars.get("copy_gain") or 0.0) >= ENOUGH_TO_COPY:
                self._switch_off_every_subset(event)
        if event.writes:
            # the whole page is written again: a browser that opens the file needs no server
            page = self.so_far(event.directory)
            page.add(snapshot)
            # all changes are found again, and only the newest are printed
            for step, line in changes(page.snapshots):
                if step == event.step:
                    event.say(line)
            if band_of(event.directory):  # most runs need not read their log again
                lines = read_metrics(event.directory, event.tracker.say)
                left = departure(event.directory, lines)
                if left and not self.has_left:
                    event.say(left)
                self.has_left = bool(left)
            if event.tracker.wall is not None:
                # Each look reports again, because a later one may date the birth better.
                birth = phase_change(like_the_last(page.snapshots))
                if birth or event.is_last:
                    event.tracker.wall.report(birth, snapshot.scalars.get("copy_gain"))
            picture = snapshots.write(snapshot, event.directory / "attention").with_suffix(".png")
            quick_mosaic(snapshot, picture)
            self._write_page(event)
            if is_first:
                viewer = (picture.parent / VIEWER).resolve().as_uri()
                # quoted, so that a path with a space can be pasted into a shell
                folder = shlex.quote(str(event.directory.parent))
                event.tracker.say(f"watch it: {viewer}")
                event.tracker.say(f"beside other runs: python -m serve {folder}")
            # a tracker keeps every picture, so it gets few
            if event.is_last or (settings.every and event.step % settings.every == 0):
                event.tracker.show("attention/maps", picture, event.step)
        seconds = round(time.perf_counter() - start, 4)
        event.log("attention", snapshot.scalars | {"attention_seconds": seconds})

    def _switch_off_every_subset(self, event: EvalEvent) -> None:
        probe = next((probe for probe in self.probes if probe.name == "repeated_2"), None)
        if probe is None or not is_quick(event.lm, probe):
            return
        chosen_on, measured_on = halves(probe)
        value = copy_value(measured_on)
        subsets = measure_subsets(event.lm, value)
        text = summary(subsets, value, named_pair(event.lm, chosen_on))
        if event.writes:
            folder = event.directory / "attention"
            # a run with a single look has no such folder yet
            folder.mkdir(exist_ok=True)
            (folder / SUBSETS).write_text(text, encoding="utf-8")
            title = f"{event.directory.name}: {value.name}, with every subset of the heads"
            draw_subsets(subsets, (folder / SUBSETS).with_suffix(".png"), title)

    def finish(self, event: EvalEvent) -> None:
        all_snapshots, problems = snapshots.read_all(event.directory)
        for problem in problems:
            event.tracker.say(f"warning: {problem}")
        if not all_snapshots:
            return
        # first, as drawing may fail
        self._write_page(event, "finished")
        if event.eval_config.attention.page == "none":
            return
        # a page with the model in it would compute a clamped head's own pattern
        is_clamped = any(getattr(each, "clamp", None) for each in event.lm.attention_modules())
        page = "plain" if is_clamped else event.eval_config.attention.page
        *_, viewer = render(event.directory, all_snapshots, page=page)
        for name in PICTURES:
            file = event.directory / "attention" / name
            if file.suffix == ".png" and file.is_file():
                event.tracker.show(f"attention/{file.stem}", file, event.step)
        event.tracker.show("attention/viewer", viewer, event.step)

    def stop(self, event: EvalEvent, why: str) -> None:
        self._write_page(event, "stopped", why)

    def so_far(self, directory: Path) -> Looks:
        """Return the run's snapshots for its page, also those before a resume."""
        if self.page is None:
            self.page = Looks(directory.resolve().name)
            for snapshot in snapshots.read_all(directory)[0]:
                self.page.add(snapshot)
        return self.page

    def _write_page(self, event: EvalEvent, state: str = "training", stopped: str = "") -> None:
        page = self.so_far(event.directory)
        if not page.snapshots:
            return
        every = cadences_of(event.eval_config)["attention"].every or 0
        status = {
            "state": state,
            "stopped": stopped,
            "command": event.command,
            "step": event.step,
            "total": event.total_steps,
            "seconds": event.seconds,
            "loss": event.loss,
            # about three intervals, in seconds: without news for longer, the page says so
            "patience": max(180, 3 * every * event.seconds / max(1, event.step)),
        }
        write_page(page, event.directory, status)

    def outcome(self, directory: Path, lines: list[dict[str, Any]]) -> Outcome:
        all_snapshots = self.so_far(directory).snapshots
        if not all_snapshots:
            return Outcome()
        last = all_snapshots[-1]
        looks = lines_of(lines, "attention")
        # a reader should see what watching costs
        cost = sum(line["attention_seconds"] for line in looks)
        share = cost / max(1e-9, lines[-1]["time_s"])
        summary = (
            f"{len(looks)} looks at all heads took {cost:.1f} seconds, {share:.1%} of the run."
        )
        scalars = {}
        if looks:
            # the log has other keys, too
            scalars = {name: looks[-1][name] for name in last.scalars if name in looks[-1]}
        seen = " ".join(filter(None, (formed(all_snapshots), without_them(last))))
        figures = {"attention": scalars, "attention_seconds": cost, "seen": seen}
        sections = ["## Attention heads", "", *findings(all_snapshots), summary, ""]
        healthy = health(directory, lines)
        sections += [healthy, ""] if healthy else []
        if (directory / "attention" / SUBSETS).is_file():
            text = (directory / "attention" / SUBSETS).read_text(encoding="utf-8")
            sections += [HEADING, "", EXPLANATION, "", text, ""]
            sections.append("![Shapley values of the heads](attention/subsets.png)\n")
        for name, title in PICTURES.items():
            if (directory / "attention" / name).is_file():
                sections.append(f"![{title}](attention/{name})\n")
        return Outcome(figures, [healthy] if healthy else [], sections)


def _probes_of(event: EvalEvent) -> list[Probe]:
    settings = event.eval_config.attention
    texts = {}
    for number, text in enumerate(settings.texts, start=1):
        # The first one takes the name of the built-in probe, whose scores it then has.
        texts["text" if number == 1 else f"text_{number}"] = text
    if settings.probe_file is not None:
        texts |= read_probe_file(settings.probe_file)
    # Fine-tuning uses the probe's random tokens of its base model. If they were drawn from its own
    # text, which may have a few dozen tokens, learned by heart, copying heads would score too low.
    begin = snapshots.newest(event.directory)
    if begin is None and event.base:
        begin = snapshots.newest(run_folder(event.base))
    return build_probes(
        event.tokenizer,
        event.data_config,
        event.lm.config.max_position_embeddings,
        texts,
        event.data.stream("validation"),
        begin.blocks if begin else (),
    )
