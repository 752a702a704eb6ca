"""A run that takes a second: the real command line on a small text."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from configs.loader import exit_on_bad_input
from train.pretrain import main

REPOSITORY = Path(__file__).parents[2]


def write_config(folder: Path, **sections) -> Path:
    """A tiny config in its own folder; keyword arguments replace keys of a section or whole top-level keys."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(f"{i} the cat sat on mat number {i * 7 % 13}.\n" for i in range(400)), encoding="utf-8")
    values = {
        "output_dir": str(folder / "runs"),
        "model": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        "data": {"source": {"kind": "files", "path": str(text)}, "tokenizer": {"kind": "byte"}, "sequence_length": 32},
        "train": {"max_steps": 12, "tokens_per_step": 256, "log_every": 1, "checkpoint_every": 4, "precision": "fp32"},
        "eval": {"every": 4, "sample_tokens": 8, "attention": {"every": 0, "max_tokens": 12}},
        "tracking": {"wandb": "disabled"},
    }
    for key, value in sections.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
    return path


def run_module(module: str, *arguments, timeout: float = 300) -> subprocess.CompletedProcess:
    """`python -m module arguments…` in the repository, as a process of its own, output captured."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout, env=dict(os.environ)
    )


KILLER = """
import os, signal, train.loop as loop
step = loop.training_step
def killed(run, *rest, **more):
    if run.state.step == {at}:
        os.kill(os.getpid(), signal.SIG{name})
    return step(run, *rest, **more)
loop.training_step = killed
from configs.loader import exit_on_bad_input
from train.pretrain import main
exit_on_bad_input(main)
"""


def kill_at(config: Path, step: int, name: str = "KILL") -> int:
    """Run pretrain in a process that sends itself a signal when it comes to `step`; its exit code."""
    command = [sys.executable, "-c", KILLER.format(at=step, name=name), str(config)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=300).returncode


@dataclass
class Done:
    stdout: str
    stderr: str


def pretrain(config: Path, *overrides, code: int = 0, script: Callable[[], int] = main) -> Done:
    """`python -m train.pretrain config overrides…` in this process; the exit code must be `code`.

    script: the main of another module, for example train.sft's.
    """
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["pretrain", str(config), *map(str, overrides)]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stopped:
            exit_on_bad_input(script)
    finally:
        sys.argv = argv
    assert stopped.value.code == code, out.getvalue() + err.getvalue()
    return Done(out.getvalue(), err.getvalue())


def metrics(run: Path, *, without_clocks: bool = True) -> list[dict]:
    """metrics.jsonl, without the figures that a clock or the system decides."""
    clocks = (
        {"time_s", "tokens_per_s", "data_wait_share", "memory_gb", "tflops", "eval_s", "save_s"}
        if without_clocks
        else set()
    )
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in clocks} for line in lines]
