"""`--help` of the commands that train, and what they say without a config."""

import pytest

from tests.processes import run_module
from tests.train.helpers import REPOSITORY
from train.config import load_run_config
from train.pretrain import AFTERWARDS, METHODS, MOST_CHANGED

SHIPPED = sorted((REPOSITORY / "configs").glob("*.yaml"))


@pytest.mark.parametrize(
    ("script", "method"), [("train.pretrain", ""), *((f"train.{method}", method) for method in METHODS)]
)
def test_help_lists_the_configs_the_main_keys_and_where_a_run_goes(script, method):
    done = run_module(script, "--help")
    assert done.returncode == 0
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  configs/")]
    of_a_method = [file for file in SHIPPED if any(word in file.name for word in METHODS)]
    own = [file for file in of_a_method if method in file.name] if method else sorted({*SHIPPED} - {*of_a_method})
    assert listed == [f"configs/{file.name}" for file in own]
    assert listed
    for example in MOST_CHANGED:
        assert f"\n  {example} " in done.stdout
    assert AFTERWARDS.strip() in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_every_example_of_the_help_is_accepted():
    others = [example for example in MOST_CHANGED if not example.startswith(("train.max_minutes", "name"))]
    config = load_run_config(REPOSITORY / "configs/base.yaml", ["name=mine", *others])
    assert (config.name, config.data.source.kind, config.train.max_steps) == ("mine", "files", 500)
    assert load_run_config(REPOSITORY / "configs/base.yaml", ["train.max_minutes=10"]).max_steps is None


@pytest.mark.parametrize("arguments", [[], ["data.source=my.txt"]])
def test_without_a_config_it_says_what_to_type(arguments):
    done = run_module("train.sft", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: name a config: python -m train.sft configs/sft_demo.yaml init_from=runs/demo ("
    )
    assert done.stderr.count("\n") == 1
