"""Trials of whole sweeps: a sweep is killed with its runs, or alone so that they continue, and started again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

from tests.train.trials.compare import difference, leftovers
from tests.train.trials.settings import Setting, draw, write

ROOT = Path(__file__).parents[3]
RUNS = ("tiny-1-seed3", "tiny-2-seed3", "tiny-4-seed3")
SWEPT = [f"model.num_key_value_heads={values}" for values in ("1,2,4",)]
FIXED = ["seed=3", "model.hidden_dropout=0.1", "train.max_steps=40", "train.max_tokens=null", "train.log_every=1"]
FIXED += ["train.checkpoint_every=3", "train.keep_last=2", "train.micro_batch_size=auto", "train.precision=fp32"]
KILLS = 3
LIFE_S = 3600
HOW = ("all", "all", "alone", "stop")  # SIGKILL to the sweep and its runs, to the sweep, or SIGTERM to all of them


def undisturbed(seed: int, folder: Path) -> Path:
    """A sweep of three runs, two at a time, that nobody kills."""
    write(_setting(seed), folder)
    code = _start(folder).wait(timeout=LIFE_S)
    if code:
        raise RuntimeError(f"{folder}: the undisturbed sweep ended with {code}: see {folder.with_suffix('.out')}")
    return folder


def attempt(number: int, seed: int, whole: Path, folder: Path) -> str:
    """Kill a sweep three times, let it end, and compare its runs. Returns a line that says what came out."""
    began, dice, ends, problem = time.monotonic(), random.Random(f"sweep {seed} {number}"), [], ""
    write(_setting(seed), folder)
    lines = sum(_lines(whole))
    for _ in range(KILLS):
        how, process = dice.choice(HOW), _start(folder)
        begun = sum(_lines(folder))
        wanted = begun + dice.randint(0, max(1, (lines - begun) // 2))
        while process.poll() is None and sum(_lines(folder)) < wanted:
            time.sleep(0.02)
        time.sleep(dice.random() * 0.3)
        if process.poll() is not None:
            break
        number_sent = signal.SIGTERM if how == "stop" else signal.SIGKILL
        (os.kill if how == "alone" else os.killpg)(process.pid, number_sent)
        process.wait(timeout=LIFE_S)
        ends.append(how)
    code = _start(folder).wait(timeout=LIFE_S)
    if code:
        problem = f"the last start ended with {code}"
    problem = problem or ("" if ends else "vacuous: no kill came") or _verdict(folder, whole)
    if not problem:
        shutil.rmtree(folder)
    verdict = f"DIFFERS {problem} (kept: {folder} and {whole})" if problem else "equal"
    return f"sweep {number:4d} {verdict}   killed: {', '.join(ends)}; {time.monotonic() - began:.1f} s"


def _verdict(folder: Path, whole: Path) -> str:
    if left := leftovers(folder / "runs"):
        return f"left over: {', '.join(left[:5])}"
    for name in RUNS:
        ours, theirs = folder / "runs" / name, whole / "runs" / name
        if problem := difference(ours, theirs):
            return f"{name}/{problem}"
    return "" if list((folder / "runs").glob("*-sweep-*/comparison.md")) else "there is no comparison.md"


def _setting(seed: int) -> Setting:
    """The first of this seed that trains on plain text."""
    return next(drawn for number in count() if (drawn := draw(seed, number)).kinds["data"] == "files")


def _start(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "train.sweep", "tiny.yaml", *SWEPT, *FIXED, "--jobs", "2", "--skip-decode"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with folder.with_suffix(".out").open("ab") as output:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )


def _lines(folder: Path) -> list[int]:
    files = [folder / "runs" / name / "metrics.jsonl" for name in RUNS]
    return [file.read_bytes().count(b"\n") if file.exists() else 0 for file in files]
