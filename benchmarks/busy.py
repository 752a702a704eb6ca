"""How fast does a model train beside other programs? `python -m benchmarks.busy [config] [--busy 0 1 2 4]`

A row for each number of busy programs. The columns: a run of the config in threads of one process, and as one process a
core (train.processes); transformers' Llama of the same shape; transformers' GPT-2 of the same width, depth and heads,
which has the architecture of nanoGPT's model. Each number is the median tokens/s of --seconds. Nothing is compiled.
Threads that wait for each other may take minutes for a step: a cell ends LIMIT seconds later, and counts its steps.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median

from configs.command import InputError, exit_on_bad_input, number, whole
from configs.text import table
from eval.run_files import read_metrics

QUIET = ["eval.every=0", "eval.attention.every=0", "eval.floor_documents=0", "tracking.wandb=disabled"]
QUIET += ["train.checkpoint_every=0", "train.compile=false", "train.log_every=2", "train.max_steps=null"]
LIMIT = 90  # seconds of a cell beyond --seconds
THEIRS = {"llama": "transformers' Llama", "gpt2": "transformers' GPT-2 (as nanoGPT)"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy", description="Train beside busy programs.")
    parser.add_argument("config", nargs="?", default="configs/demo.yaml")
    parser.add_argument("--busy", type=whole("--busy", 0), nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seconds", type=number("--seconds", 1), default=10.0, help="of each cell")
    parser.add_argument("--theirs", choices=THEIRS, help="only measure this one, now, and print its tokens/s")
    options = parser.parse_args()
    if options.theirs:
        print(their_speed(options.config, options.theirs, options.seconds))
        return 0
    rows = []
    with tempfile.TemporaryDirectory(prefix="headlight-busy-") as folder:
        speed(options.config, Path(folder), "warm", 1, 1.0)  # prepares the text
        for busy in options.busy:
            cells: list[Callable[[], float]] = [
                partial(speed, options.config, Path(folder), f"busy{busy}_{ways}", ways, options.seconds)
                for ways in (1, "auto")
            ]
            cells += [partial(in_a_process, options.config, name, options.seconds) for name in THEIRS]
            with burning(busy):
                found = [cell() for cell in cells]
            rows.append([busy, *(f"{one:,.0f}" for one in found), f"{found[1] / found[0]:.2f}"])
    columns = ["busy programs", "ours, threads of one process", "ours, one process a core", *THEIRS.values()]
    print(table([*columns, "processes / threads"], rows))
    return 0


@contextmanager
def burning(programs: int) -> Iterator[None]:
    """Runs this many busy programs beside what is done here."""
    burners = [multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(programs)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()


def burn() -> None:
    """Keep a core busy until it is killed."""
    while True:
        pass


def speed(config: str, folder: Path, name: str, processes: int | str, seconds: float) -> float:
    """Median tokens/s of a run that lasts this long; NaN if it made no step. Raises InputError if it fails."""
    command = ["train.pretrain", config, f"output_dir={folder.as_posix()}", f"name={name}", *QUIET]
    with suppress(subprocess.TimeoutExpired):
        said([*command, f"train.processes={processes}", f"train.max_minutes={seconds / 60:.4f}"], seconds)
    lines = read_metrics(folder / name, lambda problem: None) if (folder / name).exists() else []
    return median([line["tokens_per_s"] for line in lines if line["split"] == "train"] or [math.nan])


def in_a_process(config: str, name: str, seconds: float) -> float:
    """`their_speed` in a process of its own, as a run has one; NaN if it did not end."""
    with suppress(subprocess.TimeoutExpired):
        return float(
            said(["benchmarks.busy", config, "--theirs", name, "--seconds", str(seconds)], seconds).splitlines()[-1]
        )
    return math.nan


def said(module: list[str], seconds: float) -> str:
    """What `python -m module …` prints. Raises InputError with its last line if it fails, TimeoutExpired if late."""
    command = [sys.executable, "-m", *module]
    limit = seconds + LIMIT
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, timeout=limit)
    if done.returncode:
        raise InputError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return done.stdout


def their_speed(config: str, name: str, seconds: float) -> float:
    """Median tokens/s of transformers' model on random tokens, with fused AdamW: the config's tokens a step, micro-
    batches and precision."""
    import torch

    from benchmarks.timing import CLOCKS
    from benchmarks.training import repeat
    from benchmarks.transformers_model import gpt2_like, their_step
    from model import LanguageModel
    from train.budget import with_vocabulary
    from train.config import load_run_config
    from train.device import keep_freed_memory, resolve_device

    keep_freed_memory()
    run, _ = with_vocabulary(load_run_config(config, ["data.isolate_documents=false", "model.qk_norm=false"]))
    device = resolve_device(run)
    torch.manual_seed(run.seed)
    other = gpt2_like(run) if name == "gpt2" else None
    step = their_step(LanguageModel(run.model), run, device, run.rows_per_step, compiled=False, other=other)
    return run.train.tokens_per_step / median(repeat(step, seconds, device.device, CLOCKS["wall"]))


if __name__ == "__main__":
    exit_on_bad_input(main)
