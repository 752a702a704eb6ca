"""Training on a device that is not the CPU: same numbers, and no step waits for the device but to
log.

There is no GPU here. So the device is the one of tests/accelerator.py, whose numbers are real; the
kernel of flash is replaced by what its documentation says (tests/varlen_kernel.py). All else is the
real command.
"""

import json
from dataclasses import replace

import pytest
import torch

import train.loop
import train.machine.device
import train.optimizer
import train.run.after_step
import train.run.begin_and_end
from model.backends.choice import BACKENDS
from tests import accelerator
from tests.accelerator import Accelerator
from tests.processes import exit_code, print_to
from tests.train.helpers import metrics, pretrain, write_config
from train.run.run import Run

LOG_EVERY = 3
# losses of the steps since the last line, in one copy
LOGGED = ["_to_copy", "train/run/metrics.py", "read_device"]


def train_on_accelerator(config) -> None:
    """`train.pretrain config`, in a process of its own; what waited for the device in each step
    goes to waits.json.

    Where Headlight asks whether a device is a GPU, this one is.
    """
    torch.set_num_threads(1)
    print_to(config.with_name("accelerated.txt"))
    accelerator.register()
    train.machine.device.choose_device = lambda *wanted: torch.device(accelerator.NAME)
    train.optimizer.FUSED += (accelerator.NAME,)
    Run.gates_on_device = property(lambda run: True)
    BACKENDS.update({name: replace(backend, limits=None) for name, backend in BACKENDS.items()})
    count = train.loop.agree_on_counts
    elsewhere = train.run.after_step.evaluate_and_save
    waits = []

    def watched(run, batch):
        device.recording = True
        return count(run, batch)

    def apart(run):
        device.recording = False
        if run.state.step and not run.is_last:
            waits.append([list(each) for each in device.reads])
            device.reads.clear()
        elsewhere(run)

    train.loop.agree_on_counts = watched
    train.run.after_step.evaluate_and_save = train.run.begin_and_end.evaluate_and_save = apart
    with Accelerator() as device:
        pretrain(config)
    config.with_name("waits.json").write_text(json.dumps(waits), encoding="utf-8")


def test_no_step_waits_for_the_device_but_to_log(tmp_path):
    windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
    model = windows | {"attn_implementation": "flash"}
    switches = {"compile": False, "processes": 1, "micro_batch_size": 4, "log_every": LOG_EVERY, "max_steps": 8}
    switches |= {"checkpoint_every": 0, "precision": "bf16"}
    documents = {"isolate_documents": True}
    config = write_config(tmp_path, model=model, data=documents, train=switches, eval={"every": 0})
    code = exit_code(train_on_accelerator, config)
    assert code == 0, config.with_name("accelerated.txt").read_text(encoding="utf-8")[-3000:]
    waits = json.loads(config.with_name("waits.json").read_text(encoding="utf-8"))
    assert waits == [[LOGGED] if step % LOG_EVERY == 0 else [] for step in range(1, 8)]
    ours = metrics(tmp_path / "runs/tiny")
    pretrain(config, "name=cpu", "train.device=cpu")
    theirs = metrics(tmp_path / "runs/cpu")
    assert len(ours) == len(theirs) > 3
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], abs=2e-2)
