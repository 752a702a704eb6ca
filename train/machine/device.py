"""Where does a run compute, and with which attention? What `auto` stands for on this machine, and why.

The precision is chosen in train/machine/precision.py. What train.doctor found wrong here, `auto` leaves out.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

from configs.command import InputError
from model.backends.choice import Situation, choose_attention, choose_device, why_not
from train.config import RunConfig
from train.machine.findings import recall
from train.machine.precision import AS_BEFORE, avoided, dtype_of, resolve_precision
from train.machine.processor import cpu_capabilities

FEW_STEPS = 100  # for fewer, compiling is not even considered
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 2**31 - 1


@dataclass(frozen=True)
class Device:
    """The resolved choices; `notes` says in words what was chosen and why. attention: a backend's name.

    compile: "auto" is decided when a step has been timed (train.compilation). threads: of a CPU; None: as they are.
    """

    device: torch.device
    precision: str
    compile: bool | Literal["auto"]
    attention: str
    notes: tuple[str, ...]
    threads: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of matrix products."""
        return dtype_of(self.precision)

    def autocast(self) -> AbstractContextManager:
        """16-bit matrix products over fp32 weights, or nothing."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def resolve_device(run_config: RunConfig, resolved: dict[str, Any] | None = None) -> Device:
    """Decide what `auto` stands for. resolved: what a resumed run had decided; it is kept where it can be.

    With several processes the first one decides for all.

    Raises InputError for a device or a precision that you ask for and this machine does not have.
    """
    config = run_config.train
    try:
        kind = choose_device(config.device).type
    except ValueError as error:
        raise InputError(f"train.device is {error}") from None
    source = "asked for" if config.device != "auto" else "auto"
    has_begun_here = resolved is not None and resolved.get("device") == kind
    if config.device == "auto" and not has_begun_here and (fault := recall().fault("device", kind)):
        kind, source = "cpu", f"auto: not {kind}: {fault}"
    earlier = resolved if resolved and resolved.get("device") == kind else {}
    precision, reason = resolve_precision(config.precision, kind, earlier.get("precision"))
    compiled, why = config.compile, "asked for"
    if compiled == "auto":
        compiled, why = earlier.get("compile", "auto"), AS_BEFORE
        steps = run_config.max_steps
        if compiled == "auto" and steps is not None and steps < FEW_STEPS:
            compiled, why = False, f"auto: {steps} steps are too few for it"
    attention, choice = resolve_attention(run_config, kind, precision, compiled is not False, earlier.get("attention"))
    untested = "; not tested: no such machine was available" if kind == "mps" else ""
    notes = [
        f"device {kind} ({source}{untested})",
        f"precision {precision} ({reason})",
        f"attention {attention} ({choice})",
    ]
    if compiled != "auto":
        notes.append(f"compile {'on' if compiled else 'off'} ({why})")
    threads = _earlier_threads(earlier.get("threads")) if kind == "cpu" else None
    if threads is not None:
        notes.append(f"threads {threads} ({AS_BEFORE})")
    return Device(torch.device(kind), precision, compiled, attention, tuple(notes), threads)


def _earlier_threads(earlier: int | None) -> int | None:
    """As many threads as this run began with, if nobody asks for another number and there are as many cores."""
    asked = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys()
    if earlier is None or asked or earlier == torch.get_num_threads() or earlier > (os.cpu_count() or 1):
        return None
    return earlier


def resolve_attention(
    run_config: RunConfig, kind: str, precision: str, compiled: bool, earlier: str | None = None
) -> tuple[str, str]:
    """The backend that trains, and why. Raises InputError for one that you ask for and that cannot serve this run."""
    model, data = run_config.model, run_config.data
    situation = Situation(
        device=kind,
        dtype=dtype_of(precision),
        head_dim=model.head_size,
        value_dim=model.value_size,
        num_key_value_groups=model.num_key_value_groups,
        dropout=model.attention_dropout,
        gradients=True,
        documents=data.isolate_documents,
        windows=model.sliding_window is not None,
        compiled=compiled,
    )
    if model.attn_implementation == "auto":
        if earlier is not None and why_not(earlier, situation) is None:
            return earlier, AS_BEFORE
        backend, reason = choose_attention(situation, avoided(recall(), kind, precision))
        return backend, f"auto: {reason}"
    if problem := why_not(model.attn_implementation, situation):
        raise InputError(f"model.{problem}")
    return model.attn_implementation, "asked for"


def machine(device: torch.device) -> str:
    """The GPU, or the processor and the number of threads, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    name = cpu_capabilities().get("cpu_name") or platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


def keep_freed_memory() -> bool:
    """Ask glibc not to give freed blocks back to the system; returns whether it agreed. Other C libraries do nothing.

    By default glibc returns large blocks and asks for them again in every step, and the system clears each page first.
    That is 20,000 to 70,000 page faults a step of a 6 x 256 model, 4 to 9 % of its time (EXPERIMENTS.md). In return the
    process holds the most that it ever needed at once. Call it before the first step.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, for example musl
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT))
