"""What the doctor tries. A check returns what it found, in words, or raises what is wrong.

Every backend and precision is compared with float64, forward and backward; a tiny run is really saved and resumed, and
something small is really compiled.
"""

from __future__ import annotations

import copy
import importlib.metadata
import io
import math
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from packaging.requirements import Requirement
from torch import Tensor

from configs.command import InputError
from model import LanguageModel, ModelConfig
from model.backends.choice import Situation, allowed_error, why_not, worst_error
from train.config import RunConfig
from train.fits import check_disk, check_memory, size_in_words
from train.machine.compilation import compiler_problem
from train.machine.device import dtype_of, lacks, resolve_device
from train.machine.hardware import all_memory, busy_in_words, cpu_kernels, device_memory, machine
from train.machine.machine_cache import recall

ROOT = Path(__file__).parents[2]
# of the length of the gradient: several times what was measured on a CPU (4e-7, 2e-2, 2e-3), far below what a wrong
# number makes; tf32 has the digits of fp16
ALLOWED = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 1e-1, "fp16": 2e-2}
SMALL = ModelConfig(vocab_size=192, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
COMPILE_S = 35.0  # after that, compiling is given up
STEPS = 4


class Unwell(Exception):
    """A verdict other than ok. state: "--": not for this machine | note: training works, but look at it | FAIL.

    faults: what `auto` must not take from here on, as machine_cache.Findings keeps it.
    """

    def __init__(self, state: Literal["--", "note", "FAIL"], said: str, faults: dict[str, str] | None = None):
        super().__init__(said)
        self.state, self.faults = state, faults or {}


def in_short(error: Exception) -> str:
    """An exception in a few words: its kind, and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"


# ---------------------------------------------------------------------------------------------------------
# what is there


def packages() -> str:
    """Whether this Python and everything in requirements.txt is there, in a version that Headlight is made for."""
    versions, wrong = {"python": platform.python_version()}, []
    for wanted in requirements():
        if wanted.name not in versions:
            try:
                versions[wanted.name] = importlib.metadata.version(wanted.name)
            except importlib.metadata.PackageNotFoundError:
                wrong.append(f"{wanted.name} is missing")
                continue
        if not wanted.specifier.contains(versions[wanted.name], prereleases=True):
            wrong.append(f"{wanted.name} {versions[wanted.name]} is not {wanted.specifier}")
    if wrong:
        raise Unwell("FAIL", f"{', '.join(wrong)}: python -m pip install -r requirements.txt")
    return f"{platform.python_version()}, {platform.system()} {platform.machine()}, torch {torch.__version__}"


def requirements() -> list[Requirement]:
    """Python itself, and the lines of requirements.txt; of an installed package, what it says that it needs."""
    if not (ROOT / "requirements.txt").is_file():
        return [Requirement(text) for text in importlib.metadata.requires("headlight") or [] if "extra ==" not in text]
    python = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    texts = [line.partition("#")[0].strip() for line in lines]
    return [Requirement(text) for text in (f"python{python}", *texts) if text]


def device(kind: str) -> str:
    """Whether the device computes at all."""
    ones = torch.ones(8, 8, device=kind, requires_grad=True)
    (ones @ ones).sum().backward()
    assert ones.grad is not None
    if (total := float(ones.grad.sum())) != 1024:
        raise Unwell("FAIL", f"a small product gave {total:g}, not 1024")
    return machine(torch.device(kind)) + (f", PyTorch's kernels for {cpu_kernels()}" if kind == "cpu" else "")


def room(config: RunConfig, kind: str, folder: Path, others: float) -> str:
    """Memory, the disk of the run directory (where `folder` is), and whether other programs have the cores.

    others: the share of them that they use. Raises InputError if the run does not fit on the disk.
    """
    check_disk(config)
    sizes = [device_memory(kind), all_memory(kind)]
    memory = " of ".join(f"{size_in_words(there[0])} ({there[1]})" for there in sizes if there) or "unknown memory"
    said = f"{memory}; {size_in_words(shutil.disk_usage(folder).free)} free beside {config.output_dir}"
    if busy := busy_in_words(others):
        raise Unwell("note", f"{said}; {busy}: end them, or training takes longer")
    return f"{said}; other programs leave the CPU alone"


def this_config(config: RunConfig) -> str:
    """What it stands for here. Raises InputError where it cannot train, or asks for what computes wrong numbers."""
    resolved = resolve_device(config)
    check_memory(config, resolved, 1)
    kind, precision, attention = resolved.device.type, resolved.precision, resolved.attention
    if fault := recall().fault("precision", kind, precision):
        raise InputError(f"train.precision is {precision}: {fault}: use auto")
    if fault := recall().fault("attention", kind, attention, precision):
        raise InputError(f"model.attn_implementation is {attention}: {fault}: use auto")
    return "; ".join(resolved.notes)


# ---------------------------------------------------------------------------------------------------------
# does it compute the right numbers?


def precision(name: str, kind: str) -> str:
    """A small model's loss and gradient, with the formula as attention, on packed rows and plain ones."""
    if problem := lacks(name, kind):
        raise Unwell("--", problem)
    error = max(_model_error(name, kind, packed) for packed in (False, True))
    if not error <= ALLOWED[name]:
        raise Unwell("FAIL", f"the gradient differs from float64 by {error:.0e}")
    return f"a model's gradient is right within {error:.0e}, packed or not"


def _model_error(name: str, kind: str, packed: bool) -> float:
    """Length of the difference of the gradients, as a share of the length in float64; infinity for NaN."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lm = LanguageModel(SMALL).train()
        for parameter in lm.parameters():  # at first the output projections are zero, and hide what attention does
            parameter.data += 0.1 * torch.randn_like(parameter)
        ids = torch.randint(0, 192, (2, 96))
    lm.set_attn_implementation("eager")
    documents = (torch.arange(96) // 40).expand(2, 96) if packed else None
    exact = copy.deepcopy(lm).double()
    logits = exact(ids, document_ids=documents)
    exact_loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    lm.to(kind)
    half, before = dtype_of(name).itemsize == 2, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else before)
    try:
        with torch.autocast(kind, dtype_of(name)) if half else nullcontext():
            there = documents.to(kind) if documents is not None else None
            loss, _ = lm(ids.to(kind), labels=ids.to(kind), document_ids=there)
        expected, found = _gradient(exact_loss, exact), _gradient(loss, lm)
    finally:
        torch.set_float32_matmul_precision(before)
    error = float((found - expected).norm() / expected.norm())
    error = max(error, abs(float(loss.detach()) / float(exact_loss.detach()) - 1))
    return error if math.isfinite(error) else math.inf


def _gradient(loss: Tensor, lm: LanguageModel) -> Tensor:
    """Every number of the gradient, in float64 on the CPU."""
    return torch.cat([g.detach().cpu().double().flatten() for g in torch.autograd.grad(loss, list(lm.parameters()))])


def attention(name: str, kind: str, model: ModelConfig) -> str:
    """A backend on this model's heads: in each precision, rows of one document and of several."""
    errors: dict[str, float] = {}
    faults: dict[str, str] = {}
    refused = ""
    for precision in ("fp32", "bf16", "fp16"):
        for documents in (False, True):
            here = Situation(
                kind,
                dtype_of(precision),
                model.head_size,
                model.num_key_value_groups,
                gradients=True,
                documents=documents,
                value_dim=model.value_size,
            )
            if problem := lacks(precision, kind) or why_not(name, here):
                refused = refused or problem
                continue
            try:
                error = worst_error(name, here)
                fault = "" if error <= allowed_error(here.dtype) else f"differs from float64 by {error:.0e}"
            except Exception as raised:
                fault = in_short(raised)
            if fault:
                faults[f"attention {kind} {name} {precision}"] = fault
            else:
                errors[precision] = max(error, errors.get(precision, 0.0))
    if faults:
        listed = ", ".join(f"{key.split()[-1]}: {fault}" for key, fault in faults.items())
        raise Unwell("FAIL", listed, faults)
    if not errors:
        raise Unwell("--", refused)
    return ", ".join(f"{precision} {error:.0e}" for precision, error in errors.items())


# ---------------------------------------------------------------------------------------------------------
# what training does besides computing


def save_and_resume(kind: str, precision: str, folder: Path) -> str:
    """Train a tiny run, whole and in two halves: every weight must come out equal to the last bit."""
    from train.pretrain import run

    text = folder / "text.txt"
    text.write_text("".join(f"{i} cats sat on {i % 7} mats.\n" for i in range(300)), encoding="utf-8")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    steps_of = {"tokens_per_step": 256, "schedule": "constant", "checkpoint_every": 0, "compile": False}
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "model": {**shape, "max_position_embeddings": 64, "hidden_dropout": 0.1},
        "data": {
            "source": {"kind": "files", "path": str(text)},
            "tokenizer": {"kind": "byte"},
            "sequence_length": 64,
        },
        "eval": {"hooks": []},
        "tracking": {"wandb": "disabled"},
    }
    for name, steps in (("whole", STEPS), ("halves", STEPS // 2), ("halves", STEPS)):
        train = {**steps_of, "max_steps": steps, "device": kind, "precision": precision}
        quiet = io.StringIO()
        with redirect_stdout(quiet), redirect_stderr(quiet):
            code = run(RunConfig.model_validate({**values, "name": name, "train": train}), "train.doctor")
        if code > 128:
            raise KeyboardInterrupt
        if code:
            raise Unwell("FAIL", f"a run of {steps} steps ended with exit code {code}")
    whole, halves = (folder / name / f"checkpoints/step_{STEPS:08}" for name in ("whole", "halves"))
    files = ("model.safetensors", "training/optimizer.safetensors")
    if all((whole / file).read_bytes() == (halves / file).read_bytes() for file in files):
        return "in two halves or whole, the weights are equal to the last bit"
    if kind == "cpu":
        raise Unwell("FAIL", "a resumed run gave other weights than one that never stopped")
    raise Unwell("note", f"works, but not to the last bit: kernels of {kind} add up in changing order")


def compiling(kind: str, folder: Path) -> str:
    """Something small, in a process of its own, because a compiler may hang."""
    if problem := compiler_problem(kind):
        raise Unwell("--", f"{problem}; training works without it")
    # nothing that was compiled before
    fresh = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    code = f"from train.doctor.checks import compile_something; compile_something({kind!r})"
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | fresh,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=COMPILE_S,
        )
    except subprocess.TimeoutExpired:
        raise Unwell("note", f"not done within {COMPILE_S:.0f} s; training works without it") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise Unwell("FAIL", lines[-1][:160] if lines else f"it ended with exit code {done.returncode}")
    return "something small was compiled, and gives the same gradients"


def compile_something(kind: str) -> None:
    """A layer's arithmetic, compiled and not: forward and backward must agree."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(64, 64, generator=generator).to(kind).requires_grad_() for _ in range(2))

    def work(x: Tensor, w: Tensor) -> Tensor:
        return F.silu(x @ w).softmax(-1).square().sum()

    plain, compiled = (torch.autograd.grad(call(x, w), [x, w]) for call in (work, torch.compile(work, dynamic=False)))
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(compiled, plain, strict=True))
    if not error <= 1e-3:
        sys.exit(f"the compiled gradient differs by {error:.0e}")
