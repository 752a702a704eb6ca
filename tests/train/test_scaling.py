"""Estimates of bigger models: docs/scaling_out.md has what the formulas say, and these add up."""

import re
from pathlib import Path

import pytest

from tests.train.helpers import run_module
from train.budget import step_memory
from train.config import load_run_config
from train.scaling import BASE, SHAPES, configured, hours, memory_per_process

REMEDY = "put what `python -m train.scaling` prints between the marks"


def test_the_page_has_the_tables_that_the_command_prints():
    page = Path("docs/scaling_out.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- python -m train.scaling -->\n(.*?)<!-- end -->", page, re.DOTALL)
    done = run_module("train.scaling")
    assert found is not None
    assert found[1].strip() == done.stdout.strip(), REMEDY


@pytest.mark.parametrize("name", SHAPES)
def test_ddp_is_the_budget_of_one_gpu_and_fsdp2_saves_the_lasting_parts_alone(name):
    run = configured(name)
    parts = step_memory(run, 4, half=True, device="cuda")
    assert memory_per_process(run, 4, 8)["ddp"] == parts["at the fullest moment"]
    lasting = parts["weights"] + parts["gradients"] + parts["optimizer state"]
    needs = [memory_per_process(run, 4, n)["fsdp2"] for n in (1, 2, 4, 1_000_000)]
    assert needs[0] - needs[1] == pytest.approx(lasting / 2)
    assert needs[1] - needs[2] == pytest.approx(lasting / 4)
    assert needs[3] > parts["activations"]  # which nobody shares


def test_twice_the_gpus_take_half_the_time_and_every_shape_can_be_trained():
    for name, overrides in SHAPES.items():
        assert load_run_config(BASE, overrides).rows_per_step % 16 == 0
        run = configured(name)
        assert hours(run, "H100 80GB HBM3", 16) == pytest.approx(hours(run, "H100 80GB HBM3", 8) / 2)
