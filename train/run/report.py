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
from eval.page.viewer import VIEWER
from eval.run_files import METRICS, RESULT
from model.accounting import num_active_parameters
from train.machine.cpu_processes import processes_in_words
from train.machine.device import exact_until, machine
from train.run.run import Run


def opening(run: Run, checkpoint: Path | None = None) -> str:
    """Return a few lines about the run: model, device, length, rows, text."""
    c = run.config
    world = run.world
    active = (
        f" ({num_active_parameters(run.lm):,} active for a token)" if c.model.num_experts else ""
    )
    length = (
        f"{c.train.max_minutes} minutes by the clock (so never twice exactly the same) in steps"
    )
    epochs = None
    if c.max_steps:
        length = f"{c.max_steps:,} steps"
        epochs = run.source.epochs(c.max_steps)
    rows = run.source.rows_per_batch * run.rows_joined
    joined = f", {run.rows_joined} joined {run.source.joined}" if run.rows_joined > 1 else ""
    processes = f"{world.size} processes, {world.parallel}" if world.size > 1 else ""
    if world.memory is not None:
        processes = processes_in_words(world.size, torch.get_num_threads())
    lines = [
        f"{c.name}: {run.lm.num_parameters():,} parameters{active}, {c.model.in_words()}",
        "; ".join(run.device.notes),
        f"{length} of {rows * c.data.sequence_length:,} tokens ({rows} row{'s' * (rows != 1)} of "
        f"{c.data.sequence_length}, {run.state.micro_rows * run.rows_joined} at a time{joined})"
        + (f", {epochs:.2f} epochs" if epochs else "")
        + (f"; starts from {c.init_from}" if c.init_from else ""),
        processes,
        describe(run.data),
        run.source.notes,
        too_long(run.held_out, c.data, "validation"),
        f"resumed from {str(checkpoint).removesuffix('.tmp')}, step {run.state.step:,}"
        if checkpoint
        else "",
        *map(exact_until, run.state.breaks),
    ]
    return "\n".join(filter(None, lines))


def write(run: Run) -> None:
    """Write loss.png, report.md and, last, result.json: with it the run counts as finished.

    For one process.
    """
    directory = run.config.directory
    state = run.state
    metrics: list[dict[str, Any]] = []
    with suppress(DamagedFile):  # a folder, a pipe: the run has said that it cannot write there
        metrics = read_lines(
            directory / METRICS, lambda problem: run.tracker.say(f"warning: {problem}")
        )
    outcomes = run.hooks.outcomes(run, metrics)
    train = [line for line in metrics if line["split"] == "train"]
    speed = median_high(
        [line["tokens_per_s"] for line in train if line.get("tokens_per_s") is not None] or [0.0]
    )
    apart = sum(run.meter.elsewhere.values()) + sum(
        (m.get("eval_s") or 0) + (m.get("save_s") or 0) for m in train
    )
    lines = [line for outcome in outcomes for line in outcome.lines]
    lines.append(
        f"{state.seconds / 60:.1f} minutes ({apart / 60:.1f} of them evaluating and saving), "
        f"{state.tokens:,} tokens, "
        f"{speed:,.0f} tokens/s (median), finished at step {state.step:,}"
    )
    figures: dict[str, Any] = {
        "step": state.step,
        "tokens": state.tokens,
        "seconds": state.seconds,
        "parameters": run.lm.num_parameters(),
        "tokens_per_s": speed,
        **{name: value for outcome in outcomes for name, value in outcome.figures.items()},
        "summary": lines,
    }
    made_with = (
        f"python -m {run.script} {directory}/config.yaml\n"
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{machine(run.device.device)}; {date.today()}"
    )
    sample = (
        ["A sample, as the model wrote it:", "", fenced(figures["sample"]), ""]
        if figures.get("sample")
        else []
    )
    page = [
        *(f"# {markdown(run.config.name)}", "", fenced(opening(run)), ""),
        *("## Result", "", fenced("\n".join(lines)), "", *sample),
        *(line for outcome in outcomes for line in outcome.sections),
        *("## Figures", "", "![loss](loss.png)", ""),
        *("## Made with", "", fenced(made_with), ""),
    ]
    plot_loss(metrics, directory / "loss.png")
    (directory / "report.md").write_text("\n".join(page), encoding="utf-8")
    write_atomically(
        directory / RESULT, json.dumps(figures, indent=2) + "\n"
    )  # with it, the run is finished


def summary(directory: Path) -> str:
    """Return the summary of a finished run: a sample, figures, files, and what the heads did."""
    result = read_json(directory / RESULT)
    viewer = directory / "attention" / VIEWER
    checkpoint = directory / "checkpoints" / f"step_{result['step']:08d}"
    places = {
        "samples": directory / "samples.jsonl",
        "report": directory / "report.md",
        "checkpoint": checkpoint,
    }
    listed = [f"{label + ':':<12}{path}" for label, path in places.items() if path.exists()]
    to_watch = (
        [f"To watch every head while it learns, open {viewer} in a browser."]
        if viewer.exists()
        else []
    )
    seen = [result["seen"]] if result.get("seen") else []
    parts = [[result.get("sample", "")], result.get("summary", []), listed, seen + to_watch]
    return "\n".join(line for part in parts if part for line in ("", *part))


def plot_loss(metrics: list[dict[str, Any]], path: Path) -> None:
    """Plot training and validation loss against tokens."""
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(7, 4), dpi=110
    )  # margins by hand: a layout engine draws everything twice
    axes = figure.add_axes((0.12, 0.12, 0.86, 0.84))
    for split, style in (
        ("train", {"lw": 0.8, "alpha": 0.6}),
        ("val", {"ls": "none", "marker": "o"}),
    ):
        chosen = [m for m in metrics if m["split"] == split and m.get("loss") is not None]
        axes.plot(
            [m["tokens"] / 1e6 for m in chosen], [m["loss"] for m in chosen], label=split, **style
        )
    axes.set(xlabel="million tokens seen", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path)
