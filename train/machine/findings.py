"""What did this machine show? Measured speeds and faults, in a small file that later runs read.

The file is in your cache folder (HEADLIGHT_CACHE names another one). Each machine has its own: another processor, GPU
or version of PyTorch is another machine. Whatever is wrong with the file, it counts as empty. A run reads it when it
begins; what `auto` stood for is in its checkpoints from then on.
"""

from __future__ import annotations

import hashlib
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from configs.cache import cache_folder
from configs.command import InputError
from configs.read_back import read_json
from train.machine.processor import cpu_capabilities, cpu_kernels

MOST_BYTES = 1_000_000


class Findings(BaseModel):
    """bf16_speed: of training in bf16 on the CPU, where fp32 is 1; None: not measured yet.

    faults: what `auto` must not take, and why, as train.doctor found on the day `checked`. The keys are "device cuda",
    "precision cuda bf16", "attention cuda flash bf16", "compile cpu".
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    bf16_speed: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    faults: dict[str, str] = {}
    checked: str = ""

    def fault(self, *what: str) -> str | None:
        """Why `auto` must not take it; None if nothing is known against it."""
        found = self.faults.get(" ".join(what))
        return found and f"{found} (train.doctor, {self.checked})"


def recall() -> Findings:
    """What is known about this machine."""
    try:
        return read_json(_file(), Findings, MOST_BYTES)
    except InputError:  # not there yet, or damaged
        return Findings()


def remember(findings: Findings) -> bool:
    """Keep it for later runs; returns whether that was possible. A folder that cannot be written stops nothing."""
    file = _file()
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(findings.model_dump_json(indent=1), encoding="utf-8")
        temporary.replace(file)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        return False
    return True


def _file() -> Path:
    return cache_folder() / f"machine-{hashlib.sha256(_machine().encode()).hexdigest()[:16]}.json"


def _machine() -> str:
    """What speed and faults depend on."""
    gpu = ""
    with suppress(AssertionError, RuntimeError):  # a GPU that is there and does not answer
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    instructions = sorted(name for name, there in cpu_capabilities().items() if there is True)
    cpu = cpu_capabilities().get("cpu_name")
    return repr((torch.__version__, platform.machine(), cpu, instructions, cpu_kernels(), gpu))
