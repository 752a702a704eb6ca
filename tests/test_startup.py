"""Every command says what it is for, and imports no heavy library that it may not need."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("model", "storyworld", "data", "eval", "train", "serve", "benchmarks", "notebooks")
HEAVY = "fastapi transformers datasets matplotlib wandb nbformat tensorboard sympy torch.distributed.tensor".split()
COMMANDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
    and path.name != "one_file.py"  # it has the whole of Headlight, and the picture, in sight
    and not path.stem.isdigit()  # notebooks/broken/3.py: `python -m notebooks.broken 3` runs it
    and path.name != "ending.py"  # it runs as the end of notebooks/mine/my_model.py
)
QUICK = ("train.pretrain", "eval.attention", "serve")


@pytest.mark.parametrize(
    "module", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in COMMANDS]
)
def test_help_names_the_command_and_imports_nothing_heavy(module):
    asked = [sys.executable, "-X", "importtime", "-m", module, "--help"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: python -m {module} ")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert imported.isdisjoint(HEAVY)
