"""Where does a run compute, in which precision, compiled or not, and with which attention? What `auto` stands for here.

A run that is resumed keeps what it has taken: the last bits of its sums depend on it, and on the machine
(`decided_by`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import psutil
import torch

from configs.command import CGROUP, InputError
from model.accounting import flops_per_token
from model.backends.choice import Situation, choose_attention, choose_device, why_not
from model.transformer import on_meta
from train.config import RunConfig

CGROUP_LIMIT = CGROUP / "memory.max"
SMALL_VOCABULARY = 64  # counted, as long as the vocabulary is not known
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
# what PyTorch knows about the processor, such as its name and amx_bf16; nothing, in versions that do not say
CPU: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
COMPILERS = {"darwin": "clang++", "win32": "cl"}  # that PyTorch calls, where CXX names no other; elsewhere g++
FEW_STEPS = 100  # for fewer, compiling is not even considered
# minutes of plain training from which on compiling pays: it costs half a minute or more, and saves a tenth of the rest
# on a CPU; on a GPU some 20 seconds, and more than half of the rest (FINDINGS.md#gpu)
PAYS_AFTER_MINUTES = {"cpu": 15.0, "cuda": 0.5}
# for a first guess of the minutes: FLOP/s of a core in training (measured in fp32 on an EPYC kept to AVX2), the share
# of its peak that a GPU reaches, the peak of an unknown one, and seconds that no step is quicker than
CORE_FLOPS, GPU_SHARE, GPU_FLOPS, LEAST_STEP_S = 25e9, 0.3, 100e12, 0.03
# Dense bf16 peaks of tensor cores in TFLOPS, without sparsity, as NVIDIA's data sheets are quoted (fp32 accumulation
# for the RTX 4090; the T4 has no bf16, so fp16); none was measured here. Each key is how a device's name ends, so that
# NVL, PCIe and laptop versions and MIG slices, which have other peaks, are not mistaken for these.
PEAK_TFLOPS = {
    "H200": 989,
    "H100 80GB HBM3": 989,
    "A100-SXM4-40GB": 312,
    "A100-SXM4-80GB": 312,
    "RTX 4090": 165,
    "L4": 121,
    "T4": 65,
}


@dataclass(frozen=True)
class Device:
    """The resolved choices; `notes` says in words what was chosen and why. attention: a backend's name."""

    device: torch.device
    precision: str
    compile: bool
    attention: str
    notes: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Of matrix products."""
        return DTYPES[self.precision]

    def autocast(self) -> AbstractContextManager:
        """16-bit matrix products over fp32 weights, or nothing."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def resolve_device(config: RunConfig, resolved: Mapping[str, Any] | None = None) -> Device:
    """Decide what `auto` stands for. resolved: what a resumed run had decided; it is kept where it can be.

    With several processes the first one decides for all. Raises InputError for what you ask for and this machine does
    not have.
    """
    kind, before = resolve_kind(config), resolved or {}
    source = "asked for" if config.train.device != "auto" else "auto"
    if before.get("device") != kind:  # what it had decided elsewhere says nothing here
        before = {}
    if kind == "mps":
        source += "; not tested: no such machine was available"
    notes = [f"device {kind} ({source})"]

    def settle(name: str, wanted: Any, problem: Callable[[Any], str], auto: Callable[[], tuple[Any, str]]) -> Any:
        """What you ask for; what the resumed run has taken; or what `auto` is here."""
        if wanted != "auto":
            value, why = wanted, "asked for"
            if words := problem(wanted):
                raise InputError(f"{name} {str(wanted).lower()} {words}")
        elif (value := before.get(name)) is not None and not problem(value):
            why = "auto: as this run began"
        else:
            value, why = auto()
            why = f"auto: {why}"
        notes.append(f"{name} {('off', 'on')[value] if isinstance(value, bool) else value} ({why})")
        return value

    train, model, documents = config.train, config.model, config.data.isolate_documents
    precision = settle("precision", train.precision, lambda p: lacks(p, kind), lambda: fastest_precision(kind))
    compiled = settle(
        "compile", train.compile, partial(no_compiler, kind), lambda: pays_to_compile(config, kind, precision)
    )
    here = Situation.of(
        model, kind, DTYPES[precision],
        dropout=model.attention_dropout, gradients=True, documents=documents, compiled=compiled,
    )  # fmt: skip
    attention = settle(
        "attention", model.attn_implementation, lambda name: cannot_serve(name, here), lambda: choose_attention(here)
    )
    return Device(torch.device(kind), precision, compiled, attention, tuple(notes))


def resolve_kind(config: RunConfig) -> str:
    """cpu, cuda or mps. Raises InputError for a device that you ask for and this machine does not have."""
    return choose_device(config.train.device, "train.device").type


def cannot_serve(backend: str, here: Situation) -> str:
    """Why a backend cannot train here, and what to use instead; "" if it can."""
    problem = why_not(backend, here)
    return f"{problem}: use model.attn_implementation=auto, or sdpa, which serves everything" if problem else ""


def lacks(precision: str, kind: str) -> str:
    """Why a device cannot train in a precision, and what to use instead; "" if it can."""
    if precision == "tf32" and kind != "cuda":
        return f"needs CUDA: on {kind} use train.precision=auto or fp32"
    if precision == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "needs instructions that this GPU has not: use train.precision=auto, fp16 or fp32"
    if precision in ("bf16", "fp16") and kind == "mps":
        return "does not train on mps: use train.precision=auto or fp32"
    return ""


def fastest_precision(kind: str) -> tuple[str, str]:
    """What `auto` takes, and why.

    A CPU's flag avx512_bf16 does not say that bf16 is fast: with it an AMD EPYC trained 1.2 to 1.7 times as fast as in
    fp32, and an Intel Xeon 0.75 times. With AMX the Xeon trained 1.4 to 2.3 times as fast. Without any of them bf16 is
    emulated, and takes eight times as long (FINDINGS.md#bf16).
    """
    if kind == "cuda":
        return ("fp16", "this GPU lacks bf16") if lacks("bf16", kind) else ("bf16", "this GPU has bf16")
    if kind != "cpu":
        return "fp32", f"nothing else trains on {kind}"
    if limit := os.environ.get("ONEDNN_MAX_CPU_ISA"):  # the library that multiplies bf16 is told to use less
        return "fp32", f"ONEDNN_MAX_CPU_ISA={limit}"
    if CPU.get("amx_bf16") or (CPU.get("avx512_bf16") and "AMD" in str(CPU.get("cpu_name"))):
        return "bf16", "this CPU computes in bf16"
    return "fp32", "this CPU is no faster in bf16"


def pays_to_compile(config: RunConfig, kind: str, precision: str) -> tuple[bool, str]:
    """Whether `auto` compiles, and why. It guesses the minutes of the run from its FLOPs alone: the same command on the
    same machine always takes the same, whatever other programs do."""
    steps = config.max_steps
    if config.model.attn_implementation == "mine":
        return False, "attention is code of your own"
    if steps is not None and steps < FEW_STEPS:
        return False, f"{steps} steps are too few for it"
    if problem := compiler_problem(kind):
        return False, problem
    minutes, pays_after = config.train.max_minutes or 0.0, PAYS_AFTER_MINUTES[kind]
    if steps is not None:
        minutes = steps * guessed_seconds(config, config.train.tokens_per_step, kind, precision) / 60
    return minutes > pays_after, f"some {minutes:,.0f} minutes, and it pays from {pays_after:g} on"


def compiler_problem(kind: str) -> str:
    """Why torch.compile is not even tried on this kind of device; "" if it is."""
    if kind == "cpu":
        compiler = os.environ.get("CXX", COMPILERS.get(sys.platform, "g++"))
        return "" if shutil.which(compiler) else f"needs the C++ compiler {compiler}, which is not installed"
    if kind == "cuda":
        return "" if find_spec("triton") else "needs triton, which is not installed"
    return f"not tried on {kind}"


def no_compiler(kind: str, wanted: bool) -> str:
    """Why a device cannot compile, though it is asked to, and what to do; "" if it can."""
    problem = compiler_problem(kind) if wanted and kind in PAYS_AFTER_MINUTES else ""
    return f"{problem}: install it, or use train.compile=auto" if problem else ""


def guessed_seconds(config: RunConfig, tokens: int, kind: str, precision: str) -> float:
    """Of a training step of this many tokens: a guess, from FLOPs alone."""
    speed = CORE_FLOPS * torch.get_num_threads()
    if kind != "cpu":
        peak = known_peak(torch.device(kind), DTYPES[precision])
        speed = GPU_SHARE * (peak[0] * 1e12 if peak else GPU_FLOPS)
    flops = flops_per_token(on_meta(sized(config).model), config.data.sequence_length)
    return LEAST_STEP_S + tokens * flops / (speed * int(os.environ.get("WORLD_SIZE", "1")))


def sized(config: RunConfig) -> RunConfig:
    """A config with a vocabulary: as long as none is known, a small one."""
    size = config.model.vocab_size or SMALL_VOCABULARY
    return config.model_copy(update={"model": config.model.model_copy(update={"vocab_size": size})})


# ---------------------------------------------------------------------------------------------------------
# On what do the last bits of a run depend besides its config, and has that changed since it was saved?
# Sums of floating-point numbers depend on their order. Another processor, number of threads or version of PyTorch adds
# up in another order, and so does what `auto` stands for. A run that is resumed there continues, and says that it is
# exact no longer.


def decided_by(device: Device, rows: int, world_size: int) -> dict[str, Any]:
    """What the last bits depend on, on this machine: what `auto` stands for, and what computes."""
    kind = device.device.type
    chosen = {
        "device": kind,
        "precision": device.precision,
        "attention": device.attention,
        "compile": device.compile,
        "micro_batch_size": rows,
        "world_size": world_size,
    }
    if kind != "cpu":
        return chosen | {"torch": torch.__version__, "gpu": machine(device.device)}
    return chosen | processor() | {"threads": torch.get_num_threads()}


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What is not as it was, in words, "" if all is. A key that only one of them has does not count."""
    changed = [key for key in now if key in before and before[key] != now[key]]
    if "device" in changed:  # on another kind of device everything is different
        changed = ["device"]
    return "; ".join(f"{key} {now[key]} (before: {before[key]})" for key in changed)


def exact_until(ended: dict[str, Any]) -> str:
    """A line for the terminal and the report. ended: a member of TrainerState.breaks."""
    return (
        f"exact until step {ended['step']:,}: from there {ended['what']}, so figures may differ by rounding from those "
        "of a run without this interruption"
    )


# ---------------------------------------------------------------------------------------------------------
# what this machine has


def processor() -> dict[str, Any]:
    """What the sums of a CPU depend on: PyTorch, the processor, and the instructions that kernels are for."""
    names = ("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
    limits = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return {
        "torch": torch.__version__,
        "cpu": CPU.get("cpu_name"),
        "kernels": " ".join([torch.backends.cpu.get_cpu_capability(), *limits]),
    }


def machine(device: torch.device) -> str:
    """The GPU, or the processor and the number of threads, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    name = CPU.get("cpu_name") or platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


def known_peak(device: torch.device, dtype: torch.dtype) -> tuple[float, str] | None:
    """(TFLOPS, whose): the dense 16-bit peak of the GPU that is here; None if it is not in the table."""
    if device.type != "cuda" or dtype.itemsize > 2 or not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    return next(((peak, name) for key, peak in PEAK_TFLOPS.items() if f" {name}".endswith(f" {key}")), None)


def memory_of(kind: str) -> tuple[float, str] | None:
    """(bytes, in words whose) that this process can ever have: the GPU's, or RAM within its container's limit."""
    if kind == "cuda":
        here = torch.cuda.is_available()
        return (float(torch.cuda.get_device_properties(0).total_memory), "the GPU's") if here else None
    ram = float(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):  # no such file, or "max"
        if (limit := float(CGROUP_LIMIT.read_text(encoding="ascii"))) < ram:
            return limit, "the limit of its container"
    return ram, "all RAM"


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def set_float32_products(device: Device, writes: bool) -> None:
    """How a run multiplies float32 matrices: with tf32's bits where that is the precision, else exactly.

    AMD's processors with AVX-512 do it twice as fast by oneDNN as by MKL, which PyTorch calls by itself and which uses
    AVX2 there (FINDINGS.md#cpu-step). The name of the switch is "medium", because oneDNN may then round to bfloat16.
    Without AMX it does not, and a product shows that. writes: the model does, token by token, and for such small
    products oneDNN takes longer.
    """
    is_amd = "AMD" in str(CPU.get("cpu_name")) and "ONEDNN_MAX_CPU_ISA" not in os.environ
    is_quicker = is_amd and CPU.get("avx512_f") and not CPU.get("amx_bf16")
    by_onednn = is_quicker and device.device.type == "cpu" and device.precision == "fp32" and not writes
    torch.set_float32_matmul_precision("high" if device.precision == "tf32" else "medium" if by_onednn else "highest")
    if by_onednn and (torch.full((256, 256), 1 / 3) @ torch.eye(256) != 1 / 3).any():
        torch.set_float32_matmul_precision("highest")


def keep_freed_memory() -> bool:
    """Ask glibc not to give freed blocks back to the system; returns whether it agreed. Other C libraries do nothing.

    By default it returns large blocks and asks for them again in every step, and the system clears each page first:
    4 to 9 % of the time of a 6 x 256 model (FINDINGS.md#cpu-step). In return the process holds the most that it
    ever needed at once. Call it before the first step.
    """
    if not sys.platform.startswith("linux"):
        return False
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(mmap_threshold, 2**30)) and bool(mallopt(trim_threshold, 2**31 - 1))
