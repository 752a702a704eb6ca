"""A run that takes a second: the real command line on a small text."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import train.loop
from configs.command import exit_on_bad_input
from tests.processes import exit_code, print_to, run_main
from tests.processes import run_module as run_module
from train.pretrain import main
from train.run import Run

REPOSITORY = Path(__file__).parents[2]


def write_config(folder: Path, **sections) -> Path:
    """A tiny config in its own folder; keyword arguments replace keys of a section or whole top-level keys."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(f"{i} the cat sat on mat number {i * 7 % 13}.\n" for i in range(400)), encoding="utf-8")
    values = {
        "output_dir": str(folder / "runs"),
        "model": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        "data": {"source": {"kind": "files", "path": str(text)}, "tokenizer": {"kind": "byte"}, "sequence_length": 32},
        "train": {"max_steps": 12, "tokens_per_step": 256, "log_every": 1, "checkpoint_every": 4, "precision": "fp32"},
        "eval": {"every": 4, "sample_tokens": 8, "attention": {"every": 0, "max_tokens": 12}},
        "tracking": {"wandb": "disabled"},
    }
    if sections.get("init_from"):  # whose shape and tokenizer these are not
        del values["model"], values["data"]["tokenizer"]
    for key, value in sections.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
    return path


def kill_at(config: Path, step: int, name: str = "KILL") -> int | None:
    """Run pretrain in a process that sends itself a signal when it comes to `step`; its exit code."""
    return exit_code(_pretrain_killed, config, step, name)


def _pretrain_killed(config: Path, step: int, name: str) -> None:
    if name == "HUP":  # which is ignored where the tests were started with nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    torch.set_num_threads(1)
    print_to(config.with_name("killed.txt"))
    sys.argv = ["pretrain", str(config)]
    with stopped_at(step, getattr(signal, f"SIG{name}")):
        exit_on_bad_input(main)


@contextmanager
def at_each_step(action: Callable[[Run], object]) -> Iterator[None]:
    """Training in this process calls action(run) at the beginning of each step, once even if the step is repeated."""
    forward_backward, begun = train.loop.forward_backward, set[int]()

    def watched(run, *arguments):
        if run.state.step not in begun:
            begun.add(run.state.step)
            action(run)
        return forward_backward(run, *arguments)

    train.loop.forward_backward = watched
    try:
        yield
    finally:
        train.loop.forward_backward = forward_backward


@contextmanager
def stopped_at(step: int, number: int = signal.SIGTERM, rank: int = 0) -> Iterator[None]:
    """Training in this process sends itself a signal when it comes to `step`, if it is the process of this rank."""

    def stop(run: Run) -> None:
        if run.state.step == step and run.world.rank == rank:
            os.kill(os.getpid(), number)

    with at_each_step(stop):
        yield


def pretrain(config: Path, *overrides, code: int = 0, script: Callable[[], int] = main) -> subprocess.CompletedProcess:
    """`python -m train.pretrain config overrides…` in this process; the exit code must be `code`.

    script: the main of another module, for example train.sft's.
    """
    done = run_main(script, config, *overrides)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def refusal(config: Path, *overrides, script: Callable[[], int] = main) -> str:
    """What a run says that is refused: exit code 2, and one line that begins with "error: "."""
    said = pretrain(config, *overrides, code=2, script=script).stderr
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def metrics(run: Path, *, without_clocks: bool = True) -> list[dict]:
    """metrics.jsonl, without the figures that a clock or the system decides."""
    clocks = (
        {"time_s", "tokens_per_s", "data_wait_share", "memory_gb", "tflops", "eval_s", "save_s"}
        if without_clocks
        else set()
    )
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in clocks} for line in lines]
