"""A run that is stopped and started again, beside one that is not."""

from collections.abc import Callable
from pathlib import Path

import torch

from model import load
from tests.train.helpers import pretrain, stopped_at
from tests.train.worlds import trace
from train.config import load_run_config


def check_that_a_stopped_run_goes_on_exactly(config: Path, script: Callable[[], int], step: int = 4) -> Path:
    """Stopped at this step, it has the same losses and weights in the end, bit by bit. Returns the run that never was
    stopped, which is called `whole`; the other one has the config's name."""
    run = load_run_config(config).directory
    whole = run.with_name("whole")
    pretrain(config, "name=whole", "--trust-hooks", script=script)
    with stopped_at(step):
        pretrain(config, "--trust-hooks", script=script, code=143)
    pretrain(config, "--trust-hooks", script=script)
    assert trace(run) == trace(whole)
    stopped, uninterrupted = (load(one).state_dict() for one in (run, whole))
    assert all(torch.equal(stopped[key], uninterrupted[key]) for key in stopped)
    return whole
