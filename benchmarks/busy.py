"""How fast does a model train beside other programs? `python -m benchmarks.busy [config] [--busy 0 1 2 4]`

A row for each number of busy programs: runs of the config in threads of one process, and as one process a core
(train.processes). Each number is the median tokens/s of --seconds. Nothing is compiled. Threads that wait for each
other may take minutes for a step: a cell ends LIMIT seconds later, and counts its steps.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from configs.command import InputError, exit_on_bad_input, integer, number
from configs.text import table
from eval.run_files import read_metrics

QUIET = ["eval.every=0", "eval.attention.every=0", "eval.floor_documents=0", "tracking.wandb=disabled"]
QUIET += ["train.checkpoint_every=0", "train.compile=false", "train.log_every=2", "train.max_steps=null"]
LIMIT = 90  # seconds of a cell beyond --seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Train beside busy programs.")
    parser.add_argument("config", nargs="?", default="configs/demo.yaml")
    parser.add_argument("--busy", type=integer("--busy", 0), nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seconds", type=number("--seconds", 1), default=10.0, help="of each cell")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="headlight-busy-") as folder:
        speed(given.config, Path(folder), "warm", 1, 1.0)  # prepares the text
        for busy in given.busy:
            with burning(busy):
                threads, processes = (
                    speed(given.config, Path(folder), f"busy{busy}_{ways}", ways, given.seconds) for ways in (1, "auto")
                )
            rows.append([busy, f"{threads:,.0f}", f"{processes:,.0f}", f"{processes / threads:.2f}"])
    print(table(["busy programs", "threads of one process", "one process a core", "processes / threads"], rows))


@contextmanager
def burning(programs: int) -> Iterator[None]:
    """Runs this many busy programs beside what is done here."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def speed(config: str, folder: Path, name: str, processes: int | str, seconds: float) -> float:
    """Median tokens/s of a run that lasts this long; NaN if it made no step. Raises InputError if it fails."""
    settings = [f"output_dir={folder.as_posix()}", f"name={name}", f"train.processes={processes}"]
    settings += [f"train.max_minutes={seconds / 60:.4f}", *QUIET]
    command = [sys.executable, "-m", "train.pretrain", config, *settings]
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=seconds + LIMIT)
        if done.returncode:
            raise InputError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    lines = read_metrics(folder / name, lambda problem: None) if (folder / name).exists() else []
    return median([line["tokens_per_s"] for line in lines if line["split"] == "train"] or [math.nan])


if __name__ == "__main__":
    exit_on_bad_input(main)
