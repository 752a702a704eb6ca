"""Where does a run compute, in which precision, and with which attention? What `auto` stands for here, and why.

What train.doctor found wrong on this machine, `auto` leaves out (train/machine/machine_cache.py). A run that is resumed
keeps what it has taken: the last bits of its sums depend on it, and on the machine (`decided_by`).
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

from configs.command import InputError
from model.backends.choice import BACKENDS, Situation, choose_attention, choose_device, why_not
from train.config import RunConfig
from train.machine.hardware import cpu_capabilities, cpu_instructions, cpu_kernels, machine
from train.machine.machine_cache import bf16_speed, recall

FEW_STEPS = 100  # for fewer, compiling is not even considered
BF16_PAYS = 1.1  # times as fast as fp32 on a CPU; below it, bf16 is not worth its rounding
AS_BEFORE = "auto: as this run began"


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
    before = resolved or {}
    source = "asked for" if config.device != "auto" else "auto"
    if source == "auto" and before.get("device") != kind and (fault := recall().fault("device", kind)):
        kind, source = "cpu", f"auto: not {kind}: {fault}"
    if kind == "mps":
        source += "; not tested: no such machine was available"
    if before.get("device") != kind:  # what it had decided elsewhere says nothing here
        before = {}

    precision, reason = resolve_precision(config.precision, kind, before.get("precision"))
    compiled, why = config.compile, "asked for"
    if compiled == "auto":
        compiled, why = before.get("compile", "auto"), AS_BEFORE
    if compiled == "auto" and (steps := run_config.max_steps) is not None and steps < FEW_STEPS:
        compiled, why = False, f"auto: {steps} steps are too few for it"
    attention, choice = resolve_attention(run_config, kind, precision, compiled is not False, before.get("attention"))
    notes = [f"device {kind} ({source})", f"precision {precision} ({reason})", f"attention {attention} ({choice})"]
    if compiled != "auto":
        notes.append(f"compile {'on' if compiled else 'off'} ({why})")

    # as many threads as this run began with, if nobody asks for another number and there are as many cores
    threads = before.get("threads") if kind == "cpu" else None
    asked = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys()
    if asked or threads == torch.get_num_threads() or (threads or 0) > (os.cpu_count() or 1):
        threads = None
    if threads is not None:
        notes.append(f"threads {threads} ({AS_BEFORE})")
    return Device(torch.device(kind), precision, compiled, attention, tuple(notes), threads)


def resolve_precision(wanted: str, kind: str, earlier: str | None = None) -> tuple[str, str]:
    """The precision, and why. On a GPU its instructions decide, on a CPU a trial (train/machine/machine_cache.py).

    earlier: what a run that is resumed has taken; it is kept, whatever has been found since. Raises InputError for a
    precision that you ask for and the device does not have.
    """
    if wanted != "auto":
        if problem := lacks(wanted, kind):
            raise InputError(f"train.precision is {wanted}, {problem}")
        return wanted, "asked for"
    if earlier is not None and lacks(earlier, kind) is None:
        return earlier, AS_BEFORE
    if kind == "cuda" and lacks("bf16", kind):
        fastest, reason = "fp16", "this GPU lacks bf16"
    elif kind == "cuda":
        fastest, reason = "bf16", "this GPU computes in bf16"
    elif kind == "cpu" and (speed := bf16_speed()) >= BF16_PAYS:
        fastest, reason = "bf16", f"{speed:.1f} × as fast as fp32 in a trial on this CPU"
    elif kind == "cpu":
        fastest, reason = "fp32", f"bf16 is only {speed:.2g} × as fast in a trial on this CPU"
    else:
        fastest, reason = "fp32", f"nothing else trains on {kind}"
    if fault := recall().fault("precision", kind, fastest):
        return "fp32", f"auto: the last that is left; not {fastest}: {fault}"
    return fastest, f"auto: {reason}"


def lacks(precision: str, kind: str) -> str | None:
    """Why a device cannot train in a precision, and what to use instead; None if it can."""
    if precision == "tf32" and kind != "cuda":
        return f"which needs CUDA: on {kind} use auto or fp32"
    if precision == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "but this GPU has no bf16 instructions: use auto, fp16 or fp32"
    if precision in ("bf16", "fp16") and kind == "mps":
        return "which does not train on mps: use auto or fp32"
    return None


def dtype_of(precision: str) -> torch.dtype:
    """Of matrix products."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


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
        known = recall()
        faults = {name: known.fault("attention", kind, name, precision) for name in BACKENDS}
        backend, reason = choose_attention(situation, {name: fault for name, fault in faults.items() if fault})
        return backend, f"auto: {reason}"
    if problem := why_not(model.attn_implementation, situation):
        name = model.attn_implementation
        raise InputError(f"model.attn_implementation: {name} {problem}: use auto, or sdpa, which serves everything")
    return model.attn_implementation, "asked for"


# ---------------------------------------------------------------------------------------------------------
# On what do the last bits of a run depend besides its config, and has that changed since it was saved?
# Sums of floating-point numbers depend on their order. Another processor, number of threads or version of PyTorch adds
# up in another order, and so does what `auto` stands for. A run that is resumed there continues, and says that it is
# exact no longer.

NAMES = {"world_size": "processes", "micro_batch_size": "rows at a time", "torch": "PyTorch", "cpu": "processor"}
NAMES |= {"kernels": "PyTorch's kernels for"}


def decided_by(device: Device, rows: int, world_size: int) -> dict[str, Any]:
    """What the last bits depend on, on this machine: what `auto` stands for, and what computes."""
    chosen = {
        "device": device.device.type,
        "precision": device.precision,
        "attention": device.attention,
        "compile": device.compile,
        "micro_batch_size": rows,
        "world_size": world_size,
        "torch": torch.__version__,
    }
    if device.device.type != "cpu":
        return chosen | {"gpu": machine(device.device)}
    return chosen | {
        "cpu": cpu_capabilities().get("cpu_name"),
        "kernels": cpu_kernels(),
        "instructions": cpu_instructions(),
        "threads": torch.get_num_threads(),
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What is not as it was, in words, "" if all is. A key that only one of them has does not count."""
    found = []
    words: dict[Any, str] = {True: "on", False: "off"}
    for key in [key for key in now if key in before and before[key] != now[key]]:
        if key == "instructions":
            gone, new = (sorted(set(a).difference(b)) for a, b in ((before[key], now[key]), (now[key], before[key])))
            found += [f"the processor lacks {', '.join(gone)}"] if gone else []
            found += [f"the processor has {', '.join(new)} too"] if new else []
        else:
            here, there = (words[value] if isinstance(value, bool) else value for value in (now[key], before[key]))
            found.append(f"{NAMES.get(key, key)} {here} (before: {there})")
    is_elsewhere = before.get("device", now.get("device")) != now.get("device")
    return found[0] if is_elsewhere else "; ".join(found)  # on another kind of device everything is different


def exact_until(ended: dict[str, Any]) -> str:
    """A line for the terminal and the report. ended: a member of TrainerState.breaks."""
    return (
        f"exact until step {ended['step']:,}: from there {ended['what']}, so figures may differ by rounding from those "
        "of a run without this interruption"
    )


# ---------------------------------------------------------------------------------------------------------

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


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
    return bool(mallopt(M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
