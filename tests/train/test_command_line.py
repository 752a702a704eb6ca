"""`--help` of the commands that train, and what they say without a config."""

import re

import pytest

from tests.processes import run_module
from tests.train.helpers import REPOSITORY
from train.config import load_run_config
from train.pretrain import MORE_HELP


@pytest.mark.parametrize("method", ["pretrain", "sft", "dpo", "grpo", "distill"])
def test_help_shows_the_main_keys_and_where_a_run_goes(method):
    done = run_module(f"train.{method}", "--help")
    assert done.returncode == 0
    assert MORE_HELP.strip() in done.stdout


def test_every_example_of_the_help_is_accepted():
    examples = re.findall(r"[\w.]+=[\w./]+", MORE_HELP.partition("All keys")[0])
    config = load_run_config(REPOSITORY / "configs/base.yaml", examples)
    assert (config.name, config.data.source.kind, config.train.max_steps) == ("mine", "files", 500)


@pytest.mark.parametrize("arguments", [[], ["data.source=my.txt"]])
def test_without_a_config_it_says_what_to_type(arguments):
    done = run_module("train.sft", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: name a config: python -m train.sft configs/sft_demo.yaml init_from=runs/demo ("
    )
    assert done.stderr.count("\n") == 1
