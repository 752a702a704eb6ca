"""Training on a device that is not the CPU: same numbers, and no step waits for the device but to log.

There is no GPU here. So the device is the one of tests/accelerator.py, whose numbers are real; the kernel of flash is
replaced by what its documentation says (tests/varlen_kernel.py). All else is the real command.
"""

import json
from functools import partial

import pytest

from tests.processes import exit_code
from tests.train.accelerated import train_on_accelerator
from tests.train.helpers import metrics, pretrain, write_config

LOG_EVERY = 3
LOGGED = ["_to_copy", "train/metrics.py", "read_device"]  # losses of the steps since the last line, in one copy
slow = partial(pytest.param, marks=pytest.mark.slow)
# fp16 looks at every gradient, because an overflow is computed again with another scale
SCALED = ("train/loop.py", "train"), ("train/loop.py", "overflowed")


def config_for(folder, **changes):
    model = {"attn_implementation": changes.pop("attention"), "layer_types": ["sliding_attention", "full_attention"]}
    train = {"compile": False, "processes": 1, "micro_batch_size": 4, "log_every": LOG_EVERY, "max_steps": 8}
    train |= {"checkpoint_every": 0, **changes}
    sections = {"data": {"isolate_documents": True}, "train": train, "eval": {"every": 0}}
    return write_config(folder, model=model | {"sliding_window": 9}, **sections)


def waits_of(config, change=None) -> list[list]:
    """Of each step but the last, which is followed by the evaluation: what waited for the device."""
    code = exit_code(train_on_accelerator, config, change)
    assert code == 0, config.with_name("accelerated.txt").read_text(encoding="utf-8")[-3000:]
    return json.loads(config.with_name("waits.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("attention", "precision"),
    [
        ("eager", "fp32"),
        ("flash", "bf16"),
        slow("sdpa", "bf16"),
        slow("flash", "fp32"),
    ],
)
def test_no_step_waits_for_the_device_but_to_log(tmp_path, attention, precision):
    config = config_for(tmp_path, attention=attention, precision=precision)
    waits = waits_of(config)
    assert waits == [[LOGGED] if step % LOG_EVERY == 0 else [] for step in range(1, 8)]
    found = metrics(tmp_path / "runs/tiny")
    pretrain(config, "name=cpu", "train.device=cpu", f"train.precision={precision}")
    expected = metrics(tmp_path / "runs/cpu")
    assert len(found) == len(expected) > 3
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4 if precision == "fp32" else 2e-2)


def test_fp16_waits_for_its_scale_alone(tmp_path):
    waits = waits_of(config_for(tmp_path, attention="flash", precision="fp16"))
    assert all({tuple(place) for _, *place in step} <= {*SCALED, tuple(LOGGED[1:])} for step in waits)
    assert all(any(tuple(place) in SCALED for _, *place in step) for step in waits)


# ---------------------------------------------------------------------------------------------------------
# what is put in on purpose is found


def takes_a_gradient_away_and_back(run):
    run.lm.model.layers[1].mlp.up_proj.weight.register_hook(lambda gradient: gradient.cpu().to(gradient.device))


def test_a_wait_that_is_put_in_on_purpose_is_found(tmp_path):
    config = config_for(tmp_path, attention="flash", precision="fp32", max_steps=6)
    waits = waits_of(config, takes_a_gradient_away_and_back)
    assert ["_to_copy", "tests/train/test_accelerator.py", "<lambda>"] in waits[-1]
