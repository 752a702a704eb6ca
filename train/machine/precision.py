"""In which number format does a run compute? What `auto` stands for, and why.

On a GPU its instructions decide. On a CPU a trial decides, once: the name of a processor says little. One with AMX
trains in bf16 up to twice as fast as in fp32. One that only has AVX-512's bf16 instructions is slower in bf16, and one
without those is many times slower (EXPERIMENTS.md).
"""

from __future__ import annotations

import time

import torch

from configs.command import InputError
from model import LanguageModel, ModelConfig
from model.backends.choice import Situation, choose_attention
from train.machine.findings import Findings, recall, remember

AS_BEFORE = "auto: as this run began"
PAYS = 1.1  # times as fast as fp32; below it, bf16 is not worth its rounding
HOPELESS = 1 / 3  # a first step as slow as this ends the trial
ROUNDS = 4
# as wide as the demo
TRIAL = ModelConfig(
    vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads="mha"
)


def resolve_precision(wanted: str, kind: str, earlier: str | None = None) -> tuple[str, str]:
    """The precision, and why. Raises InputError for one that the device does not have.

    earlier: what a run that is resumed has taken; it is kept, whatever has been found since.
    """
    if wanted == "auto":
        is_kept = earlier is not None and lacks(earlier, kind) is None
        return (str(earlier), AS_BEFORE) if is_kept else _chosen(kind)
    if problem := lacks(wanted, kind):
        raise InputError(f"train.precision is {wanted}, {problem}")
    return wanted, "asked for"


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


def _chosen(kind: str) -> tuple[str, str]:
    """The first of the precisions that pay here with nothing known against it; fp32 in the end."""
    passed_over: list[str] = []
    for precision, reason in _paying(kind).items():
        if (fault := recall().fault("precision", kind, precision)) is None:
            return precision, "; ".join([f"auto: {reason}", *passed_over])
        passed_over.append(f"not {precision}: {fault}")
    return "fp32", "; ".join(["auto: the last that is left", *passed_over])


def _paying(kind: str) -> dict[str, str]:
    """The precisions that are quicker than fp32, and fp32, each with its reason."""
    if kind == "cuda":
        has_bf16 = lacks("bf16", kind) is None
        return {"bf16": "this GPU computes in bf16"} if has_bf16 else {"fp16": "this GPU lacks bf16"}
    if kind != "cpu":
        return {"fp32": f"nothing else trains on {kind}"}
    speed = bf16_speed()
    if speed >= PAYS:
        return {"bf16": f"{speed:.1f} × as fast as fp32 in a trial on this CPU"}
    return {"fp32": f"bf16 is only {speed:.2g} × as fast in a trial on this CPU"}


def bf16_speed() -> float:
    """How fast this CPU trains in bf16, where fp32 is 1. Measured the first time, then remembered; 0: not at all."""
    found = recall()
    if found.bf16_speed is None:
        found = found.model_copy(update={"bf16_speed": _measured_speed()})
        remember(found)
    assert found.bf16_speed is not None
    return found.bf16_speed


def _measured_speed() -> float:
    """Steps of a small model in turns, one thread on its own clock: other programs on the cores do not count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            lm = LanguageModel(TRIAL).train()
            _seconds(lm, torch.float32)  # the first step allocates
            if (once := _seconds(lm, torch.float32) / _seconds(lm, torch.bfloat16)) < HOPELESS:
                return once
            pairs = [(_seconds(lm, torch.float32), _seconds(lm, torch.bfloat16)) for _ in range(ROUNDS)]
    except (RuntimeError, NotImplementedError):
        return 0.0
    finally:
        torch.set_num_threads(threads)
    full, half = (sum(times) for times in zip(*pairs, strict=True))
    return full / max(half, 1e-9)


def _seconds(lm: LanguageModel, dtype: torch.dtype) -> float:
    """That this process computes for a forward and backward pass of 4 rows of packed documents."""
    ids, documents = torch.arange(1024).view(4, 256) % 512, (torch.arange(256) // 100).expand(4, 256)
    here = Situation("cpu", dtype, lm.config.head_size, gradients=True, documents=True)
    lm.set_attn_implementation(choose_attention(here)[0])
    before = time.process_time()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss_sum, _ = lm(ids, labels=ids, document_ids=documents)
    loss_sum.backward()
    return time.process_time() - before


def avoided(found: Findings, kind: str, precision: str) -> dict[str, str]:
    """The attention backends that train.doctor found wrong in this precision, and why."""
    start, end = f"attention {kind} ", f" {precision}"
    names = [key.removeprefix(start).removesuffix(end) for key in found.faults if key.startswith(start)]
    return {name: fault for name in names if (fault := found.fault("attention", kind, name, precision))}
