"""What is known of the runs in a folder, while they train and afterwards? Read from their files, and from nothing else.

A run that trains only writes its files; it never waits for a reader. A name is looked up in the list of runs and never
joined to a path, so no name leads out of the folder.
"""

from __future__ import annotations

import os
import socket
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any
from zlib import crc32

from configs.command import InputError
from configs.files import DamagedFile, parse_json, read_json, read_text
from configs.loader import flatten, parse_yaml
from eval.run_files import METRICS, RESULT, Metric
from train.checkpoint import LOCK, OWNER

MARKS = ("config.yaml", METRICS, "checkpoints/latest")  # a folder with one of them is a run
TAIL = 200_000  # bytes at the end of a log, in which its newest figures are
PART = 2_000_000  # bytes of a log that are read at once
QUIET = 180.0  # seconds without a new line, after which a run on another machine counts as stopped
FIGURES = 10_000  # runs whose summaries are kept


@dataclass(frozen=True)
class Tail:
    """New lines of a log, from byte `start` on. file, offset, mark: for the next part. is_whole: there is no more."""

    file: int
    start: int
    offset: int
    mark: int
    is_whole: bool
    lines: list[dict[str, Any]]


class RunFolder:
    """The runs in `folder`, or one run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._summaries: OrderedDict[str, tuple[tuple, dict[str, Any]]] = OrderedDict()

    def runs(self) -> dict[str, Path]:
        """Name -> run directory, in the order of their names."""
        if _is_run(self.folder):
            return {self.folder.resolve().name: self.folder}
        with suppress(OSError):
            return {path.name: path for path in sorted(self.folder.iterdir()) if _is_run(path)}
        return {}

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Of every run what the page lists; a run whose files are as before is not read again."""
        found = {}
        for name, run in self.runs().items():
            marks = _marks(run)
            known = self._summaries.get(name)
            if known is None or known[0] != marks:
                known = self._summaries[name] = (marks, _summary(name, run))
                self._summaries.move_to_end(name)
                while len(self._summaries) > FIGURES:
                    self._summaries.popitem(last=False)
            found[name] = known[1] | {"state": _state(run)}
        return found


def _is_run(path: Path) -> bool:
    with suppress(OSError, UnicodeEncodeError):  # a name that is not text has no address
        path.name.encode()
        return any((path / mark).is_file() for mark in MARKS)
    return False


def _marks(run: Path) -> tuple:
    """What changes when a run writes something that its summary shows."""
    names = (METRICS, RESULT, "config.yaml", "attention/index.jsonl", "checkpoints/latest")
    found = [_stat(run / name) for name in names]
    return tuple(one and (one.st_ino, one.st_size, one.st_mtime_ns) for one in found)


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def _state(run: Path) -> str:
    """training, finished or stopped. Somebody owns a folder into which a run writes (train/checkpoint.py)."""
    if (run / LOCK).exists() and _is_alive(run):
        return "training"
    return "finished" if (run / RESULT).is_file() else "stopped"


def _is_alive(run: Path) -> bool:
    """Whether the owner of a run still works. A kill leaves the owner's files behind."""
    try:
        card = read_json(run / OWNER)
        if card["host"] == socket.gethostname() and os.name == "posix":
            os.kill(card["pid"], 0)  # asks whether there is such a process; sends nothing
            return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's process
    except (InputError, KeyError, TypeError, OverflowError):
        pass
    written = [one.st_mtime for name in (METRICS, LOCK) if (one := _stat(run / name))]
    return bool(written) and time.time() - max(written) < QUIET


def _summary(name: str, run: Path) -> dict[str, Any]:
    log = _stat(run / METRICS)
    newest: dict[str, dict[str, Any]] = {}
    if log is not None:
        for line in tail(run, offset=max(0, log.st_size - TAIL)).lines:
            newest[line["split"]] = line
    train, val, floor = (newest.get(split, {}) for split in ("train", "val", "floor"))
    last = max(newest.values(), key=lambda line: line["step"], default={})
    asked = settings(run)
    gap = None if None in (floor.get("model"), floor.get("floor")) else floor["model"] - floor["floor"]
    return {
        "name": name,
        "step": last.get("step"),
        "total": total if type(total := asked.get("train.max_steps")) is int else None,
        "seconds": last.get("time_s"),
        "loss": train.get("loss"),
        "val_loss": val.get("loss"),
        "gap": gap,
        "tokens_per_s": train.get("tokens_per_s"),
        "has_model": (run / "checkpoints/latest").is_file(),
        "looks": _count(run),
        "log": [log.st_ino, log.st_size, log.st_mtime_ns] if log else None,
        "written": max((one.st_mtime for one in map(_stat, (run / METRICS, run / "config.yaml")) if one), default=0),
    }


def _count(run: Path) -> list[int]:
    """How many looks at the heads there are, and when their folder last changed, in nanoseconds."""
    folder = _stat(run / "attention")
    with suppress(OSError):
        return [sum(1 for _ in (run / "attention").glob("step_????????.npz")), folder.st_mtime_ns if folder else 0]
    return [0, 0]


def settings(run: Path) -> dict[str, Any]:
    """config.yaml by dotted key, as the run wrote it; nothing of other files. {} where it cannot be read."""
    try:
        file = run / "config.yaml"
        values = parse_yaml(read_text(file), str(file))
    except InputError:
        return {}
    return flatten(values) if isinstance(values, dict) else {}


def tail(run: Path, file: int = 0, offset: int = 0, mark: int | None = None, most: int = PART) -> Tail:
    """The whole lines of metrics.jsonl from this byte on. A damaged line is left out.

    file, mark: as the part before had them. Of another file, or where other bytes than then stand before the offset (a
    run that is resumed takes lines off its log), all is read. Raises DamagedFile where it cannot be read.
    """
    with (run / METRICS).open("rb") as stream:
        here = os.fstat(stream.fileno())
        if mark is not None and (here.st_ino != file or _mark(stream, offset) != mark):
            offset = 0
        stream.seek(max(0, offset - 1))
        is_inside = offset > 0 and stream.read(1) != b"\n"  # of a line: its end is left out
        raw = stream.read(most)
        if b"\n" not in raw and len(raw) == most:
            raise DamagedFile(f"{run / METRICS}: has a line of more than {most:,} bytes")
        whole = raw[: raw.rfind(b"\n") + 1]
        end = offset + len(whole)
        found = [line for line in map(_figures, whole.split(b"\n")[is_inside:]) if line is not None]
        return Tail(here.st_ino, offset, end, _mark(stream, end), len(raw) < most, found)


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
