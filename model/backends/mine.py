"""Attention that you wrote yourself: set `model.attn_implementation: mine` and name your file.

    def attention(q, k, v, mask):    # q, k, v (B, H, T, D) -> (B, H, T, D)
                                     # mask (B, 1, T, S), True = may look

Training runs the file, if your config may name code to run (train/config.py). Loading a model never
does: it loads everywhere, with any backend.
"""

import importlib.util
import linecache
import sys
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

# Float32 may differ by this much, for numbers around 1.
EXACT = 1e-4
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v, mask -> output
# At most one: the function that this process trains with.
_opened: dict[Path, Attention] = {}


def open_file(path: str) -> str:
    """Run a Python file and train with its function `attention`; return a sentence about it.

    Raises InputError for a function that is missing or fails on a small example.
    """
    _opened.clear()
    file = Path(path).absolute()
    try:
        _opened[file] = run_file(file).attention
    except (Exception, SystemExit) as error:  # it is a user's code
        raise InputError(f"model.my_attention: {blame(error, file)}") from None

    # two packed rows, forward and backward, beside the formula (which it need not be)
    draw = torch.Generator().manual_seed(0)
    positions = torch.arange(6)
    documents = torch.tensor([[0] * 6, [0, 0, 1, 1, 1, 2]])
    mask = boolean_mask(MaskSpec(positions, positions, 2, document_ids=documents))
    assert mask is not None
    q, k, v = inputs = [torch.randn(2, 2, 6, 8, generator=draw).requires_grad_() for _ in range(3)]
    results = []
    for function in (attend, eager):
        out = function(q, k, v, mask, 0.0)
        if not out.requires_grad:
            problem = f"the result of {path} has no gradient, so nothing could be learned"
            raise InputError(f"model.my_attention: {problem}")
        loss = out.square().sum()
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
        results.append(torch.stack((out, *gradients)))
    difference = (results[0] - results[1]).abs().max().item()
    if difference <= EXACT:
        return f"attention is computed by {path}; it gives the formula's numbers and gradients"
    return (
        f"warning: attention is computed by {path}, which differs from the formula by "
        f"{difference:.2g}: so maps of attention weights would not be its own, and the attention "
        "hook will stop"
    )


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Call the user's function, with a key/value head for every query head."""
    ((file, function),) = _opened.items()
    groups = q.shape[1] // k.shape[1]
    try:
        mask = mask.expand(len(q), -1, -1, -1)  # (B, 1, T, S)
        out = function(q, repeat_kv(k, groups), repeat_kv(v, groups), mask)
    except Exception as error:
        if is_out_of_memory(error):  # training tries again with smaller batches
            raise
        raise InputError(f"model.my_attention: {blame(error, file)}") from None
    if isinstance(out, Tensor) and out.shape == (*q.shape[:3], v.shape[3]):
        return out.to(v.dtype)
    kind = f"type {type(out).__name__}"
    if isinstance(out, Tensor):
        kind = f"shape {tuple(out.shape)}"
    problem = f"{file} returned something of {kind} for queries of {tuple(q.shape)}"
    raise InputError(f"model.my_attention: {problem}")


def whole_mask(spec: MaskSpec) -> Tensor | None:
    """Write every rule out, even if causality alone would be enough."""
    return boolean_mask(replace(spec, all_visible=False))


def problem() -> str | None:
    """Return why there is nothing to compute with; None if there is."""
    if _opened:
        return None
    return "is for training with a file of your own, which model.my_attention names"


def run_file(file: Path) -> ModuleType:
    """Import a Python file that is in no package. Raises what it raises."""
    linecache.checkcache(str(file))  # a traceback must not show lines of an older version
    # Named by its path: a file model.py must not take the place of the package `model`.
    spec = importlib.util.spec_from_file_location(str(file), file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[str(file)] = module  # a dataclass looks for its module there
    spec.loader.exec_module(module)
    return module


def blame(error: BaseException, file: Path) -> str:
    """Return what the file did wrong, in one line, with its last line in the traceback."""
    problem = f"{type(error).__name__}: {error}".strip(": ").replace("\n", " ")
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    # the last call in the user's file; below it there may be calls of PyTorch
    calls = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in calls if frame.filename == str(file)]
    if frames:
        return f"{file}, line {frames[-1].lineno}: `{frames[-1].line}` raises {problem}"
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return f"{file} has no `{error.name}`"
    return f"{file}: {problem}"
