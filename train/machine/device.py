"""Where does a run compute, and in which precision? What `auto` stands for on this machine, and why."""

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

AS_BEFORE = "auto: as this run began"
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
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision, torch.float32)

    def autocast(self) -> AbstractContextManager:
        """16-bit matrix products over fp32 weights, or nothing."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def resolve_device(run_config: RunConfig, resolved: dict[str, Any] | None = None) -> Device:
    """Decide what `auto` stands for. resolved: what a resumed run had decided; it is kept where it can be.

    Raises InputError for a device or a precision that you ask for and this machine does not have.
    """
    config = run_config.train
    try:
        kind = choose_device(config.device).type
    except ValueError as error:
        raise InputError(f"train.device is {error}") from None
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
        f"device {kind} ({'asked for' if config.device != 'auto' else 'auto'}{untested})",
        f"precision {precision} ({reason})",
        f"attention {attention} ({choice})",
    ]
    if compiled != "auto":
        notes.append(f"compile {'on' if compiled else 'off'} ({why})")
    threads = _earlier_threads(earlier.get("threads")) if kind == "cpu" else None
    if threads is not None:
        notes.append(f"threads {threads} ({AS_BEFORE})")
    return Device(torch.device(kind), precision, compiled, attention, tuple(notes), threads)


def resolve_precision(wanted: str, kind: str, earlier: str | None = None) -> tuple[str, str]:
    """The precision, and why. Raises InputError for one that the device does not have."""
    if wanted == "auto":
        is_kept = earlier is not None and _lacks(earlier, kind) is None
        return (str(earlier), AS_BEFORE) if is_kept else _quick_precision(kind)
    if problem := _lacks(wanted, kind):
        raise InputError(f"train.precision is {wanted}, {problem}")
    return wanted, "asked for"


def _lacks(precision: str, kind: str) -> str | None:
    """Why a device cannot train in a precision, and what to use instead; None if it can."""
    if precision == "tf32" and kind != "cuda":
        return f"which needs CUDA: on {kind} use auto or fp32"
    if precision == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "but this GPU has no bf16 instructions: use auto, fp16 or fp32"
    if precision in ("bf16", "fp16") and kind == "mps":
        return "which does not train on mps: use auto or fp32"
    return None


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
        dtype={"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32),
        head_dim=model.head_size,
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
        backend, reason = choose_attention(situation)
        return backend, f"auto: {reason}"
    if problem := why_not(model.attn_implementation, situation):
        raise InputError(f"model.{problem}")
    return model.attn_implementation, "asked for"


def _quick_precision(kind: str) -> tuple[str, str]:
    if kind == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", "auto: this GPU computes in bf16") if supported else ("fp16", "auto: this GPU lacks bf16")
    capabilities = cpu_capabilities() if kind == "cpu" else {}
    if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"):
        return "bf16", "auto: this CPU has bf16 instructions"
    return "fp32", "auto: bf16 would be slow here"


def cpu_capabilities() -> dict[str, Any]:
    """What PyTorch knows about the processor; empty where that is unknown."""
    return dict(getattr(torch.cpu, "get_capabilities", dict)())


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
