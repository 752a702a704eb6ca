"""Do all experts get tokens, and does the router choose well? Measured on held-out text while the model learns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.command import InputError
from configs.files import append_line
from data.batches import Batch, validation_batches
from eval.attention import drawing
from eval.config import EvalConfig
from eval.experts.log import STARVED, ExpertUse, characteristic_ids, findings, in_a_line, read, use_of
from eval.experts.routing import all_alike, at_random, loss_with, routing
from eval.hooks.event import EvalEvent, Hook, Outcome
from eval.run_files import EXPERTS
from model import ModelConfig

TOKENS = 8192  # held-out tokens of a look
PICTURE = "experts.png"
ACROSS, WIDTH, HEIGHT = 4, 330, 250  # panels in a row; pixels of one


class Experts(Hook):
    """experts.jsonl: share of the tokens and mean weight of every expert, and which tokens go where, at every look. At
    the end also what random routing costs, and a picture."""

    def check(self, config: EvalConfig, model: ModelConfig) -> None:
        if model.num_experts is None:
            raise InputError(
                "eval.hooks: experts looks at a mixture of experts, and model.num_experts is null: set it, or take "
                "experts off the list"
            )

    def look(self, event: EvalEvent) -> None:
        """Every process looks at the same text, since each may hold only a share of the model; the first one writes."""

        def batches() -> Iterator[Batch]:
            packed = (event.data_config.isolate_documents, event.data_config.restart_positions)
            return validation_batches(event.held_out, event.tokenizer, event.rows_per_batch, *packed, TOKENS)

        measured = routing(event.lm, batches(), event.tokenizer.pad_id, event.autocast)
        use = use_of(measured, event.step, event.tokens)
        labels = event.tokenizer.token_labels
        use.words = [
            [labels(x for x in ids if x >= 0) for ids in layer] for layer in characteristic_ids(measured).tolist()
        ]
        if event.is_last:
            for name, choice in {"learned": None, "random": at_random(), "all alike": all_alike}.items():
                use.loss[name] = loss_with(event.lm, batches(), choice, event.autocast)
        if event.writes:
            append_line(event.directory / EXPERTS, use.model_dump(exclude_defaults=True))
        event.say(in_a_line(use))
        event.log("experts", {"weakest": use.of_fair.min(), "strongest": use.of_fair.max(), **use.loss})

    def finish(self, event: EvalEvent) -> None:
        if lines := read(event.directory, event.tracker.say):
            path = shares_over_steps(lines, event.directory / PICTURE, event.directory.name)
            event.log_image("experts/shares", path)

    def outcome(self, directory: Path, metrics: list[dict[str, Any]]) -> Outcome:
        lines = read(directory, lambda problem: None)
        if not lines:
            return Outcome()
        last = lines[-1]
        figures = {"weakest": float(last.of_fair.min()), "strongest": float(last.of_fair.max()), **last.loss}
        pictures = [(PICTURE, "how many tokens every expert gets")]
        return Outcome({"experts": figures}, [in_a_line(last)], sections=findings(lines), pictures=pictures)


def shares_over_steps(lines: Sequence[ExpertUse], path: Path, title: str = "") -> Path:
    """Draw the shares of all experts over training, from at least one line, as PNG or SVG."""
    last = lines[-1]
    across = min(ACROSS, len(last.layers))
    down = -(-len(last.layers) // across)
    heading = " · ".join(part for part in (title, "share of the tokens of every expert, 1 = fair share") if part)
    figure = drawing.new_figure(max(across * WIDTH, 560), down * HEIGHT + 60, heading)
    panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    steps, of_fair = [line.step for line in lines], np.stack([line.of_fair for line in lines])  # (lines, L, E)
    for i, axes in enumerate(panels.flat):
        if i >= len(last.layers):
            axes.remove()
            continue
        axes.axhspan(0, STARVED, color=drawing.NOTHING, lw=0)
        axes.axhline(1, color="#888888", lw=0.8, ls="--")
        for expert in range(last.experts):
            style = {"lw": 1.4, "marker": "o", "ms": 2.5, "clip_on": False}
            drawing.draw_curve(axes, steps, of_fair[:, i, expert], expert, f"E{expert}", **style)
        axes.set(title=f"layer {last.layers[i]}", ylim=(0, max(2.0, 1.05 * float(of_fair.max()))))
        axes.set_xscale("symlog", linthresh=10)
        axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
        axes.grid(alpha=0.25)
        if i // across == down - 1:
            axes.set_xlabel("step")
    if last.experts <= 16:
        drawing.legend_below(figure, panels[0, 0])
    return drawing.save_figure(figure, path)
