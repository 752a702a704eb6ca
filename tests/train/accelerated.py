"""A run of the real command on the accelerator of tests/accelerator.py, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import train.device
import train.loop
import train.optimizer
from model.backends.choice import BACKENDS
from tests import accelerator
from tests.accelerator import Accelerator
from tests.processes import print_to
from tests.train.helpers import pretrain
from train.run import Run


def train_on_accelerator(config: Path, change: Callable[[Run], None] | None = None) -> None:
    """`train.pretrain config`, which writes what waited for the device in each step beside it: waits.json.

    Where Headlight asks whether a device is a GPU, this one is: fused AdamW, steps that the device itself skips, any
    backend. change: called with the run in the first step, to put a wait in on purpose.
    """
    torch.set_num_threads(1)
    print_to(config.with_name("accelerated.txt"))
    accelerator.register()
    train.device.choose_device = lambda wanted: torch.device(accelerator.NAME)
    train.optimizer.FUSED += (accelerator.NAME,)
    Run.gates_on_device = property(lambda run: True)  # type: ignore[assignment]
    BACKENDS.update({name: replace(backend, limits=None) for name, backend in BACKENDS.items()})
    count, elsewhere, waits = train.loop.count, train.loop.evaluate_and_save, []

    def watched(run, batch):
        if run.state.step == 0 and change is not None:
            change(run)
        device.recording = True
        return count(run, batch)

    def apart(run, is_last=False):
        device.recording = False
        if run.state.step and not is_last:
            waits.append([list(each) for each in device.reads])
            device.reads.clear()
        elsewhere(run, is_last)

    train.loop.count, train.loop.evaluate_and_save = watched, apart
    with Accelerator() as device:
        pretrain(config)
    config.with_name("waits.json").write_text(json.dumps(waits), encoding="utf-8")
