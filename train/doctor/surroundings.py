"""Python, packages, memory, disk, and what else the machine is doing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from configs.command import InputError
from train.config import RunConfig
from train.doctor.verdict import Verdict, in_short
from train.fits import check_disk, size_in_words
from train.machine.device import machine
from train.machine.hardware import all_memory, device_memory
from train.machine.load import in_words
from train.machine.processor import cpu_kernels

PYTHON = SpecifierSet(">=3.11,<3.14")
ROOT = Path(__file__).parents[2]
SHOWN = ("torch", "datasets", "tokenizers", "wandb")
PROBE_BYTES = 20_000_000


def python() -> Verdict:
    """Whether Headlight is made for this Python."""
    version = platform.python_version()
    if version in PYTHON:
        return Verdict("ok", "Python", f"{version}, {platform.system()} {platform.machine()}")
    return Verdict("FAIL", "Python", f"{version}: use one that is {PYTHON}", is_fatal=True)


def packages() -> Verdict:
    """Whether everything in requirements.txt is installed, in a version that it allows."""
    missing, found = [], {}
    for line in _requirements():
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            found[wanted.name] = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{wanted.name} is missing")
            continue
        if not wanted.specifier.contains(found[wanted.name], prereleases=True):
            missing.append(f"{wanted.name} {found[wanted.name]} is not {wanted.specifier}")
    if missing:
        advice = "python -m pip install -r requirements.txt"
        return Verdict("FAIL", "packages", f"{', '.join(missing)}: {advice}", is_fatal=True)
    shown = ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found)
    return Verdict("ok", "packages", f"{shown}, and {len(found) - len(SHOWN)} more")


def _requirements() -> list[str]:
    file = ROOT / "requirements.txt"
    if file.is_file():
        lines = (line.partition("  #")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if line and not line.startswith("#")]
    return [line for line in importlib.metadata.requires("headlight") or [] if "extra ==" not in line]


def device(kind: str) -> Verdict:
    """Whether the device computes at all."""
    try:
        ones = torch.ones(8, 8, device=kind, requires_grad=True)
        (ones @ ones).sum().backward()
        found = float(ones.grad.sum()) if ones.grad is not None else 0.0
        problem = "" if found == 1024 else f"a small product gave {found:g}, not 1024"
        name = machine(torch.device(kind))
    except Exception as error:
        problem = in_short(error)
    if problem:
        return Verdict("FAIL", f"device {kind}", problem, {f"device {kind}": problem}, is_fatal=kind == "cpu")
    name += f", PyTorch's kernels for {cpu_kernels()}" if kind == "cpu" else ""
    return Verdict("ok", f"device {kind}", name)


def memory(kind: str) -> Verdict:
    """What there is, and what is free of it."""
    everything, free = all_memory(kind), device_memory(kind)
    if everything is None or free is None:
        return Verdict("note", "memory", "unknown")
    return Verdict(
        "ok", "memory", f"{size_in_words(free[0])} ({free[1]}) of {size_in_words(everything[0])} ({everything[1]})"
    )


def load(others: float) -> Verdict:
    """Whether other programs have the cores. others: the share that they use."""
    if busy := in_words(others):
        return Verdict("note", "load", f"{busy}: end them, or training takes longer")
    return Verdict("ok", "load", "other programs leave the CPU alone")


def disk(config: RunConfig, folder: Path) -> Verdict:
    """Whether the run directory can be written, how quickly, and whether there is room. folder: where to try."""
    try:
        check_disk(config)
        took = _seconds_to_write(folder)
    except InputError as error:
        return Verdict("FAIL", "disk", str(error), is_fatal=True)
    except OSError as error:
        return Verdict("FAIL", "disk", f"{folder} cannot be written ({error.strerror})", is_fatal=True)
    free = size_in_words(shutil.disk_usage(folder).free)
    return Verdict("ok", "disk", f"{free} free beside {config.output_dir}, {PROBE_BYTES / took / 1e6:,.0f} MB/s")


def _seconds_to_write(folder: Path) -> float:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        before = time.perf_counter()
        file.write(bytes(PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        return max(time.perf_counter() - before, 1e-9)
