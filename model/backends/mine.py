"""Attention that you wrote yourself: with `model.attn_implementation: mine`, a function of your own file computes it.

    def attention(q, k, v, mask):    # q, k, v (B, H, T, D); mask (B, 1, T, S), True = may look -> (B, H, T, D)

Training opens the file, because its command line says whose code may run (train/config.py). Opening a model runs none:
what your function has trained loads everywhere, with any backend.
"""

from __future__ import annotations

import importlib.util
import linecache
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from configs.command import InputError, is_out_of_memory
from model.attention import eager, repeat_kv
from model.masks import MaskSpec, boolean_mask

EXACT = 1e-4  # what float32 may differ by, of numbers around 1
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v, mask -> output
_opened: dict[Path, Attention] = {}  # at most one: what this process trains with


def open_file(path: str) -> str:
    """Run a Python file and take its function `attention` from here on. Returns a sentence on how it compares with the
    formula: it need not be the formula. Raises InputError for a function that is missing or fails on a small example.
    """
    _opened.clear()
    file = Path(path).absolute()
    try:
        _opened[file] = run_file(file).attention
    except (Exception, SystemExit) as error:  # it is a user's code
        raise InputError(f"model.my_attention: {blame(error, file)}") from None
    draw, places = torch.Generator().manual_seed(0), torch.arange(6)
    documents = torch.tensor([[0] * 6, [0, 0, 1, 1, 1, 2]])
    mask = boolean_mask(MaskSpec(places, places, 2, document_ids=documents))
    assert mask is not None
    q, k, v = inputs = [torch.randn(2, 2, 6, 8, generator=draw).requires_grad_() for _ in range(3)]
    results = []
    for function in (attend, eager):
        out = function(q, k, v, mask, 0.0)
        if not out.requires_grad:
            raise InputError(f"model.my_attention: what {path} returns has no gradient, so nothing could be learned")
        gradients = torch.autograd.grad(out.square().sum(), inputs, allow_unused=True, materialize_grads=True)
        results.append(torch.stack((out, *gradients)))
    if (difference := (results[0] - results[1]).abs().max().item()) <= EXACT:
        return f"attention is computed by {path}; it gives the formula's numbers and gradients"
    not_shown = "so maps of attention weights would not be its own, and the attention hook will say so and stop"
    return f"warning: attention is computed by {path}, which differs from the formula by {difference:.2g}: {not_shown}"


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """The backend. Key/value heads are repeated before, so that the function sees as many as there are queries."""
    ((file, function),) = _opened.items()
    groups = q.shape[1] // k.shape[1]
    try:
        out = function(q, repeat_kv(k, groups), repeat_kv(v, groups), mask.expand(len(q), -1, -1, -1))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise InputError(f"model.my_attention: {blame(error, file)}") from None
    shape = (*q.shape[:3], v.shape[3])
    if not isinstance(out, Tensor) or out.shape != shape:
        given = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"type {type(out).__name__}"
        raise InputError(f"model.my_attention: {file} returned something of {given} for queries of {tuple(q.shape)}")
    return out.to(v.dtype)


def whole_mask(spec: MaskSpec) -> Tensor | None:
    """Every rule written out, also where causality alone would say it all."""
    return boolean_mask(replace(spec, all_visible=False))


def problem() -> str | None:
    """Why there is nothing to compute with; None if there is."""
    return None if _opened else "is for training with a file of your own, which model.my_attention names"


def run_file(file: Path) -> ModuleType:
    """A Python file as a module, though it lies in no package. Raises what it raises."""
    linecache.checkcache(str(file))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blame(error: BaseException, file: Path) -> str:
    """What somebody's file did wrong, in one line, with its last line that led there."""
    what = f"{type(error).__name__}: {error}".strip(": ").replace("\n", " ")
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if frames:
        return f"{file}, line {frames[-1].lineno}: `{frames[-1].line}` raises {what}"
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return f"{file} has no `{error.name}`"
    return f"{file}: {what}"
