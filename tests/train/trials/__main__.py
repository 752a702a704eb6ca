"""`python -m tests.train.trials 250 [--seed 0] [--share 5] [--capability avx2] [--load 4] [--compiled 2]`

Each trial draws a small random run, kills it four times at random moments (SIGKILL mostly; while it prepares its data,
trains, evaluates, saves, draws), lets it end, and compares every file with the run that was never disturbed. Only what
a clock decides is left out. `max_minutes` is not among the settings: there the clock decides what is trained.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.busy import burn

# three libraries choose their kernels for the processor, each by its own variable, when they are loaded
WITHOUT_AVX512 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.train.trials", description=__doc__.split("\n\n")[1])
    parser.add_argument("trials", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other settings and moments")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--share", type=int, default=5, help="so many trials share one setting")
    parser.add_argument("--capability", choices=("default", "avx2"), default="default", help="avx2: without AVX-512")
    parser.add_argument("--load", type=int, default=0, help="so many busy processes beside it")
    parser.add_argument("--compiled", type=int, default=0, help="one setting in so many is compiled (0: none)")
    parser.add_argument("--sweeps", action="store_true", help="kill sweeps of three runs instead of single runs")
    parser.add_argument("--folder", type=Path, help="where the runs are; default: a new one that is removed")
    given = parser.parse_args()
    if given.capability == "avx2":
        os.environ.update(WITHOUT_AVX512)
    os.environ.update(HF_HUB_OFFLINE="1", WANDB_MODE="offline", WANDB_SILENT="true")
    # two threads, which sleep while they wait: on a busy machine they would wait for each other most of the time
    os.environ.update(OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive", KMP_BLOCKTIME="0")
    # started before torch is imported anywhere: the fork server takes over the environment
    burners = [multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(given.load)]
    for burner in burners:
        burner.start()
    try:
        folder = given.folder or Path(tempfile.mkdtemp(prefix="headlight-trials-"))
        return run_sweeps(given, folder) if given.sweeps else run(given, folder)
    finally:
        for burner in burners:
            burner.kill()


def run(given: argparse.Namespace, folder: Path) -> int:
    """Every trial, a line each, and the table. Returns the exit code: 1 if any differed."""
    from tests.train.trials import settings
    from tests.train.trials.trial import Trial, attempt, table, undisturbed

    trials: list[Trial] = []
    loads: list[float] = []
    setting, began = None, time.monotonic()
    for number in range(given.first, given.first + given.trials):
        which = number // given.share
        if setting is None or setting.number != which:
            compiles = bool(given.compiled) and which % given.compiled == given.compiled - 1
            setting = settings.draw(given.seed, which, compiles=compiles)
            whole = undisturbed(setting, folder / f"setting-{which}")
        loads.append(os.getloadavg()[0])
        trials.append(attempt(number, given.seed, setting, whole, folder / f"trial-{number}"))
        print(trials[-1], flush=True)
    minutes, load = (time.monotonic() - began) / 60, f"load {min(loads):.1f} to {max(loads):.1f}"
    print(f"\n{table(trials)}\n{minutes:.1f} minutes; {_machine(given)}, {load}")
    return int(any(trial.problem for trial in trials))


def run_sweeps(given: argparse.Namespace, folder: Path) -> int:
    """The same with sweeps; `--share` has no meaning here."""
    from tests.train.trials import sweeps

    whole = sweeps.undisturbed(given.seed, folder / "undisturbed")
    lines = []
    for number in range(given.first, given.first + given.trials):
        lines.append(sweeps.attempt(number, given.seed, whole, folder / f"sweep-{number}"))
        print(lines[-1], flush=True)
    equal = sum(" equal " in line for line in lines)
    print(f"\n{equal} of {len(lines)} equal; {_machine(given)}")
    return int(equal < len(lines))


def _machine(given: argparse.Namespace) -> str:
    import torch

    return (
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores, "
        f"{given.load} busy processes of its own"
    )


if __name__ == "__main__":
    sys.exit(main())
