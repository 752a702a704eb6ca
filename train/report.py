"""What does a run report? The first lines on the terminal, result.json, report.md and loss.png."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import torch

from configs.command import InputError
from configs.files import DamagedFile, read_name
from configs.text import code, fenced, markdown
from data.batches import too_long
from data.packing import ConversationRows
from data.prepare import describe
from eval.attention.render import VIEWER
from eval.hooks import Outcome
from eval.run_files import RESULT, read_metrics, read_result
from train.machine.cpu_processes import processes_in_words
from train.machine.device import exact_until
from train.machine.distributed import World
from train.machine.hardware import machine
from train.run import Run
from train.saving.atomic_save import replace_text


def opening(run: Run, checkpoint: Path | None = None) -> str:
    """What is about to happen, in a few lines: model, device, length, rows, text."""
    c, world = run.config, run.world
    together = f", {run.rows_joined} joined {run.source.joined}" if run.rows_joined > 1 else ""
    if together and run.device.device.type == "cpu" and c.data.records == "conversations":
        together += "; on a CPU data.rows_joined=1 may be quicker"
    minutes = f"{c.train.max_minutes} minutes by the clock (so never twice exactly the same) in steps"
    rows = run.source.rows_per_batch * run.rows_joined
    epochs = run.source.epochs(c.max_steps) if c.max_steps else None
    lines = [
        f"{c.name}: {run.lm.num_parameters():,} parameters{_active(run)}, {c.model.in_words()}",
        "; ".join(run.device.notes),
        f"{f'{c.max_steps:,} steps' if c.max_steps else minutes} of {rows * c.data.sequence_length:,} tokens "
        f"({rows} row{'s' * (rows != 1)} of {c.data.sequence_length}, "
        f"{run.state.micro_rows * run.rows_joined} at a time{together})"
        + (f", {epochs:.2f} epochs" if epochs else "")
        + (f"; starts from {c.init_from}" * bool(c.init_from)),
        _in_words(world),
        describe(run.data),
        run.source.notes,
        too_long(run.held_out, c.data, "validation") if isinstance(run.held_out, ConversationRows) else "",
        f"resumed from {str(checkpoint).removesuffix('.tmp')}, step {run.state.step:,}" if checkpoint else "",
        *map(exact_until, run.state.breaks),
    ]
    return "\n".join(filter(None, lines))


def _active(run: Run) -> str:
    return f" ({run.lm.num_active_parameters():,} active for a token)" if run.config.model.num_experts else ""


def _in_words(world: World) -> str:
    if world.size == 1:
        return ""
    if not world.on_cores:
        return f"{world.size} processes, {world.parallel}"
    return processes_in_words(world.size, torch.get_num_threads())


def write(run: Run) -> None:
    """Write loss.png, report.md and, last, result.json: with it the run counts as finished. For all processes, of
    which the first one writes. Raises InputError if there is no room."""
    if not run.world.is_first:
        return
    directory = run.config.directory
    metrics = read_metrics(directory, lambda problem: run.tracker.say(f"warning: {problem}"))
    outcomes = list(run.hooks.outcomes(directory, metrics, run.tracker.say))
    figures: dict[str, Any] = {"step": run.state.step, "tokens": run.state.tokens, "seconds": run.state.seconds}
    figures["parameters"] = run.lm.num_parameters()
    train = [m for m in metrics if m["split"] == "train"]
    speeds = sorted(m["tokens_per_s"] for m in train if m.get("tokens_per_s") is not None)
    figures["tokens_per_s"] = speeds[len(speeds) // 2] if speeds else 0.0
    for outcome in outcomes:
        figures |= outcome.figures
    apart = sum(run.meter.elsewhere.values()) + sum((m.get("eval_s") or 0) + (m.get("save_s") or 0) for m in train)
    figures["summary"] = [line for outcome in outcomes for line in outcome.lines]
    figures["summary"].append(
        f"{run.state.seconds / 60:.1f} minutes ({apart / 60:.1f} of them evaluating and saving), "
        f"{run.state.tokens:,} tokens, {figures['tokens_per_s']:,.0f} tokens/s (median), "
        f"finished at step {run.state.step:,}"
    )
    figures["sample"] = "".join(outcome.sample for outcome in outcomes)
    figures["seen"] = " ".join(outcome.seen for outcome in outcomes if outcome.seen)
    try:
        plot_loss(metrics, directory / "loss.png")
        (directory / "report.md").write_text(_page(run, figures, outcomes), encoding="utf-8")
        replace_text(directory / RESULT, json.dumps(figures, indent=2) + "\n")  # with it, the run is finished
    except OSError as error:
        raise InputError(
            f"{directory}/report.md cannot be written ({error.strerror}), but the run is finished and saved: make "
            "room, then the same command writes it"
        ) from None


def _page(run: Run, figures: dict[str, Any], outcomes: list[Outcome]) -> str:
    directory = run.config.directory
    lines = [f"# {markdown(run.config.name)}", "", fenced(opening(run)), ""]
    lines += ["## Result", "", fenced("\n".join(figures["summary"])), ""]
    if figures["sample"]:
        lines += ["A sample, as the model wrote it:", "", fenced(figures["sample"]), ""]
    lines += [line for outcome in outcomes for line in outcome.sections]
    lines += ["## Figures", "", "![loss](loss.png)", ""]
    pictures = [picture for outcome in outcomes for picture in outcome.pictures]
    lines += [f"![{title}]({path})\n" for path, title in pictures if (directory / path).is_file()]
    lines += ["## Made with", "", f"`python -m {run.script}` from {code(f'{directory}/config.yaml')}, "]
    lines += [
        f"torch {torch.__version__}, Python {platform.python_version()}, {markdown(machine(run.device.device))}; "
    ]
    lines += [f"{commit()}{date.today().isoformat()}.", ""]
    return "\n".join(lines)


def commit() -> str:
    """Headlight's own commit, as "commit 1a2b3c4, " ("-dirty" if files of it have changed); "" without git."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():  # installed, perhaps within somebody else's repository
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"commit {found.stdout.strip()}, "


def summary(directory: Path) -> str:
    """The report of a finished run: a sample, the figures, where every file is, and what was seen."""
    result = read_result(directory, lambda problem: None) or {}
    viewer = directory / "attention" / VIEWER
    places = {
        "samples": directory / "samples.jsonl",
        "report": directory / "report.md",
        "checkpoint": _newest(directory / "checkpoints"),
    }
    listed = [f"{label + ':':<12}{path}" for label, path in places.items() if path.exists()]
    to_watch = f"To watch every head while it learns, open {viewer} in a browser." if viewer.exists() else ""
    seen = [line for line in (result.get("seen", ""), to_watch) if line]
    parts = [[result.get("sample", "")], result.get("summary", []), listed, seen]
    return "\n".join(line for part in parts if part for line in ("", *part))


def _newest(checkpoints: Path) -> Path:
    try:
        return checkpoints / read_name(checkpoints / "latest")
    except DamagedFile:
        return checkpoints


def plot_loss(metrics: list[dict[str, Any]], path: Path) -> None:
    """Training and validation loss against tokens seen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=110)  # margins by hand: a layout engine draws everything twice
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.12, 0.12, 0.86, 0.84))
    for split, style in (("train", {"lw": 0.8, "alpha": 0.6}), ("val", {"ls": "none", "marker": "o"})):
        chosen = [m for m in metrics if m["split"] == split and m.get("loss") is not None]
        axes.plot([m["tokens"] / 1e6 for m in chosen], [m["loss"] for m in chosen], label=split, **style)
    axes.set(xlabel="million tokens seen", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path)
