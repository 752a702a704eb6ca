"""Read the runs of a folder from their files, while they train and afterwards.

A run never waits for a reader. A name is looked up in the list of runs and never joined to a path,
so no name leads out of the folder.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from configs.command import InputError
from configs.files import parse_json, read_text
from configs.loader import flatten
from configs.parse import parse_yaml
from eval.run_files import METRICS, RESULT, Metric
from train.run.run_directory import LOCK

# A folder with one of these files is a run.
MARKS = ("config.yaml", METRICS, "checkpoints/latest")
# A summary is made of these files.
SOURCES = (METRICS, "config.yaml", "attention/index.jsonl", "checkpoints/latest")
# The newest figures are in this many bytes at the end of a log.
TAIL = 200_000


def runs_in(folder: Path, is_run: Callable[[Path], bool]) -> dict[str, Path]:
    """Return the runs of a folder by name, or the folder itself if it is one."""

    def has_address(path: Path) -> bool:
        # a name may not be text, so no address leads to it
        with suppress(OSError, UnicodeEncodeError):
            path.name.encode()
            return is_run(path)
        return False

    if has_address(folder):
        return {folder.resolve().name: folder}
    with suppress(OSError):
        return {path.name: path for path in sorted(folder.iterdir()) if has_address(path)}
    return {}


def watched_runs(folder: Path) -> dict[str, Path]:
    """Return run directories by name, also those without a checkpoint."""
    return runs_in(folder, lambda path: any((path / mark).is_file() for mark in MARKS))


def summaries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the summary of every run. Unchanged files are not read again."""
    result = {}
    for name, run in watched_runs(folder).items():
        # a file's stamp is another one after every change of it; None: there is no such file
        stamps: list[tuple[int, int, int] | None] = []
        for file in SOURCES:
            stamp = None
            with suppress(OSError):
                stat = (run / file).stat()
                stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            stamps.append(stamp)
        result[name] = _summary(name, run, *stamps) | {"state": _state(run)}
    return result


# The stamps are part of the key: a changed file is read again.
@lru_cache(maxsize=4096)
def _summary(name: str, run: Path, *stamps: tuple[int, int, int] | None) -> dict[str, Any]:
    log, config, looks = stamps[:3]
    newest: dict[str, dict[str, Any]] = {}
    if log is not None:
        with (run / METRICS).open("rb") as stream:
            # a log of a long run has megabytes, and a page asks every few seconds
            stream.seek(max(0, log[1] - TAIL))
            lines = stream.read().splitlines()
        for raw in lines:
            # the first and the last one may be a part of a line
            with suppress(ValueError):
                line = parse_json(raw.decode("utf-8"), METRICS, Metric).model_dump()
                newest[line["split"]] = line
    train, val, floor = (newest.get(split, {}) for split in ("train", "val", "floor"))
    # splits are logged at different steps, and the page shows the newest of all
    last = max(newest.values(), key=lambda line: line["step"], default={})
    total = settings(run).get("train.max_steps")
    gap = None
    if floor.get("model") is not None and floor.get("floor") is not None:
        gap = floor["model"] - floor["floor"]
    return {
        "name": name,
        "step": last.get("step"),
        "total": total if type(total) is int else None,
        "seconds": last.get("time_s"),
        "loss": train.get("loss"),
        "val_loss": val.get("loss"),
        "gap": gap,
        "tokens_per_s": train.get("tokens_per_s"),
        "has_model": (run / "checkpoints/latest").is_file(),
        "looks": [len([*(run / "attention").glob("step_????????.npz")]), looks],
        "log": log,
        "written": max((stamp[2] for stamp in (log, config) if stamp), default=0) / 1e9,
    }


def _state(run: Path) -> str:
    # training, finished or stopped; a run holds a lock, and a kill releases it
    if (run / LOCK).exists():
        try:
            # If nobody trains here, the lock can be taken. It is given back at once.
            FileLock(run / LOCK, timeout=0).acquire().lock.release()
        except Timeout:
            return "training"
        except OSError:
            # the folder may be read-only, so nothing trains in it
            pass
    return "finished" if (run / RESULT).is_file() else "stopped"


def settings(run: Path) -> dict[str, Any]:
    """Return config.yaml by dotted key, without other files; {} if it cannot be read."""
    try:
        file = run / "config.yaml"
        # a run's config.yaml has all keys and extends nothing, so this is enough
        values = parse_yaml(read_text(file), str(file))
    except InputError:
        return {}
    return flatten(values) if isinstance(values, dict) else {}
