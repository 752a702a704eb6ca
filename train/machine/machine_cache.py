"""What did this machine show? Its speed in bf16 and its faults, in a small file that later runs read.

The file is in your cache folder (HEADLIGHT_CACHE names another one). Each machine has its own: another processor, GPU
or version of PyTorch is another machine. A file that cannot be read counts as empty. A run reads it when it begins;
what `auto` stood for is in its checkpoints from then on.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field

from configs.command import cache_folder
from model import LanguageModel, ModelConfig
from model.backends.choice import Situation, choose_attention
from train.machine.hardware import cpu_capabilities, cpu_instructions, cpu_kernels

# as wide as the demo: a wider model gains more
TRIAL = ModelConfig(
    vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads="mha"
)
ROUNDS = 4


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
        return Findings.model_validate_json(_file().read_bytes())
    except (OSError, ValueError):  # not there yet, or damaged
        return Findings()


def remember(findings: Findings) -> None:
    """Keep it for later runs. A folder that cannot be written stops nothing: then they measure again."""
    file = _file()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(findings.model_dump_json(indent=1), encoding="utf-8")
        temporary.replace(file)


def _file() -> Path:
    gpu = ""
    with suppress(AssertionError, RuntimeError):  # a GPU that is there and does not answer
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    cpu = platform.machine(), cpu_capabilities().get("cpu_name"), cpu_instructions(), cpu_kernels()
    key = hashlib.sha256(repr((torch.__version__, *cpu, gpu)).encode()).hexdigest()[:16]
    return cache_folder() / f"machine-{key}.json"


def bf16_speed() -> float:
    """How fast this CPU trains in bf16, where fp32 is 1. Measured the first time, then remembered; 0: not at all.

    What the processor says about itself does not decide it: with avx512_bf16 and without amx_bf16, an AMD EPYC was 1.9
    times as fast in bf16 in this trial, and an Intel Xeon 0.75 times (EXPERIMENTS.md).
    """
    found = recall()
    if found.bf16_speed is None:
        found = found.model_copy(update={"bf16_speed": _measured_speed()})
        remember(found)
    assert found.bf16_speed is not None
    return found.bf16_speed


def _measured_speed() -> float:
    """Steps of a small model in turns, one thread on its own clock: other programs on the cores do not count."""
    seconds: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    ids, documents = torch.arange(1024).view(4, 256) % 512, (torch.arange(256) // 100).expand(4, 256)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            lm = LanguageModel(TRIAL).train()
            for _ in range(1 + ROUNDS):
                for dtype, found in seconds.items():
                    here = Situation("cpu", dtype, TRIAL.head_size, gradients=True, documents=True)
                    lm.set_attn_implementation(choose_attention(here)[0])
                    began = time.process_time()
                    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                        loss_sum, _ = lm(ids, labels=ids, document_ids=documents)
                    loss_sum.backward()
                    found.append(time.process_time() - began)
    except (RuntimeError, NotImplementedError):
        return 0.0
    finally:
        torch.set_num_threads(threads)
    full, half = (sum(found[1:]) for found in seconds.values())  # the first one allocates
    return full / max(half, 1e-9)
