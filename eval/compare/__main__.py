"""Which of these runs is better, and at what? `python -m eval.compare runs/mha runs/gqa runs/mqa [--out FOLDER]`

Writes a folder of its own, runs/compare-mha-gqa-mqa: comparison.md with one table and the differences against the
first variant, figures, a page of heads, and histories.json, the curves as numbers. Runs that differ only in their seed
are one variant: mean ± standard deviation. Comparing the same runs again replaces their folder; a comparison of other
runs is never overwritten.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.command import InputError, exit_on_bad_input
from configs.files import DamagedFile, read_json
from eval.compare import figures as compare_figures
from eval.compare import text as compare_text
from eval.compare.runs import Cost, Variant, group, read_runs
from eval.load_model import add_device_option, open_model

if TYPE_CHECKING:
    from eval.compare.stages import Stage

RUNS = "runs.json"  # in the folder of a comparison: which runs it is of
MOST_NAMES = 6  # in the name of that folder


@dataclass(frozen=True)
class Comparison:
    """What compare() wrote: the file, its warnings, and the table with the verdict as text; short: its main rows."""

    file: Path
    warnings: list[str]
    summary: str
    short: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories; the first one's variant is the baseline")
    parser.add_argument("--out", type=Path, help="folder to write; default: compare-<names> beside the runs")
    parser.add_argument("--all", action="store_true", help="print every row of the table; the file has them anyway")
    parser.add_argument("--skip-decode", action="store_true", help="do not measure decoding")
    parser.add_argument("--skip-stages", action="store_true", help="do not measure runs that start from each other")
    add_device_option(parser)
    given = parser.parse_args()
    if given.out is not None and _is_of_others(given.out, given.runs):
        raise InputError(f"--out: {given.out} holds a comparison of other runs: name another folder, or remove it")
    comparison = compare(
        given.runs, given.out, decode=not given.skip_decode, device=given.device, life=not given.skip_stages
    )
    for warning in comparison.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    table, more = (comparison.summary, "") if given.all else (comparison.short, "all rows (--all), figures and heads: ")
    print(f"{table}\n\n{more}{comparison.file}")
    return 0


def compare(
    paths: Sequence[Path],
    out: Path | None = None,
    *,
    decode: bool = True,
    device: str = "auto",
    notes: Sequence[str] = (),
    life: bool = True,
) -> Comparison:
    """Write comparison.md and its figures for these runs into `out`, a folder for them alone.

    out: default, compare-<names> in the folder that holds all of them; a number follows if a comparison of
    other runs has that name. decode: measure decoding as well, on `device`. notes: warnings of the caller's. life:
    measure what training did, where runs start from each other.
    Raises InputError for a path that is not a run, has no checkpoint or no evaluation, or is named twice.
    """
    from eval.compare import stages  # heavy: --help answers at once
    from eval.compare.histories import FILE, histories

    runs, broken = read_runs(paths)
    variants = group(runs)
    warnings = [*notes, *broken, *compare_text.warnings(variants)]
    costs, speeds = _measure(variants, decode, device)
    out = out or _own_folder(paths, variants)
    out = Path(os.path.relpath(out)) if out.is_relative_to(Path.cwd()) else out
    lived = stages.stages(variants, device) if life else []
    told = f"\n\n{stages.table(lived)}" if lived else ""
    summary = compare_text.summary(variants, costs, speeds) + told
    try:
        out.mkdir(parents=True, exist_ok=True)
        recorded = histories(variants, costs) | {"stages": [stages.numbers(one) for one in lived]}
        figures = draw(variants, costs, recorded, lived, out)
        text = compare_text.page(variants, summary, warnings, figures, speeds is not None)
        (out / "comparison.md").write_text(text, encoding="utf-8")
        (out / FILE).write_text(json.dumps(recorded), encoding="utf-8")
        (out / RUNS).write_text(json.dumps(_named(paths)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out: {out} cannot be written: {error.strerror}") from None
    return Comparison(out / "comparison.md", warnings, summary, compare_text.short(variants, costs, speeds) + told)


def _own_folder(paths: Sequence[Path], variants: Sequence[Variant]) -> Path:
    """compare-mha-gqa-mqa beside the runs; compare-mha-gqa-mqa-2 where that is a comparison of other runs."""
    parents = [path.resolve().parent for path in paths]
    on_one_drive = len({parent.drive for parent in parents}) == 1  # Windows may have several
    beside = Path(os.path.commonpath(parents) if on_one_drive else Path.cwd())
    names = [Path(variant.name).name for variant in variants]
    more = [f"and-{len(names) - MOST_NAMES}-more"] if len(names) > MOST_NAMES else []
    name = "-".join(["compare", *names[:MOST_NAMES], *more])
    tried = (beside / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in tried if not folder.exists() or not _is_of_others(folder, paths))


def _is_of_others(folder: Path, paths: Sequence[Path]) -> bool:
    """Whether a folder holds a comparison, and not one of these very runs."""
    try:
        return read_json(folder / RUNS, list[str]) != _named(paths)
    except DamagedFile:
        return (folder / "comparison.md").is_file()


def _named(paths: Sequence[Path]) -> list[str]:
    return [str(path.resolve()) for path in paths]


def draw(
    variants: Sequence[Variant], costs: dict[str, Cost], recorded: dict[str, Any], lived: Sequence[Stage], out: Path
) -> list[tuple[str, str]]:
    """Every figure that these runs have something for: (title, file in `out`).

    recorded: what histories.json has. lived: the stages of one life, if the runs are that.
    """
    from eval.compare import recall, stages_figure

    same_tokenizer = compare_text.same_tokenizer(variants)
    compare_figures.cost_and_quality(variants, costs, out / "comparison_quality.png")
    compare_figures.loss_curves(variants, same_tokenizer, out / "comparison_loss.png")
    figures = [("quality and cost", "comparison_quality.png"), ("loss curves", "comparison_loss.png")]
    if same_tokenizer and compare_figures.head_curves(variants, out / "comparison_heads.png"):
        figures.append(("when heads learn to copy", "comparison_heads.png"))
    else:
        (out / "comparison_heads.png").unlink(missing_ok=True)  # of an earlier comparison
    for title, what, was_drawn in (
        ("recall over the bytes of the cache", "recall", recall.draw(recorded, out / "comparison_recall.png")),
        ("stages of one life", "stages", stages_figure.draw(lived, out / "comparison_stages.png")),
    ):
        if was_drawn:
            figures.append((title, f"comparison_{what}.png"))
        else:
            (out / f"comparison_{what}.png").unlink(missing_ok=True)
    return figures + beside_each_other(variants, out)


def beside_each_other(variants: Sequence[Variant], out: Path) -> list[tuple[str, str]]:
    """The heads of every variant's first run at the end, as maps and as scores; nothing where none was looked at."""
    from eval.attention.pictures.plots import side_by_side
    from eval.attention.pictures.score_plots import score_maps_side_by_side
    from eval.attention.viewer.page import write_viewer

    named = [(variant.name, variant.runs[0].snapshots[-1]) for variant in variants if variant.runs[0].snapshots]
    shared = set.intersection(*({*snapshot.maps} for _, snapshot in named)) if named else set()
    figures = []
    for probe, title in (("text", "every head on a held-out text"), ("repeated_2", "every head on repeated tokens")):
        file = out / f"comparison_{probe}.png"
        file.unlink(missing_ok=True)
        if probe in shared:
            side_by_side(named, file, probe)
            figures.append((title, file.name))
    file = out / "comparison_scores.png"
    file.unlink(missing_ok=True)
    if any("induction" in snapshot.scores for _, snapshot in named):
        score_maps_side_by_side(named, file)
        figures.append(("scores of every head", file.name))
    page = out / "comparison.html"
    page.unlink(missing_ok=True)
    if shared:
        write_viewer([(name, [snapshot]) for name, snapshot in named], page)
    return figures


def _measure(variants: Sequence[Variant], decode: bool, device: str) -> tuple[dict[str, Cost], dict[str, float] | None]:
    """By variant: what its model costs, and the tokens/s of greedy decoding, None if it is left out."""
    from eval.quantised import decode_speeds

    costs, models = {}, {}
    for variant in variants:
        lm, _ = open_model(variant.runs[0].path, device if decode else "cpu")
        c = lm.config
        costs[variant.name] = Cost(lm.num_parameters(), c.num_hidden_layers * c.cache_numbers * 2)
        if decode:
            models[variant.name] = lm
    return costs, decode_speeds(models) if decode else None


if __name__ == "__main__":
    exit_on_bad_input(main)
