"""report.md: what was trained, on what, how fast, final numbers, figures."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import torch

from data.config import StoryworldSource
from data.prepare import describe
from eval.attention.render import PICTURES, VIEWER
from eval.attention.snapshots import read_all
from eval.jsonl import read_lines
from eval.language_modeling import compare_with_floor
from train.announcement import opening
from train.machine.device import machine
from train.run import Run
from train.saving.result import write_result

RESULT_HEADING = "## Result"


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
    drawn = [(name, title) for name, title in PICTURES.items() if (directory / "attention" / name).is_file()]
    lines += [f"![{title}](attention/{name})\n" for name, title in drawn]
    lines += ["## Made with", "", f"`python -m {run.script}` from `{run.config.directory}/config.yaml`, "]
    lines += [f"torch {torch.__version__}, Python {platform.python_version()}, {machine(run.device.device)}; "]
    lines += [f"{commit()}{date.today().isoformat()}.", ""]
    (directory / "report.md").write_text("\n".join(lines), encoding="utf-8")
    write_result(directory, {"step": run.state.step})


def commit() -> str:
    """Headlight's own commit, as "commit 1a2b3c4, " ("-dirty" if files of it have changed); "" without git."""

    def asked(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=10, check=True).stdout.strip()

    try:
        if asked("rev-parse", "--show-prefix") != "train/":  # installed, perhaps within somebody else's repository
            return ""
        return f"commit {asked('describe', '--always', '--dirty', '--exclude=*')}, "
    except (OSError, subprocess.SubprocessError):
        return ""


def _validation_line(val: dict[str, Any]) -> str:
    if val["loss"] is None:
        return "validation loss is not a number: neither are the weights (skipped steps are in metrics.jsonl)"
    return (
        f"validation loss {val['loss']:.4f} nats per token   perplexity {val['perplexity']:.2f}   "
        f"bits per byte {val['bits_per_byte']:.4f}"
    )


def _finished_at(step: int) -> str:
    return f"finished at step {step:,}"


def result(directory: Path) -> str:
    """What a finished run has to show: a story, the figures, and where everything lies."""
    text = (directory / "report.md").read_text(encoding="utf-8")
    blocks = text.split(RESULT_HEADING, 1)[1].split("```")
    figures, sample = blocks[1].strip(), blocks[3].strip()
    viewer = directory / "attention" / VIEWER
    paths = [("heads", viewer if viewer.is_file() else None), ("samples", directory / "samples.jsonl")]
    paths += [("report", directory / "report.md"), ("checkpoint", _latest(directory))]
    listed = [f"{label + ':':<12}{path}" for label, path in paths if path is not None]
    return "\n".join(["", sample, "", figures, "", *listed])


def plot_loss(metrics: list[dict[str, Any]], path: Path) -> None:
    """Training and validation loss against tokens seen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=110)  # margins by hand: a layout engine draws everything twice
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.12, 0.12, 0.86, 0.84))
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
