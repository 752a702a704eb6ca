"""The choices of `auto`: device, precision, compiled or not, and the backend of attention.

A resumed run keeps them, because the last bits of its sums depend on them (`decided_by`).
"""

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
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
SMALL_VOCABULARY = 64  # It counts as long as the vocabulary is not known.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES |= dict.fromkeys(("tf32", "fp32"), torch.float32)  # tf32 is a way to multiply float32.
# PyTorch knows the processor, such as its name and amx_bf16. Some versions know nothing.
CPU: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
COMPILERS = {"darwin": "clang++", "win32": "cl"}  # PyTorch calls these if CXX is not set, else g++.
# Fewer steps than these are never compiled.
FEW_STEPS = 100
# Compiling pays from so many minutes of plain training on. On a CPU it costs half a minute or more
# and saves a tenth; on a GPU it costs 20 seconds and saves more than half (FINDINGS.md#gpu).
PAYS_AFTER_MINUTES = {"cpu": 15.0, "cuda": 0.5}
# The guess of the seconds of a step (`guess_seconds`).
CORE_FLOPS = 25e9  # FLOP/s of a core in training, measured in fp32 on an EPYC kept to AVX2.
GPU_SHARE = 0.3  # The share of its peak that a GPU reaches.
GPU_TFLOPS = 100  # The peak of a GPU that is not in the table.
LEAST_STEP_S = 0.03  # No step is quicker.
# Dense bf16 peaks of tensor cores in TFLOPS, without sparsity, as NVIDIA's data sheets are quoted
# (fp32 accumulation for the RTX 4090; the T4 has no bf16, so fp16). None was measured here. A
# device's name ends with the key, so NVL, PCIe and laptop versions and MIG slices, which have other
# peaks, are not mistaken for these.
PEAK_TFLOPS = {
    "H200": 989,
    "H100 80GB HBM3": 989,
    "A100-SXM4-40GB": 312,
    "A100-SXM4-80GB": 312,
    "RTX 4090": 165,
    "L4": 121,
    "T4": 65,
}


Auto = Callable[[], tuple[Any, str]]  # -> (choice, reason)


@dataclass(frozen=True)
class Device:
    """The resolved choices."""

    device: torch.device
    precision: str
    compile: bool
    attention: str  # a backend's name
    notes: tuple[str, ...]  # each choice and its reason

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrix products."""
        return DTYPES[self.precision]

    def autocast(self) -> AbstractContextManager:
        """Do matrix products in 16 bits over fp32 weights, or change nothing."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def resolve_device(config: RunConfig, resolved: Mapping[str, Any] | None = None) -> Device:
    """Decide what `auto` stands for. resolved: the choices of a resumed run, kept if possible.

    Raises InputError if you ask for something that this machine does not have.
    """
    train = config.train
    model = config.model
    kind = resolve_kind(config)
    source = "asked for" if train.device != "auto" else "auto"
    if kind == "mps":
        source += "; not tested: no such machine was available"
    notes = [f"device {kind} ({source})"]
    before = resolved or {}
    if before.get("device") != kind:  # choices on another device do not count here
        before = {}

    def settle(name: str, value: Any, problem: Callable[[Any], str], auto: Auto) -> Any:
        """Take what you ask for, else what the resumed run has taken, else what `auto` is here."""
        reason = "asked for"
        if value != "auto" and problem(value):
            raise InputError(f"{name} {str(value).lower()} {problem(value)}")
        if value == "auto":
            value = before.get(name)
            reason = "auto: as this run began"
            if value is None or problem(value):
                value, why = auto()
                reason = f"auto: {why}"
        text = ("off", "on")[value] if isinstance(value, bool) else value
        notes.append(f"{name} {text} ({reason})")
        return value

    def cannot_compile(is_on: bool) -> str:
        problem = compiler_problem(kind) if is_on and kind in PAYS_AFTER_MINUTES else ""
        return f"{problem}: install it, or use train.compile=auto" if problem else ""

    auto: Auto = partial(fastest_precision, kind)
    precision = settle("precision", train.precision, lambda name: lacks(name, kind), auto)
    auto = partial(pays_to_compile, config, kind, precision)
    compiled = settle("compile", train.compile, cannot_compile, auto)
    here = Situation.of(model, kind, DTYPES[precision], gradients=True, compiled=compiled)
    documents = config.data.isolate_documents
    here = replace(here, dropout=model.attention_dropout, documents=documents)

    def cannot_serve(backend: str) -> str:
        problem = why_not(backend, here)
        remedy = "use model.attn_implementation=auto, or sdpa, which serves everything"
        return f"{problem}: {remedy}" if problem else ""

    auto = partial(choose_attention, here)
    attention = settle("attention", model.attn_implementation, cannot_serve, auto)
    return Device(torch.device(kind), precision, compiled, attention, tuple(notes))


def resolve_kind(config: RunConfig) -> str:
    """Return cpu, cuda or mps. Raises InputError if this machine does not have what you ask for."""
    return choose_device(config.train.device, "train.device").type


def lacks(precision: str, kind: str) -> str:
    """Return why a device cannot train in a precision, and what to use; "" if it can."""
    if precision == "tf32" and kind != "cuda":
        return f"needs CUDA: on {kind} use train.precision=auto or fp32"
    if precision in ("bf16", "fp16") and kind == "mps":
        return "does not train on mps: use train.precision=auto or fp32"
    has_bf16 = kind != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and not has_bf16:
        return "needs instructions that this GPU lacks: use train.precision=auto, fp16 or fp32"
    return ""


def fastest_precision(kind: str) -> tuple[str, str]:
    """Return what `auto` takes, and why."""
    if kind == "cuda":
        lacks_it = ("fp16", "this GPU lacks bf16")
        return lacks_it if lacks("bf16", kind) else ("bf16", "this GPU has bf16")
    if kind != "cpu":
        return "fp32", f"nothing else trains on {kind}"
    # oneDNN multiplies in bf16. With this variable it may not use the instructions for that.
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    if limit:
        return "fp32", f"ONEDNN_MAX_CPU_ISA={limit}"
    # avx512_bf16 is not enough: with it an AMD EPYC trained 1.2 to 1.7 times as fast as in fp32,
    # and an Intel Xeon 0.75 times. With AMX the Xeon trained 1.4 to 2.3 times as fast. Without any
    # of them bf16 is emulated, and takes eight times as long (FINDINGS.md#bf16).
    if CPU.get("amx_bf16") or (CPU.get("avx512_bf16") and is_amd()):
        return "bf16", "this CPU computes in bf16"
    return "fp32", "this CPU is no faster in bf16"


def pays_to_compile(config: RunConfig, kind: str, precision: str) -> tuple[bool, str]:
    """Return what `auto` takes, and why."""
    steps = config.max_steps
    if config.model.attn_implementation == "mine":
        return False, "attention is code of your own"
    if steps is not None and steps < FEW_STEPS:
        return False, f"{steps} steps are too few for it"
    problem = compiler_problem(kind)
    if problem:
        return False, problem
    # A guess from FLOPs alone: the same command on the same machine always compiles or never,
    # whatever other programs do.
    minutes = config.train.max_minutes or 0.0
    if steps is not None:
        tokens = config.train.tokens_per_step
        minutes = steps * guess_seconds(config, tokens, guess_speed(kind, precision)) / 60
    pays_after = PAYS_AFTER_MINUTES[kind]
    return minutes > pays_after, f"some {minutes:,.0f} minutes, and it pays from {pays_after:g} on"


def compiler_problem(kind: str) -> str:
    """Return why torch.compile is not even tried on this kind of device; "" if it is."""
    if kind == "cpu":
        compiler = os.environ.get("CXX", COMPILERS.get(sys.platform, "g++"))
        if shutil.which(compiler):
            return ""
        return f"needs the C++ compiler {compiler}, which is not installed"
    if kind == "cuda":
        return "" if find_spec("triton") else "needs triton, which is not installed"
    return f"not tried on {kind}"


def guess_speed(kind: str, precision: str, tflops: float = 0, share: float = GPU_SHARE) -> float:
    """Guess the FLOP/s of training in one process. tflops: the peak, 0 = ask the machine."""
    if kind == "cpu" and not tflops:
        return CORE_FLOPS * torch.get_num_threads()
    peak = known_peak(torch.device(kind), DTYPES[precision])
    return share * (tflops or (peak[0] if peak else GPU_TFLOPS)) * 1e12


def guess_seconds(config: RunConfig, tokens: int, speed: float) -> float:
    """Guess the time of a training step of this many tokens. speed: FLOP/s of one process."""
    flops = flops_per_token(on_meta(sized(config).model), config.data.sequence_length)
    return LEAST_STEP_S + tokens * flops / (speed * int(os.environ.get("WORLD_SIZE", "1")))


def sized(config: RunConfig) -> RunConfig:
    """Return a config with a vocabulary, a small one if none is known yet."""
    size = config.model.vocab_size or SMALL_VOCABULARY
    return config.model_copy(update={"model": config.model.model_copy(update={"vocab_size": size})})


# -------------------------------------------------------------------------------------------------
# The last bits of a run depend on more than its config, because sums of floating-point numbers
# depend on their order. Another processor, number of threads, version of PyTorch or choice of
# `auto` adds up in another order. A run that is resumed there reports the step after which results
# may differ in the last bits.


def decided_by(device: Device, rows: int, world_size: int) -> dict[str, Any]:
    """Return what the last bits depend on: what `auto` stands for, and what computes."""
    kind = device.device.type
    chosen = {
        "device": kind,
        "precision": device.precision,
        "attention": device.attention,
        "compile": device.compile,
        "micro_batch_size": rows,
        "world_size": world_size,
        "torch": torch.__version__,
    }
    if kind != "cpu":
        return chosen | {"gpu": machine(device.device)}
    # the instructions that kernels are for
    kernels = [torch.backends.cpu.get_cpu_capability()]
    for name in ("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA"):
        if name in os.environ:
            kernels.append(f"{name}={os.environ[name]}")
    cpu = CPU.get("cpu_name")
    return chosen | {"cpu": cpu, "kernels": " ".join(kernels), "threads": torch.get_num_threads()}


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Describe what has changed among the keys that both have; "" if nothing has."""
    changed = [key for key in now if key in before and before[key] != now[key]]
    if "device" in changed:  # on another kind of device everything is different
        changed = ["device"]
    return "; ".join(f"{key} {now[key]} (before: {before[key]})" for key in changed)


def exact_until(ended: dict[str, Any]) -> str:
    """Return a line about a member of TrainerState.breaks."""
    return (
        f"exact until step {ended['step']:,}: from there {ended['what']}, so figures may differ by "
        "rounding from those of a run without this interruption"
    )


# -------------------------------------------------------------------------------------------------
# what this machine has


def is_amd() -> bool:
    return "AMD" in str(CPU.get("cpu_name"))


def machine(device: torch.device) -> str:
    """Name the GPU, or the processor and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    name = CPU.get("cpu_name") or platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


def known_peak(device: torch.device, dtype: torch.dtype) -> tuple[float, str] | None:
    """Return (TFLOPS, GPU): the dense 16-bit peak of this GPU; None if it is not in the table."""
    if device.type != "cuda" or dtype.itemsize > 2 or not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    for key, peak in PEAK_TFLOPS.items():
        if f" {name}".endswith(f" {key}"):
            return peak, name
    return None


def memory_of(kind: str) -> tuple[float, str] | None:
    """Return the bytes that this process can have, and their owner. None: no such GPU."""
    if kind == "cuda":
        if not torch.cuda.is_available():
            return None
        return float(torch.cuda.get_device_properties(0).total_memory), "the GPU's"
    ram = float(psutil.virtual_memory().total)
    # Without a container there is no such file; without a limit it has "max".
    with suppress(OSError, ValueError):
        limit = float(CGROUP_LIMIT.read_text(encoding="ascii"))
        if limit < ram:
            return limit, "the limit of its container"
    return ram, "all RAM"


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def set_float32_products(device: Device, writes: bool) -> None:
    """Multiply float32 matrices with tf32's bits if that is the precision, else exactly.

    writes: the model writes text, token by token.
    """
    setting = "high" if device.precision == "tf32" else "highest"
    # A trick: by default PyTorch calls MKL, which uses AVX2 on AMD. With "medium" it calls oneDNN,
    # which uses AVX-512 and is twice as fast (FINDINGS.md#cpu-step), but not for the small products
    # of writing. A footgun: "medium" allows bfloat16. Without AMX oneDNN does not use it, and a
    # product shows that.
    if device.device.type == "cpu" and device.precision == "fp32" and not writes and is_amd():
        has_avx512 = CPU.get("avx512_f") and not CPU.get("amx_bf16")
        if has_avx512 and "ONEDNN_MAX_CPU_ISA" not in os.environ:
            torch.set_float32_matmul_precision("medium")
            product = torch.full((256, 256), 1 / 3) @ torch.eye(256)
            if (product == 1 / 3).all():
                setting = "medium"
    torch.set_float32_matmul_precision(setting)


def keep_freed_memory() -> bool:
    """Ask glibc not to give freed blocks back to the system. Returns True if it agrees."""
    # By default it returns large blocks and asks for them again in every step. The system clears
    # each page first: 4 to 9 % of the time of a 6 x 256 model (FINDINGS.md#cpu-step). In return the
    # process holds the most that it ever needed at once.
    if not sys.platform.startswith("linux"):
        return False
    trim_threshold = -1  # numbers of malloc.h
    mmap_threshold = -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    return bool(mallopt(mmap_threshold, 2**30)) and bool(mallopt(trim_threshold, 2**31 - 1))
