"""Estimates of bigger models: docs/scaling_out.md has the tables that the command prints, and the figures add up."""

import re
from pathlib import Path

import pytest

from tests.train.helpers import run_module
from train import scaling
from train.config import load_run_config
from train.scaling import BASE, SHAPES, configured, fsdp2_bytes, hours
from train.step_memory import StepMemory

REMEDY = "put what `python -m train.scaling` prints between the marks"


@pytest.mark.slow
def test_the_page_has_the_tables_that_the_command_prints():
    page = Path("docs/scaling_out.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- python -m train.scaling -->\n(.*?)<!-- end -->", page, re.DOTALL)
    done = run_module("train.scaling")
    assert found is not None
    assert found[1].strip() == done.stdout.strip(), REMEDY


def test_fsdp2_divides_what_lasts_and_nothing_else(monkeypatch):
    parts = StepMemory(400, 400, 800, activations=10**12, passes=10**12 + 1600, update=2000)
    monkeypatch.setattr(scaling, "one_gpu", lambda name: parts)
    needs = [fsdp2_bytes("124m", n) for n in (1, 2, 4, 1_000_000)]
    assert needs[0] - needs[1] == pytest.approx(1600 / 2)
    assert needs[1] - needs[2] == pytest.approx(1600 / 4)
    assert needs[3] > parts.activations


@pytest.mark.slow
def test_twice_the_gpus_take_half_the_time_and_every_shape_can_be_trained():
    for name, overrides in SHAPES.items():
        assert load_run_config(BASE, overrides).rows_per_step % 16 == 0
        run = configured(name)
        assert hours(run, "H100 80GB HBM3", 16) == pytest.approx(hours(run, "H100 80GB HBM3", 8) / 2)
