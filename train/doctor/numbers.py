"""Does the device compute the right numbers? Every backend and precision against float64, forward and backward."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from model import LanguageModel, ModelConfig
from model.backends.choice import BACKENDS, Situation, allowed_error, why_not, worst_error
from train.doctor.verdict import Verdict, in_short
from train.machine.precision import dtype_of, lacks

TRIED = {"cuda": ("fp32", "bf16", "fp16"), "cpu": ("fp32", "bf16", "fp16"), "mps": ("fp32",)}
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# of the length of the gradient: several times what was measured on a CPU (4e-7, 2e-2, 2e-3), far below what a wrong
# number makes; tf32 has the digits of fp16
ALLOWED = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 1e-1, "fp16": 2e-2}
SMALL = ModelConfig(vocab_size=192, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


def attention(name: str, kind: str, model: ModelConfig) -> Verdict:
    """A backend on this model's heads: in each precision, rows of one document and of several."""
    errors: list[str] = []
    faults: dict[str, str] = {}
    refused = ""
    for precision in TRIED.get(kind, ("fp32",)):
        if lacks(precision, kind):
            continue
        found, notes = -1.0, []
        for documents in (False, True):
            here = _situation(name, kind, precision, model, documents)
            if problem := why_not(name, here):
                refused = problem.removeprefix(f"attn_implementation: {name} ")
                notes += ["not packed"] if documents else []
                continue
            notes += [] if here.gradients or documents else ["forward only"]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # flex says on a CPU that it is slow there
                    found = _worst(found, worst_error(name, here))
                fault = "" if found <= allowed_error(here.dtype) else f"differs from float64 by {found:.0e}"
            except Exception as error:
                fault = in_short(error)
            if fault:
                faults[f"attention {kind} {name} {precision}"] = fault
        if found >= 0 or math.isnan(found):
            errors.append(f"{precision} {found:.0e}" + (f" ({', '.join(notes)})" if notes else ""))
    what = f"attention {name}"
    if faults:
        listed = ", ".join(f"{key.split()[-1]}: {fault}" for key, fault in faults.items())
        return Verdict("FAIL", what, f"{listed}; auto leaves it out", faults)
    return Verdict("ok", what, ", ".join(errors)) if errors else Verdict("--", what, refused)


def _situation(name: str, kind: str, precision: str, model: ModelConfig, documents: bool) -> Situation:
    """Training, or a forward pass alone where a backend has no more."""
    sizes = (model.head_size, model.num_key_value_groups)
    here = Situation(kind, dtype_of(precision), *sizes, gradients=True, documents=documents, value_dim=model.value_size)
    forward = replace(here, gradients=False)
    has_forward_only = precision == "fp32" and why_not(name, here) and not why_not(name, forward) and name != "blocked"
    return forward if has_forward_only else here


def _worst(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def precision(name: str, kind: str) -> Verdict:
    """A small model's loss and gradient, with the formula as attention, on packed rows and plain ones."""
    what = f"precision {name}"
    if problem := lacks(name, kind):
        return Verdict("--", what, problem)
    try:
        error = max(_model_error(name, kind, packed) for packed in (False, True))
        fault = "" if error <= ALLOWED[name] else f"the gradient differs from float64 by {error:.0e}"
    except Exception as raised:
        fault = in_short(raised)
    if fault:
        said = f"{fault}; auto leaves it out"
        return Verdict("FAIL", what, said, {f"precision {kind} {name}": fault}, is_fatal=name == "fp32")
    return Verdict("ok", what, f"a model's gradient is right within {error:.0e}, packed or not")


def _model_error(name: str, kind: str, packed: bool) -> float:
    """Length of the difference of the gradients, as a share of the length in float64; infinity for NaN."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lm = LanguageModel(SMALL).train()
        for parameter in lm.parameters():  # at first the output projections are zero, and hide what attention does
            parameter.data += 0.1 * torch.randn_like(parameter)
        ids = torch.randint(0, 192, (2, 96))
    lm.set_attn_implementation("eager")
    documents = (torch.arange(96) // 40).expand(2, 96) if packed else None
    exact = copy.deepcopy(lm).double()
    logits = exact(ids, document_ids=documents)
    exact_loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    lm.to(kind)
    half = dtype_of(name).itemsize == 2
    with _tf32(name == "tf32"), torch.autocast(kind, dtype_of(name)) if half else nullcontext():
        there = documents.to(kind) if documents is not None else None
        loss, _ = lm(ids.to(kind), labels=ids.to(kind), document_ids=there)
    expected, found = _gradient(exact_loss, exact), _gradient(loss, lm)
    error = float((found - expected).norm() / expected.norm())
    error = max(error, abs(float(loss.detach()) / float(exact_loss.detach()) - 1))
    return error if math.isfinite(error) else math.inf


def _gradient(loss: Tensor, lm: LanguageModel) -> Tensor:
    """Every number of the gradient, in float64 on the CPU."""
    return torch.cat([g.detach().cpu().double().flatten() for g in torch.autograd.grad(loss, list(lm.parameters()))])


@contextmanager
def _tf32(on: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def loss_scaling(kind: str) -> Verdict:
    """fp16 alone needs it: a loss scaled too far overflows, no step is taken, and the scale goes down until one is."""
    what, key = "fp16 loss scaling", f"precision {kind} fp16"
    if problem := lacks("fp16", kind):
        return Verdict("--", what, problem)
    try:
        weight = torch.ones(4, 4, device=kind, requires_grad=True)
        optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler(kind, init_scale=2.0**20)
        skipped = 0
        while bool((weight == 1).all()) and skipped < 20:
            with torch.autocast(kind, torch.float16):
                loss = (torch.ones(4, 4, device=kind) @ weight).float().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            skipped += 1
        right = bool((weight == 1 - 4).all()) and skipped > 1
        fault = "" if right else "an overflow moved the weights, or no step did"
    except Exception as error:
        fault = in_short(error)
    if fault:
        return Verdict("FAIL", what, f"{fault}; auto leaves fp16 out", {key: fault})
    return Verdict("ok", what, f"{skipped - 1} overflows were found and skipped, then a step was taken")


def all_attention(kind: str, model: ModelConfig) -> Iterator[Verdict]:
    """Of every backend that there is."""
    for name in BACKENDS:
        yield attention(name, kind, model)
