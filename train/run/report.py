"""Reports of a run: the first lines on the terminal, result.json, report.md and loss.png."""

from __future__ import annotations

import json
import platform
from contextlib import suppress
from datetime import date
from pathlib import Path
from statistics import median_high
from typing import Any

import torch

from configs.files import DamagedFile, read_json, read_lines, write_atomically
from configs.text import fenced, markdown
from data.batches import too_long
from data.prepare import describe
from eval.band import band_of, draw_band
from eval.page.viewer import VIEWER
from eval.run_files import METRICS, RESULT
from model.accounting import num_active_parameters
from train.machine.cpu_processes import processes_in_words
from train.machine.device import exact_until, machine
from train.run.run import Run


def opening(run: Run, checkpoint: Path | None = None) -> str:
    """Return a few lines about the run: model, device, length, rows, text."""
    config = run.config
    world = run.world
    model = f"{config.name}: {run.lm.num_parameters():,} parameters"
    if config.model.num_experts:
        model += f" ({num_active_parameters(run.lm):,} active for a token)"
    model += f", {config.model.in_words()}"

    length = f"{config.train.max_minutes} minutes by the clock (so never twice exactly the same)"
    length += " in steps"
    epochs = None
    if config.max_steps:
        length = f"{config.max_steps:,} steps"
        epochs = run.source.epochs(config.max_steps)
    tokens = config.data.sequence_length
    rows = run.source.rows_per_batch * run.rows_joined
    length += f" of {rows * tokens:,} tokens ({rows} row{'s' * (rows != 1)} of {tokens}, "
    length += f"{run.state.micro_rows * run.rows_joined} at a time"
    if run.rows_joined > 1:
        length += f", {run.rows_joined} joined {run.source.joined}"
    length += f"), {epochs:.2f} epochs" if epochs else ")"
    if config.init_from:
        length += f"; starts from {config.init_from}"

    processes = f"{world.size} processes, {world.parallel}" if world.size > 1 else ""
    if world.memory is not None:
        processes = processes_in_words(world.size, torch.get_num_threads())
    lines = [
        model,
        "; ".join(run.device.notes),
        length,
        processes,
        describe(run.data),
        run.source.notes,
        too_long(run.held_out, config.data, "validation"),
    ]
    if checkpoint:
        directory = str(checkpoint).removesuffix(".tmp")  # the name that `tidy` gives it
        lines.append(f"resumed from {directory}, step {run.state.step:,}")
    if config.forked_from is not None:
        lines.append(f"forked from {config.forked_from.run} at step {config.forked_from.step:,}")
    lines += [change.in_words() for change in config.changes]
    lines += map(exact_until, run.state.breaks)
    return "\n".join(filter(None, lines))


def write(run: Run) -> None:
    """Write loss.png, report.md and result.json. Rank 0 calls it."""
    directory = run.config.directory
    state = run.state

    def warn(problem: str) -> None:
        run.tracker.say(f"warning: {problem}")

    metrics: list[dict[str, Any]] = []
    with suppress(DamagedFile):  # the run has already warned that it cannot write there
        metrics = read_lines(directory / METRICS, warn)
    outcomes = run.hooks.outcomes(run, metrics)
    train = [line for line in metrics if line["split"] == "train"]
    speeds = [line["tokens_per_s"] for line in train if line.get("tokens_per_s") is not None]
    speed = median_high(speeds or [0.0])
    apart = sum(run.meter.elsewhere.values())  # since the last line of metrics.jsonl
    apart += sum((line.get("eval_s") or 0) + (line.get("save_s") or 0) for line in train)
    lines = [line for outcome in outcomes for line in outcome.lines]
    lines.append(
        f"{state.seconds / 60:.1f} minutes ({apart / 60:.1f} of them evaluating and saving), "
        f"{state.tokens:,} tokens, {speed:,.0f} tokens/s (median), "
        f"finished at step {state.step:,}"
    )
    figures: dict[str, Any] = {
        "step": state.step,
        "tokens": state.tokens,
        "seconds": state.seconds,
        "parameters": run.lm.num_parameters(),
        "tokens_per_s": speed,
        **{name: value for outcome in outcomes for name, value in outcome.figures.items()},
        "summary": lines,
        **({"forked_from": run.config.forked_from.model_dump()} if run.config.forked_from else {}),
    }
    made_with = (
        f"python -m {run.script} {directory}/config.yaml\n"
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{machine(run.device.device)}; {date.today()}"
    )
    sample = []
    if figures.get("sample"):
        sample = ["A sample, as the model wrote it:", "", fenced(figures["sample"]), ""]
    page = [
        *(f"# {markdown(run.config.name)}", "", fenced(opening(run)), ""),
        *("## Result", "", fenced("\n".join(lines)), "", *sample),
        *(line for outcome in outcomes for line in outcome.sections),
        *("## Figures", "", "![loss](loss.png)", ""),
        *("## Made with", "", fenced(made_with), ""),
    ]
    plot_loss(metrics, directory / "loss.png")
    (directory / "report.md").write_text("\n".join(page), encoding="utf-8")
    # Last: with this file the run counts as finished.
    write_atomically(directory / RESULT, json.dumps(figures, indent=2) + "\n")


def summary(directory: Path) -> str:
    """Return what a finished run prints: a sample, figures, files, and news of its heads."""
    result = read_json(directory / RESULT)
    viewer = directory / "attention" / VIEWER
    checkpoint = directory / "checkpoints" / f"step_{result['step']:08d}"
    places = {
        "samples": directory / "samples.jsonl",
        "report": directory / "report.md",
        "checkpoint": checkpoint,
    }
    listed = [f"{label + ':':<12}{path}" for label, path in places.items() if path.exists()]
    about_heads = [result["seen"]] if result.get("seen") else []
    if viewer.exists():
        about_heads.append(f"To watch every head while it learns, open {viewer} in a browser.")
    lines: list[str] = []
    # A part that this run does not have leaves no empty line.
    for part in ([result.get("sample", "")], result.get("summary", []), listed, about_heads):
        if part:
            lines += ["", *part]
    return "\n".join(lines)


def plot_loss(metrics: list[dict[str, Any]], path: Path) -> None:
    # here, because importing it takes long, and a run that is stopped needs no picture
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=110)
    axes = figure.add_axes((0.12, 0.12, 0.86, 0.84))  # a layout engine would draw all twice
    styles: dict[str, dict[str, Any]] = {
        "train": {"lw": 0.8, "alpha": 0.6},
        "val": {"ls": "none", "marker": "o"},
    }
    for split, style in styles.items():
        points = [m for m in metrics if m["split"] == split and m.get("loss") is not None]
        tokens = [point["tokens"] / 1e6 for point in points]
        axes.plot(tokens, [point["loss"] for point in points], label=split, **style)
    draw_band(axes, band_of(path.parent), "loss", "train, mean of five,", unit=1e6)
    axes.set(xlabel="million tokens seen", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path)
