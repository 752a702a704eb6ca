"""A run that is stopped and started again, beside one that is not."""

from collections.abc import Callable
from pathlib import Path

import torch

from model import load
from tests.train.helpers import pretrain, stopped_at
from tests.train.worlds import trace
from train.config import load_run_config


def check_that_a_stopped_run_goes_on_exactly(config: Path, script: Callable[[], int]) -> None:
    """Stopped at step 4, it has the same losses and weights in the end, bit by bit."""
    runs, name = config.parent / "runs", load_run_config(config).name
    pretrain(config, "name=whole", script=script)
    with stopped_at(4):
        pretrain(config, script=script, code=143)
    pretrain(config, script=script)
    assert trace(runs / name) == trace(runs / "whole")
    stopped, whole = (load(runs / one).state_dict() for one in (name, "whole"))
    assert all(torch.equal(stopped[key], whole[key]) for key in stopped)
