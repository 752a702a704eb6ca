"""What is known of the runs in a folder, while they train and afterwards? Read from their files, and from nothing else.

A run that trains only writes its files; it never waits for a reader. A name is looked up in the list of runs and never
joined to a path, so no name leads out of the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from filelock import FileLock, Timeout

from configs.command import InputError
from configs.files import DamagedFile, parse_json, read_text
from configs.loader import flatten, parse_yaml
from eval.run_files import METRICS, RESULT, Metric
from train.checkpoint import LOCK

MARKS = ("config.yaml", METRICS, "checkpoints/latest")  # a folder with one of them is a run
TAIL = 200_000  # bytes at the end of a log, in which its newest figures are
PART = 2_000_000  # bytes of a log that are read at once
WRITTEN = (METRICS, "config.yaml", "attention/index.jsonl", "checkpoints/latest")  # what a summary is made of


class Tail(NamedTuple):
    """New lines of a log, from byte `start` on. offset, mark: for the next part. is_whole: there is no more."""

    start: int
    offset: int
    mark: int
    is_whole: bool
    lines: list[dict[str, Any]]


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
        for line in tail(run, offset=max(0, log[1] - TAIL)).lines:
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
    """training, finished or stopped. A run holds a lock while it works (train/checkpoint.py); a kill releases it."""
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


def tail(run: Path, offset: int = 0, mark: int | None = None, most: int = PART) -> Tail:
    """The whole lines of metrics.jsonl from this byte on. A damaged line is left out.

    mark: as the part before had it. Where other bytes than then stand before the offset (a run that is resumed takes
    lines off its log), all is read. Raises DamagedFile where a line has no end, OSError where there is no log.
    """
    with (run / METRICS).open("rb") as stream:
        if mark is not None and _mark(stream, offset) != mark:
            offset = 0
        stream.seek(max(0, offset - 1))
        is_inside = offset > 0 and stream.read(1) != b"\n"  # of a line: its end is left out
        raw = stream.read(most)
        if b"\n" not in raw and len(raw) == most:
            raise DamagedFile(f"{run / METRICS}: has a line of more than {most:,} bytes")
        whole = raw[: raw.rfind(b"\n") + 1]
        lines = [line for line in map(_figures, whole.split(b"\n")[is_inside:]) if line is not None]
        end = offset + len(whole)
        return Tail(offset, end, _mark(stream, end), len(raw) < most, lines)


def _mark(stream: BufferedReader, offset: int) -> int:
    """A checksum of what stands before this byte."""
    start = max(0, offset - 500)
    stream.seek(start)
    return crc32(stream.read(offset - start))


def _figures(raw: bytes) -> dict[str, Any] | None:
    """The numbers of one line, its step and split."""
    try:
        line = parse_json(raw.decode("utf-8"), METRICS, Metric)
    except ValueError:
        return None
    return {key: value for key, value in line.items() if key == "split" or isinstance(value, int | float)}
