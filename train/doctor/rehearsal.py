"""The things that training does besides computing: save and resume, compile, report to wandb. Each is really done.

Compiling and wandb may hang, so each is tried in a process of its own, which ends when its time is over.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from configs.command import InputError
from train.config import RunConfig
from train.doctor.verdict import Verdict, in_short

ROOT = Path(__file__).parents[2]
SAVED = ("model.safetensors", "training/optimizer.safetensors")
STEPS = 4


def save_and_resume(kind: str, precision: str, folder: Path) -> Verdict:
    """Train a tiny run, whole and in two halves: every weight must come out equal to the last bit."""
    what = "save and resume"
    (folder / "text.txt").write_text("".join(f"{i} cats sat on {i % 7} mats.\n" for i in range(300)), encoding="utf-8")
    before = time.perf_counter()
    try:
        for name, steps in (("whole", STEPS), ("halves", STEPS // 2), ("halves", STEPS)):
            _train(_tiny(folder, name, steps, kind, precision))
    except Exception as error:
        return Verdict("FAIL", what, in_short(error), is_fatal=True)
    whole, halves = (folder / name / f"checkpoints/step_{STEPS:08}" for name in ("whole", "halves"))
    took = f"{time.perf_counter() - before:.1f} s for {2 * STEPS} steps and three checkpoints"
    if all((whole / file).read_bytes() == (halves / file).read_bytes() for file in SAVED):
        return Verdict("ok", what, f"in two halves or whole, the weights are equal to the last bit ({took})")
    if kind == "cpu":
        return Verdict("FAIL", what, "a resumed run gave other weights than one that never stopped", is_fatal=True)
    return Verdict("note", what, f"works, but not to the last bit: kernels of {kind} add up in changing order ({took})")


def _tiny(folder: Path, name: str, steps: int, kind: str, precision: str) -> RunConfig:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    train = {
        "max_steps": steps,
        "tokens_per_step": 256,
        "schedule": "constant",
        "checkpoint_every": 0,
        "compile": False,
    }
    values: dict[str, Any] = {
        "name": name,
        "output_dir": str(folder),
        "model": {**shape, "max_position_embeddings": 64, "hidden_dropout": 0.1},
        "data": {
            "source": {"kind": "files", "path": str(folder / "text.txt")},
            "tokenizer": {"kind": "byte"},
            "sequence_length": 64,
        },
        "train": {**train, "device": kind, "precision": precision},
        "eval": {"hooks": []},
        "tracking": {"wandb": "disabled"},
    }
    return RunConfig.model_validate(values)


def _train(config: RunConfig) -> None:
    """`python -m train.pretrain`, without its lines."""
    from train.pretrain import run

    quiet = io.StringIO()
    with redirect_stdout(quiet), redirect_stderr(quiet):
        code = run(config, "train.doctor")
    if code > 128:
        raise KeyboardInterrupt
    if code:
        raise InputError(f"a run of {config.max_steps} steps ended with exit code {code}")


# ---------------------------------------------------------------------------------------------------------
# in a process of their own


class Child:
    """A function of this file in another process; it is killed where the `with` ends."""

    def __init__(self, function: str, argument: str, folder: Path):
        self.began, self._log = time.perf_counter(), folder / f"{function}.txt"
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled"),  # nothing that was compiled before
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        code = f"from train.doctor.rehearsal import {function}; {function}({argument!r})"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def fault(self, patience_s: float) -> str | None:
        """ "" when it ended well, what went wrong where it did not, None if it did not end in time."""
        try:
            code = self._process.wait(max(0.0, patience_s))
        except subprocess.TimeoutExpired:
            return None
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return "" if code == 0 else (said[-1][:160] if said else f"it ended with exit code {code}")

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began


def compile_verdict(kind: str, child: Child | None, refusal: str, patience_s: float) -> Verdict:
    """child: a process that runs `compile_something`; refusal: why there is none."""
    what = "torch.compile"
    if child is None:
        return Verdict("--", what, f"{refusal}; training works without it")
    fault = child.fault(patience_s)
    if fault is None:
        return Verdict("note", what, f"not done within {child.seconds:.0f} s; training works without it")
    if fault:
        return Verdict("FAIL", what, f"{fault}; auto leaves it off", {f"compile {kind}": fault})
    return Verdict("ok", what, "something small was compiled, and gives the same gradients")


def wandb_verdict(mode: str, child: Child | None, patience_s: float) -> Verdict:
    """child: a process that runs `start_wandb`; none where it is disabled."""
    if child is None:
        return Verdict("--", "wandb", "disabled in this config")
    fault = child.fault(patience_s)
    advice = "training works without it; tracking.wandb=disabled leaves it out"
    if fault is None:
        return Verdict("note", "wandb", f"did not start within {child.seconds:.0f} s; {advice}")
    if fault:
        return Verdict("note", "wandb", f"{fault}; {advice}")
    where = "nothing leaves this machine" if mode == "offline" else "a key is there; the network was not tried"
    return Verdict("ok", "wandb", f"{mode}: a run started and ended; {where}")


def compile_something(kind: str) -> None:
    """A layer's arithmetic, compiled and not: forward and backward must agree."""
    import torch
    from torch import Tensor

    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(64, 64, generator=generator).to(kind).requires_grad_() for _ in range(2))

    def work(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.silu(x @ w).softmax(-1).square().sum()

    plain, compiled = (torch.autograd.grad(call(x, w), [x, w]) for call in (work, torch.compile(work, dynamic=False)))
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(compiled, plain, strict=True))
    if not error <= 1e-3:
        sys.exit(f"the compiled gradient differs by {error:.0e}")


def start_wandb(mode: str) -> None:
    """A run that begins and ends, offline; with mode online, the key must be there."""
    import wandb

    if mode == "online" and not wandb.api.api_key:
        sys.exit("online, but no API key: wandb login, or tracking.wandb=offline")
    run = wandb.init(project="headlight", mode="offline", settings=wandb.Settings(silent=True))
    run.log({"step": 0})
    run.finish()
