"""Where does a run compute, in which precision, compiled or not, and with which attention? What `auto` stands for here.

What train.doctor found wrong on this machine, `auto` leaves out. A run that is resumed keeps what it has taken: the
last bits of its sums depend on it, and on the machine (`decided_by`).
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from configs.command import InputError
from model.backends.choice import BACKENDS, Situation, choose_attention, choose_device, why_not
from model.transformer import on_meta
from train.config import RunConfig
from train.machine import hardware

AS_BEFORE = "auto: as this run began"
SMALL_VOCABULARY = 64  # counted, as long as the vocabulary is not known
FEW_STEPS = 100  # for fewer, compiling is not even considered
# minutes of plain training from which on compiling pays: it costs about one minute, and saves a tenth of the rest on a
# CPU and a third on a GPU (EXPERIMENTS.md)
PAYS_AFTER_MINUTES = {"cpu": 15.0, "cuda": 4.0}
# for a first guess of the minutes: FLOP/s of a core in training (measured in fp32 on an EPYC kept to AVX2), the share
# of its peak that a GPU reaches, the peak of an unknown one, and seconds that no step is quicker than
CORE_FLOPS, GPU_SHARE, GPU_FLOPS, LEAST_STEP_S = 25e9, 0.3, 100e12, 0.03


@dataclass(frozen=True)
class Device:
    """The resolved choices; `notes` says in words what was chosen and why. attention: a backend's name.

    threads: of a CPU; None: as they are.
    """

    device: torch.device
    precision: str
    compile: bool
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


def resolve_device(config: RunConfig, resolved: dict[str, Any] | None = None) -> Device:
    """Decide what `auto` stands for. resolved: what a resumed run had decided; it is kept where it can be.

    With several processes the first one decides for all. Raises InputError for what you ask for and this machine does
    not have.
    """
    kind, before = resolve_kind(config), resolved or {}
    source = "asked for" if config.train.device != "auto" else "auto"
    if source == "auto" and before.get("device") != kind and (fault := hardware.known_faults().get(f"device {kind}")):
        kind, source = "cpu", f"auto: not {kind}: {fault}"
    if kind == "mps":
        source += "; not tested: no such machine was available"
    if before.get("device") != kind:  # what it had decided elsewhere says nothing here
        before = {}
    precision, why_precision = resolve_precision(config.train.precision, kind, before.get("precision"))
    compiled, why_compiled = resolve_compile(config, kind, precision, before.get("compile"))
    attention, why_attention = resolve_attention(config, kind, precision, compiled, before.get("attention"))
    notes = [f"device {kind} ({source})", f"precision {precision} ({why_precision})"]
    notes += [f"attention {attention} ({why_attention})", f"compile {'on' if compiled else 'off'} ({why_compiled})"]

    # as many threads as this run began with, if nobody asks for another number and there are as many cores
    threads = before.get("threads") if kind == "cpu" else None
    asked = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys()
    if asked or threads == torch.get_num_threads() or (threads or 0) > (os.cpu_count() or 1):
        threads = None
    if threads is not None:
        notes.append(f"threads {threads} ({AS_BEFORE})")
    return Device(torch.device(kind), precision, compiled, attention, tuple(notes), threads)


def resolve_kind(config: RunConfig) -> str:
    """cpu, cuda or mps. Raises InputError for a device that you ask for and this machine does not have."""
    try:
        return choose_device(config.train.device).type
    except ValueError as error:
        raise InputError(f"train.device is {error}") from None


def resolve_precision(wanted: str, kind: str, earlier: str | None = None) -> tuple[str, str]:
    """The precision, and why. earlier: what a resumed run has taken; it is kept, whatever has been found since.

    Raises InputError for a precision that you ask for and the device does not have.
    """
    if wanted != "auto":
        if problem := lacks(wanted, kind):
            raise InputError(f"train.precision is {wanted}, {problem}")
        return wanted, "asked for"
    if earlier is not None and lacks(earlier, kind) is None:
        return earlier, AS_BEFORE
    if kind == "cuda":
        is_fast, reason = not lacks("bf16", kind), "this GPU " + ("lacks bf16" if lacks("bf16", kind) else "has bf16")
    elif kind == "cpu":
        is_fast, reason = hardware.bf16_on_cpu()
    else:
        is_fast, reason = False, f"nothing else trains on {kind}"
    fastest = "bf16" if is_fast else "fp16" if kind == "cuda" else "fp32"
    if fault := hardware.known_faults().get(f"precision {kind} {fastest}"):
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


def resolve_compile(config: RunConfig, kind: str, precision: str, earlier: bool | None = None) -> tuple[bool, str]:
    """Whether to train with torch.compile, and why. `auto` guesses the minutes of the run from its FLOPs alone, so that
    the same command on the same machine always takes the same, whatever other programs do."""
    wanted, steps = config.train.compile, config.max_steps
    if wanted != "auto":
        return wanted, "asked for"
    if earlier is not None:
        return earlier, AS_BEFORE
    if steps is not None and steps < FEW_STEPS:
        return False, f"auto: {steps} steps are too few for it"
    if problem := hardware.compiler_problem(kind) or hardware.known_faults().get(f"compile {kind}"):
        return False, f"auto: {problem}"
    minutes, pays_after = config.train.max_minutes or 0.0, PAYS_AFTER_MINUTES[kind]
    if steps is not None:
        minutes = steps * guessed_seconds(config, config.train.tokens_per_step, kind, precision) / 60
    return minutes > pays_after, f"auto: some {minutes:,.0f} minutes, and it pays from {pays_after:g} on"


def guessed_seconds(config: RunConfig, tokens: int, kind: str, precision: str) -> float:
    """Of a training step of this many tokens: a guess, from FLOPs alone."""
    model = config.model.model_copy(update={"vocab_size": config.model.vocab_size or SMALL_VOCABULARY})
    if kind == "cpu":
        speed = CORE_FLOPS * torch.get_num_threads()
    else:
        peak = hardware.known_peak(torch.device(kind), dtype_of(precision))
        speed = GPU_SHARE * (peak[0] * 1e12 if peak else GPU_FLOPS)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return LEAST_STEP_S + tokens * on_meta(model).flops_per_token(config.data.sequence_length) / (speed * processes)


def resolve_attention(
    config: RunConfig, kind: str, precision: str, compiled: bool, earlier: str | None = None
) -> tuple[str, str]:
    """The backend that trains, and why. Raises InputError for one that you ask for and that cannot serve this run."""
    model = config.model
    situation = Situation.of(
        model,
        kind,
        dtype_of(precision),
        dropout=model.attention_dropout,
        gradients=True,
        documents=config.data.isolate_documents,
        compiled=compiled,
    )
    if model.attn_implementation != "auto":
        if problem := why_not(model.attn_implementation, situation):
            remedy = "use auto, or sdpa, which serves everything"
            raise InputError(f"model.attn_implementation: {model.attn_implementation} {problem}: {remedy}")
        return model.attn_implementation, "asked for"
    if earlier is not None and why_not(earlier, situation) is None:
        return earlier, AS_BEFORE
    faults = hardware.known_faults()
    keys = {name: f"attention {kind} {name} {precision}" for name in BACKENDS}
    backend, reason = choose_attention(situation, {name: faults[key] for name, key in keys.items() if key in faults})
    return backend, f"auto: {reason}"


# ---------------------------------------------------------------------------------------------------------
# On what do the last bits of a run depend besides its config, and has that changed since it was saved?
# Sums of floating-point numbers depend on their order. Another processor, number of threads or version of PyTorch adds
# up in another order, and so does what `auto` stands for. A run that is resumed there continues, and says that it is
# exact no longer.

NAMES = {"world_size": "processes", "micro_batch_size": "rows at a time", "torch": "PyTorch", "cpu": "processor"}
NAMES |= {"kernels": "PyTorch's kernels for"}


def decided_by(device: Device, rows: int, world_size: int) -> dict[str, Any]:
    """What the last bits depend on, on this machine: what `auto` stands for, and what computes."""
    kind = device.device.type
    chosen = {"device": kind, "precision": device.precision, "attention": device.attention, "compile": device.compile}
    chosen |= {"micro_batch_size": rows, "world_size": world_size, "torch": torch.__version__}
    if kind != "cpu":
        return chosen | {"gpu": hardware.machine(device.device)}
    cpu = {
        "cpu": hardware.cpu_capabilities().get("cpu_name"),
        "kernels": hardware.cpu_kernels(),
        "instructions": hardware.cpu_instructions(),
    }
    return chosen | cpu | {"threads": torch.get_num_threads()}


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What is not as it was, in words, "" if all is. A key that only one of them has does not count."""
    changed = [key for key in now if key in before and before[key] != now[key]]
    found = []
    for key in ["device"] if "device" in changed else changed:  # on another kind of device everything is different
        here, there = ({"True": "on", "False": "off"}.get(str(value), value) for value in (now[key], before[key]))
        if key == "instructions":
            found.append(f"the processor differs in {', '.join(sorted({*here} ^ {*there}))}")
        else:
            found.append(f"{NAMES.get(key, key)} {here} (before: {there})")
    return "; ".join(found)


def exact_until(ended: dict[str, Any]) -> str:
    """A line for the terminal and the report. ended: a member of TrainerState.breaks."""
    return (
        f"exact until step {ended['step']:,}: from there {ended['what']}, so figures may differ by rounding from those "
        "of a run without this interruption"
    )


def keep_freed_memory() -> bool:
    """Ask glibc not to give freed blocks back to the system; returns whether it agreed. Other C libraries do nothing.

    By default it returns large blocks and asks for them again in every step, and the system clears each page first:
    4 to 9 % of the time of a 6 x 256 model (EXPERIMENTS.md). In return the process holds the most that it ever needed
    at once. Call it before the first step.
    """
    if not sys.platform.startswith("linux"):
        return False
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(mmap_threshold, 2**30)) and bool(mallopt(trim_threshold, 2**31 - 1))
