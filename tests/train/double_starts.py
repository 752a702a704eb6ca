"""The same command started twice within seconds: one process trains, the other is refused, nothing is mixed."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import torch

from configs.command import exit_on_bad_input
from tests.processes import print_to, start
from tests.train.helpers import metrics, write_config
from train.pretrain import main
from train.saving import owner
from train.saving.commit import damage

SECTIONS = {
    "model": {"hidden_dropout": 0.1},
    "train": {"max_steps": 80, "checkpoint_every": 20, "keep_last": 2},
    "eval": {"every": 40, "sample_tokens": 2},
}


def _command(config: Path, output: Path, after_s: float) -> None:
    torch.set_num_threads(1)
    print_to(output)
    owner.PATIENCE_S = 0.1  # or the second one waits until so short a run is over
    time.sleep(after_s)
    sys.argv = ["pretrain", str(config)]
    exit_on_bad_input(main)


def result_of(run: Path) -> tuple[list[dict], list[str], bytes]:
    """What must be equal: the figures, the checkpoints, the weights."""
    newest = run / "checkpoints" / (run / "checkpoints/latest").read_text().strip()
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    return metrics(run), names, (newest / "model.safetensors").read_bytes()


def undisturbed(folder: Path) -> tuple[list[dict], list[str], bytes]:
    """The result of one start alone."""
    folder.mkdir()
    process = start(_command, write_config(folder, **SECTIONS), folder / "0.txt", 0.0)
    process.join(timeout=300)
    assert process.exitcode == 0, (folder / "0.txt").read_text()
    return result_of(folder / "runs/tiny")


def checked(folder: Path, expected: tuple[list[dict], list[str], bytes], dice: random.Random) -> str:
    """One double start: "refused", or "one after the other" if the second began when the first had ended."""
    folder.mkdir()
    config, outputs = write_config(folder, **SECTIONS), [folder / "0.txt", folder / "1.txt"]
    delays = [0.0, dice.choice([0.0, dice.uniform(0, 0.3), dice.uniform(0, 3)])]
    processes = [start(_command, config, *one) for one in zip(outputs, delays, strict=True)]
    for process in processes:
        process.join(timeout=300)
    printed = [output.read_text() for output in outputs]
    codes = sorted(process.exitcode for process in processes)
    assert codes in ([0, 2], [0, 0]), (codes, printed)
    for process, text in zip(processes, printed, strict=True):
        assert "Traceback" not in text, text
        if process.exitcode == 2:
            other = next(one for one in processes if one is not process)
            assert f"is in use by process {other.pid} on " in text.splitlines()[-1], text
            assert text.count("\n") == 1, text
    if codes == [0, 0]:
        assert sorted("step 0: loss" in text for text in printed) == [False, True], printed
    run = folder / "runs/tiny"
    found = result_of(run)
    steps = [m["step"] for m in found[0] if m["split"] == "train"]
    assert steps == sorted(set(steps)), steps
    assert all(damage(path) is None for path in (run / "checkpoints").glob("step_*"))
    assert found == expected
    return "refused" if codes == [0, 2] else "one after the other"
