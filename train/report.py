"""report.md: what was trained, on what, how fast, final numbers, figures."""

from __future__ import annotations

import json
import math
import platform
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import torch

from data.config import StoryworldSource
from data.prepare import describe
from eval.attention.snapshots import read_all
from eval.language_modeling import compare_with_floor
from eval.records import read_lines
from train.device import machine
from train.run import Run

RESULT_HEADING = "## Result"
PICTURES = [
    ("timelapse.gif", "every head while it learns"),
    ("curves.png", "the heads' scores over training"),
    ("heads.png", "the scores of every head at the last look"),
    ("induction_head.png", "the induction head, on random repeated tokens"),
]


def opening(run: Run) -> str:
    """What is about to happen, in a few lines."""
    c, m = run.config, run.config.model
    toggle = {m.num_attention_heads: "MHA", 1: "MQA"}.get(m.kv_heads, "GQA")
    joined = run.batches.rows.length // c.data.sequence_length
    rows = run.micro_rows * joined
    together = f", {joined} joined into one" if joined > 1 else ""
    if together and run.device.device.type == "cpu":
        together += "; on a CPU data.rows_joined=1 may be quicker"
    return "\n".join(
        [
            f"{c.name}: {run.lm.num_parameters():,} parameters, {m.num_hidden_layers} layers x {m.hidden_size}, "
            f"{m.num_attention_heads} query heads / {m.kv_heads} key-value heads ({toggle})",
            "; ".join(run.device.notes),
            f"{_extent(run)} of {c.train.tokens_per_step:,} tokens ({c.rows_per_step} rows of "
            f"{c.data.sequence_length}, {rows} at a time{together}){_epochs(run)}"
            + (f"; starts from {c.init_from}" if c.init_from else ""),
            *([f"{run.world.size} processes, {run.world.parallel}"] if run.world.size > 1 else []),
        ]
    )


def _extent(run: Run) -> str:
    steps, minutes = run.config.max_steps, run.config.train.max_minutes
    return (
        f"{steps:,} steps" if steps else f"{minutes:g} minutes by the clock (so never twice exactly the same) in steps"
    )


def _epochs(run: Run) -> str:
    steps = run.config.max_steps
    return f", {steps * run.batches.rows_per_batch / run.batches.rows.per_epoch:.2f} epochs" if steps else ""


def write(run: Run) -> None:
    """Measure what is only measured once, and write report.md and loss.png. Every process measures, one writes."""
    directory, floor = run.config.directory, _floor_lines(run)
    if not run.world.is_first:
        return
    metrics = read_lines(directory / "metrics.jsonl")
    plot_loss(metrics, directory / "loss.png")
    last_val = [m for m in metrics if m["split"] == "val"][-1:]
    train = [m for m in metrics if m["split"] == "train"]
    speeds = sorted(m["tokens_per_s"] for m in train)
    apart = run.unlogged_s + sum(m["eval_s"] + m["save_s"] for m in train if "eval_s" in m)
    result = [
        *map(_validation_line, last_val),
        *floor,
        f"{run.state.seconds / 60:.1f} minutes ({apart / 60:.1f} of them evaluating and saving), "
        f"{run.state.tokens:,} tokens, {speeds[len(speeds) // 2] if speeds else 0:,.0f} tokens/s (median), "
        f"{_finished_at(run.state.step)}",
    ]
    sample = _last_sample(directory / "samples.jsonl")
    lines = [f"# {run.config.name}", "", "```", opening(run), describe(run.data), "```", ""]
    lines += [RESULT_HEADING, "", "```", *result, "```", "", "A sample, as the model wrote it:", "", "```"]
    lines += [sample, "```", "", *_question_lines(metrics), *_attention_lines(directory, metrics)]
    lines += ["## Figures", "", "![loss](loss.png)", ""]
    drawn = [(name, title) for name, title in PICTURES if (directory / "attention" / name).is_file()]
    lines += [f"![{title}](attention/{name})\n" for name, title in drawn]
    lines += ["## Made with", "", f"`python -m {run.script}` from `{run.config.directory}/config.yaml`, "]
    lines += [f"torch {torch.__version__}, Python {platform.python_version()}, {machine(run.device.device)}; "]
    lines += [f"{commit()}{date.today().isoformat()}.", ""]
    (directory / "report.md").write_text("\n".join(lines), encoding="utf-8")


def commit() -> str:
    """Headlight's own commit, as "commit 1a2b3c4, " ("-dirty" if files of it have changed); "" without git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        inside = subprocess.run([*git, "rev-parse", "--show-prefix"], capture_output=True, text=True, timeout=10)
        if inside.stdout.strip() != "train/":  # installed, perhaps within somebody else's repository
            return ""
        describe_it = [*git, "describe", "--always", "--dirty", "--exclude=*"]
        told = subprocess.run(describe_it, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"commit {told.stdout.strip()}, " if told.returncode == 0 else ""


def _validation_line(val: dict[str, Any]) -> str:
    if val["loss"] is None:
        return "validation loss is not a number: neither are the weights (skipped steps are in metrics.jsonl)"
    return (
        f"validation loss {val['loss']:.4f} nats per token   perplexity {val['perplexity']:.2f}   "
        f"bits per byte {val['bits_per_byte']:.4f}"
    )


def _finished_at(step: int) -> str:
    return f"finished at step {step:,}"


def is_finished(directory: Path, step: int) -> bool:
    """Whether report.md tells of this step; an older one is written again."""
    file = directory / "report.md"
    return file.is_file() and _finished_at(step) in file.read_text(encoding="utf-8")


def result(directory: Path) -> str:
    """What a finished run has to show: a story, the figures, and where everything lies."""
    text = (directory / "report.md").read_text(encoding="utf-8")
    blocks = text.split(RESULT_HEADING, 1)[1].split("```")
    figures, sample = blocks[1].strip(), blocks[3].strip()
    viewer = directory / "attention" / "viewer.html"
    paths = [("heads", viewer if viewer.is_file() else None), ("samples", directory / "samples.jsonl")]
    paths += [("report", directory / "report.md"), ("checkpoint", _latest(directory))]
    listed = [f"{label + ':':<12}{path}" for label, path in paths if path is not None]
    return "\n".join(["", sample, "", figures, "", *listed])


def plot_loss(metrics: list[dict[str, Any]], path: Path) -> None:
    """Training and validation loss against tokens seen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for split, style in (("train", {"lw": 0.8, "alpha": 0.6}), ("val", {"ls": "none", "marker": "o"})):
        chosen = [m for m in metrics if m["split"] == split and m["loss"] is not None]
        axes.plot([m["tokens"] / 1e6 for m in chosen], [m["loss"] for m in chosen], label=split, **style)
    axes.set(xlabel="million tokens seen", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path)


def _floor_lines(run: Run) -> list[str]:
    """The entropy floor beside the model, for the built-in world, whose generator we know."""
    source, count = run.config.data.source, run.config.eval.floor_documents
    if not isinstance(source, StoryworldSource) or not count or run.config.data.records != "text":
        return []
    from data.storyworld import tell

    stories = [
        tell(source.seed, index, "validation", source.level) for index in range(min(count, source.validation_documents))
    ]
    longest = run.config.model.max_position_embeddings
    fitting = [s for s in stories if len(run.data.tokenizer.encode(s.text)) + 2 <= longest]
    if not fitting:
        return [f"no held-out story fits into {longest} tokens, so none is compared with its entropy floor"]
    run.lm.set_attn_implementation("sdpa")  # in float32, whatever the training kernel was
    left_out = [f"({len(stories) - len(fitting)} longer stories left out)"] if len(fitting) < len(stories) else []
    return compare_with_floor(run.lm, run.data.tokenizer, fitting).lines() + left_out


def _question_lines(metrics: list[dict[str, Any]]) -> list[str]:
    """Exact answers about held-out stories, before and after, if the run was asked."""
    known, new = ([m for m in metrics if m["split"] == split] for split in ("questions", "questions_new_names"))
    if not known or not new:
        return []
    from eval.questions import table

    before = {"before": known[0]} if len(known) > 1 and known[0]["step"] == 0 else {}
    columns = {**before, "after": known[-1], "after, names of a new form": new[-1]}
    return ["## Questions about held-out stories, answered to the letter", "", table(columns), ""]


def draw(run: Run) -> None:
    """Every picture of the heads, and the viewer, from the run's snapshots; a few of them go to wandb."""
    if not run.world.is_first:
        return
    snapshots, problems = read_all(run.config.directory)
    for problem in problems:
        run.tracker.say(f"warning: {problem}")
    if not snapshots:
        return
    from eval.attention.render import render

    folder, step = run.config.directory / "attention", run.state.step
    try:
        *_, viewer = render(run.config.directory, snapshots)
    except Exception as error:  # the run is finished and saved: a picture that fails must not take that away
        again = f"python -m eval.attention {run.config.directory}"
        problem = f"{type(error).__name__}: {error}"
        run.tracker.say(f"warning: the heads could not be drawn: {problem}; `{again}` tries again")
        return
    for name, _ in PICTURES:
        if (folder / name).is_file() and name.endswith(".png"):
            run.tracker.log_image(f"attention/{name.removesuffix('.png')}", folder / name, step)
    run.tracker.log_html("attention/viewer", viewer, step)
    last = snapshots[-1]
    rows = [
        [layer, head, last.group(head), *(_plain(values[i, j]) for values in last.scores.values())]
        for i, layer in enumerate(last.layers)
        for j, head in enumerate(last.heads)
    ]
    run.tracker.log_table("attention/scores", ["layer", "head", "kv_group", *last.scores], rows, step)


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _attention_lines(directory: Path, metrics: list[dict[str, Any]]) -> list[str]:
    """What the heads came to do, and what looking at them cost."""
    snapshots, _ = read_all(directory)
    if not snapshots:
        return []
    from eval.attention.findings import findings

    looked = [m for m in metrics if m["split"] == "attention"]
    cost = sum(m["attention_seconds"] for m in looked)
    share = cost / max(1e-9, metrics[-1]["time_s"])
    told = f"{len(looked)} looks at all heads took {cost:.1f} seconds, {share:.1%} of the run; viewer.html lies beside."
    return ["## Attention heads", "", *findings(snapshots), told, ""]


def _last_sample(file: Path) -> str:
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return json.loads(lines[-1])["text"].replace("```", "'''") if lines else ""


def _latest(directory: Path) -> Path:
    latest = directory / "checkpoints" / "latest"
    return latest.parent / latest.read_text(encoding="utf-8").strip()
