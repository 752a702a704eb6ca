"""What is known of the runs in a folder, while they train and afterwards? Read from their files, and from nothing else.

A run that trains only writes its files; it never waits for a reader. A name is looked up in the list of runs and never
joined to a path, so no name leads out of the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from configs.command import InputError
from configs.files import parse_json, read_text
from configs.loader import flatten, parse_yaml
from eval.run_files import METRICS, RESULT, Metric
from train.run.run_directory import LOCK

MARKS = ("config.yaml", METRICS, "checkpoints/latest")  # a folder with one of them is a run
TAIL = 200_000  # bytes at the end of a log, in which its newest figures are
WRITTEN = (METRICS, "config.yaml", "attention/index.jsonl", "checkpoints/latest")  # what a summary is made of


def runs_in(folder: Path, is_run: Callable[[Path], bool]) -> dict[str, Path]:
    """Name -> the runs in a folder, in the order of their names; or the folder itself, if it is one."""

    def has_address(path: Path) -> bool:
        with suppress(OSError, UnicodeEncodeError):  # a name that is not text has none
            path.name.encode()
            return is_run(path)
        return False

    if has_address(folder):
        return {folder.resolve().name: folder}
    with suppress(OSError):
        return {path.name: path for path in sorted(folder.iterdir()) if has_address(path)}
    return {}


def watched_runs(folder: Path) -> dict[str, Path]:
    """Name -> run directory: also of runs that have no checkpoint yet."""
    return runs_in(folder, lambda path: any((path / mark).is_file() for mark in MARKS))


def summaries(folder: Path) -> dict[str, dict[str, Any]]:
    """Of every run what the page lists; a run whose files are as before is not read again."""
    return {
        name: _summary(name, run, *(_stamp(run / file) for file in WRITTEN)) | {"state": _state(run)}
        for name, run in watched_runs(folder).items()
    }


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """What changes when something is written; None where there is no such file."""
    with suppress(OSError):
        stat = file.stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns
    return None


@lru_cache(maxsize=4096)
def _summary(name: str, run: Path, *stamps: tuple[int, int, int] | None) -> dict[str, Any]:
    log, config, looks = stamps[:3]
    newest: dict[str, dict[str, Any]] = {}
    if log is not None:
        with (run / METRICS).open("rb") as stream:
            stream.seek(max(0, log[1] - TAIL))
            lines = stream.read().splitlines()
        for raw in lines:
            with suppress(ValueError):  # the first and the last one may be a part of a line
                line = parse_json(raw.decode("utf-8"), METRICS, Metric).model_dump()
                newest[line["split"]] = line
    train, val, floor = (newest.get(split, {}) for split in ("train", "val", "floor"))
    last = max(newest.values(), key=lambda line: line["step"], default={})
    total = settings(run).get("train.max_steps")
    return {
        "name": name,
        "step": last.get("step"),
        "total": total if type(total) is int else None,
        "seconds": last.get("time_s"),
        "loss": train.get("loss"),
        "val_loss": val.get("loss"),
        "gap": None if None in (floor.get("model"), floor.get("floor")) else floor["model"] - floor["floor"],
        "tokens_per_s": train.get("tokens_per_s"),
        "has_model": (run / "checkpoints/latest").is_file(),
        "looks": [len([*(run / "attention").glob("step_????????.npz")]), looks],
        "log": log,
        "written": max((stamp[2] for stamp in (log, config) if stamp), default=0) / 1e9,
    }


def _state(run: Path) -> str:
    """training, finished or stopped. A run holds a lock while it works; a kill releases it."""
    if (run / LOCK).exists():
        try:
            FileLock(run / LOCK, timeout=0).acquire().lock.release()
        except Timeout:
            return "training"
        except OSError:  # a folder that may only be read
            pass
    return "finished" if (run / RESULT).is_file() else "stopped"


def settings(run: Path) -> dict[str, Any]:
    """config.yaml by dotted key, as the run wrote it; nothing of other files. {} where it cannot be read."""
    try:
        file = run / "config.yaml"
        values = parse_yaml(read_text(file), str(file))
    except InputError:
        return {}
    return flatten(values) if isinstance(values, dict) else {}
