"""Where a run computes and in which precision: what `auto` stands for on this machine, and why."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from configs.loader import InputError
from model.attention_backends import Situation, choose_attention, why_not
from train.config import RunConfig


@dataclass(frozen=True)
class Device:
    """The resolved choices; `notes` says in words what was chosen and why. attention: a backend's name."""

    device: torch.device
    precision: str
    compile: bool
    attention: str
    notes: tuple[str, ...]

    def autocast(self) -> AbstractContextManager:
        """bf16 matrix products over fp32 weights, or nothing."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def resolve_device(run_config: RunConfig) -> Device:
    """Raises InputError for a device or a precision that is asked for and is not there."""
    config = run_config.train
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = config.device
    if kind == "auto":
        kind = "cuda" if available["cuda"] else "mps" if available["mps"] else "cpu"
    elif not available[kind]:
        found = ", ".join(name for name, there in available.items() if there)
        raise InputError(
            f"train.device is {kind}, but PyTorch {torch.__version__} finds none here: use auto or one of: {found}"
        )
    precision: str = config.precision
    reason = "asked for"
    if precision == "auto":
        precision, reason = _quick_precision(kind)
    elif precision == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise InputError("train.precision is bf16, but this GPU has no bf16 instructions: use auto or fp32")
    compiled, why = config.compile is True, "asked for"
    if config.compile == "auto":
        compiled, why = kind == "cuda", "auto: on CUDA only; on a CPU it takes a minute and gains a tenth"
    attention, choice = resolve_attention(run_config, kind, precision, compiled)
    notes = (
        f"device {kind} ({'asked for' if config.device != 'auto' else 'auto'})",
        f"precision {precision} ({reason})",
        f"compile {'on' if compiled else 'off'} ({why})",
        f"attention {attention} ({choice})",
    )
    return Device(torch.device(kind), precision, compiled, attention, notes)


def resolve_attention(run_config: RunConfig, kind: str, precision: str, compiled: bool) -> tuple[str, str]:
    """The backend that trains, and why. Raises InputError for one that is asked for and cannot serve this run."""
    model, data = run_config.model, run_config.data
    situation = Situation(
        device=kind,
        dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
        head_dim=model.head_size,
        num_key_value_groups=model.num_key_value_groups,
        dropout=model.attention_dropout,
        gradients=True,
        documents=data.isolate_documents,
        windows=model.sliding_window is not None,
        compiled=compiled,
    )
    if model.attn_implementation == "auto":
        backend, reason = choose_attention(situation)
        return backend, f"auto: {reason}"
    if problem := why_not(model.attn_implementation, situation):
        raise InputError(f"model.{problem}")
    return model.attn_implementation, "asked for"


def _quick_precision(kind: str) -> tuple[str, str]:
    if kind == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", "auto: this GPU computes in bf16") if supported else ("fp32", "auto: this GPU lacks bf16")
    capabilities = cpu_capabilities() if kind == "cpu" else {}
    if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"):
        return "bf16", "auto: this CPU has bf16 instructions"
    return "fp32", "auto: bf16 would be slow here"


def cpu_capabilities() -> dict[str, Any]:
    """What PyTorch knows about the processor; empty where it does not tell."""
    return dict(getattr(torch.cpu, "get_capabilities", dict)())


def machine(device: torch.device) -> str:
    """The GPU, or the processor and the number of threads, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    name = cpu_capabilities().get("cpu_name") or platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"
