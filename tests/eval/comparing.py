"""For the tests of `eval.compare`: the command, and what it wrote, read again."""

from pathlib import Path

from eval.compare import __main__ as compare
from eval.compare import figures as compare_figures
from tests.train.helpers import metrics, pretrain


def every(folder: Path) -> list[Path]:
    return sorted(folder.glob("m*-seed*"))


def command(*arguments, code: int = 0):
    return pretrain(*arguments, code=code, script=compare.main)


def cells(text: str) -> dict[str, list[str]]:
    """Label -> cells of the first table."""
    rows = [line for line in text.split("\n\n|", 1)[-1].split("\n\n")[0].splitlines() if "|" in line]
    split = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in rows]
    return {label: values for label, *values in split}


def table_of(paths: list[Path], out: Path, *options: str) -> dict[str, list[str]]:
    command(*paths, "--out", out, "--skip-decode", *options)
    return cells((out / "comparison.md").read_text(encoding="utf-8"))


def last_val(run: Path) -> dict:
    return [line for line in metrics(run) if line["split"] == "val"][-1]


def edit(file: Path, change) -> None:
    file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")


def keep_figures(monkeypatch) -> list:
    """The figures that are drawn from here on, to look into."""
    kept, make = [], compare_figures.inches
    monkeypatch.setattr(compare_figures, "inches", lambda *size: kept.append(make(*size)) or kept[-1])
    return kept
