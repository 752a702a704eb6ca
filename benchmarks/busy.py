"""How fast does a run train beside other programs? `python -m benchmarks.busy [config] [--busy 0 1 2 4] [--seconds 20]`

A row for each number of busy programs, a column for each way to use the cores: threads of one process, or one process a
core (train.processes). Each number is the median of tokens/s of a real run of --seconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from configs.bounds import MOST_PROCESSES, MOST_ROUNDS, number, whole
from configs.command import InputError, exit_on_bad_input
from configs.tables import table
from eval.run_files import read_metrics

QUIET = ["eval.every=0", "eval.attention.every=0", "eval.floor_documents=0", "tracking.wandb=disabled"]
QUIET += ["train.checkpoint_every=0", "train.compile=false", "train.log_every=2", "train.max_steps=null"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy", description="Train beside busy programs.")
    parser.add_argument("config", nargs="?", default="configs/demo.yaml")
    parser.add_argument("--busy", type=whole("--busy", 0, MOST_PROCESSES), nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seconds", type=number("--seconds", 1, MOST_ROUNDS), default=20.0, help="of each run")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="headlight-busy-") as folder:
        speed(options.config, Path(folder), "warm", 1, 1.0)  # prepares the text
        for busy in options.busy:
            burners = [multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(busy)]
            for burner in burners:
                burner.start()
            try:
                found = [
                    speed(options.config, Path(folder), f"busy{busy}_{ways}", ways, options.seconds)
                    for ways in (1, "auto")
                ]
            finally:
                for burner in burners:
                    burner.kill()
            rows.append([busy, *(f"{one:,.0f}" for one in found), f"{found[1] / found[0]:.2f}"])
    print(table(["busy programs", "threads of one process", "one process a core", "ratio"], rows))
    return 0


def speed(config: str, folder: Path, name: str, processes: int | str, seconds: float) -> float:
    """Median tokens/s of a run that lasts this long. Raises InputError with its last line if it fails."""
    command = [
        sys.executable,
        "-m",
        "train.pretrain",
        config,
        f"output_dir={folder.as_posix()}",
        f"name={name}",
        *QUIET,
    ]
    command += [f"train.processes={processes}", f"train.max_minutes={seconds / 60:.4f}"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        raise InputError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    lines = read_metrics(folder / name, lambda problem: None)
    return median(line["tokens_per_s"] for line in lines if line["split"] == "train")


def burn() -> None:
    """Keep a core busy until it is killed."""
    while True:
        pass


if __name__ == "__main__":
    exit_on_bad_input(main)
