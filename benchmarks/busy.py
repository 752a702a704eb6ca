"""Training beside other programs: `python -m benchmarks.busy [config] [--busy 0 1 2 4]`

A row for each number of busy programs has the median tokens/s of two runs of --seconds: in threads
of one process, and as one process a core (train.processes). Nothing is compiled.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from statistics import median

from configs.command import InputError, exit_on_bad_input, integer, number
from configs.text import table
from eval.run_files import read_metrics

QUIET = """eval.every=0 eval.attention.every=0 eval.floor_documents=0 tracking.wandb=disabled
    train.checkpoint_every=0 train.compile=false train.log_every=2 train.max_steps=null""".split()
# Threads that wait for each other may take minutes for a step: a run ends so many seconds late.
LIMIT = 90


def main() -> None:
    parser = argparse.ArgumentParser(description="Train beside busy programs.")
    parser.add_argument("config", nargs="?", default="configs/demo.yaml")
    parser.add_argument("--busy", type=integer("--busy", 0), nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seconds", type=number("--seconds", 1), default=10.0, help="of each run")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="headlight-busy-") as name:
        folder = Path(name)
        speed(args.config, folder / "warm", 1, 1.0)  # prepares the text
        for busy in args.busy:
            loop = [sys.executable, "-c", "while True: pass"]
            programs = [subprocess.Popen(loop) for _ in range(busy)]
            try:
                threads = speed(args.config, folder / f"threads{busy}", 1, args.seconds)
                processes = speed(args.config, folder / f"processes{busy}", "auto", args.seconds)
            finally:
                for program in programs:
                    program.kill()
                    program.wait()
            figures = [f"{threads:,.0f}", f"{processes:,.0f}", f"{processes / threads:.2f}"]
            rows.append([busy, *figures])
    header = ["busy programs", "threads of one process", "one process a core"]
    print(table([*header, "processes / threads"], rows))


def speed(config: str, run: Path, processes: int | str, seconds: float) -> float:
    """Return the median tokens/s of a run, NaN without a step. Raises InputError if it fails."""
    settings = [f"output_dir={run.parent.as_posix()}", f"name={run.name}"]
    settings += [f"train.processes={processes}", f"train.max_minutes={seconds / 60:.4f}", *QUIET]
    command = [sys.executable, "-m", "train.pretrain", config, *settings]
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + LIMIT)
        if done.returncode:
            line = (done.stderr or done.stdout).strip().splitlines()[-1]
            raise InputError(f"{' '.join(command)} failed: {line}")
    lines = read_metrics(run, lambda problem: None) if run.exists() else []
    speeds = [line["tokens_per_s"] for line in lines if line["split"] == "train"]
    return median(speeds) if speeds else math.nan


if __name__ == "__main__":
    exit_on_bad_input(main)
