"""The compiled step of decoding: one token is read, as fast as this machine can. `generate(compile=True)`.

On a CPU two things cost more than the arithmetic (figures: EXPERIMENTS.md).

*Products of few rows.* PyTorch's library call for one row times a matrix took four times as long as memory needs on an
AMD processor. Inside a compiled model (x * w).sum() becomes one loop that reads each weight once. The sums are added in
another order, so the last bits differ. That is why only compiled decoding does this.

*Threads that wait for each other.* Alone they are quicker than one thread. Beside busy programs a token took ten times
as long on two threads as on one. So a few tokens are timed both ways, again and again, and at once where a token takes
far too long. Both ways run the same compiled code, and no sum is split between threads: the numbers are equal.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.transformer import LanguageModel

FEW = 32  # rows of a product
# loops with fewer numbers a thread are not shared out between threads, because the sharing takes longer
OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {"options": {"cpp.min_chunk_size": 16384}},
    "cuda": {"mode": "reduce-overhead"},  # a CUDA graph; not tested yet
}
TRIAL = 8  # tokens of each way
PAUSE = 512  # tokens between two trials
SLOW = 4  # times as long as in the trial: look again now


def compiled_reader(lm: LanguageModel) -> Callable[..., Tensor]:
    """`lm(...)` for one token at a time."""
    kind = next(lm.parameters()).device.type
    step, library = partial(compiled_step(kind), lm), openmp()
    if kind != "cpu" or torch.get_num_threads() == 1 or library is None:
        return step
    way = quicker_way()
    on_one = next(way)

    def timed_step(*args: Any, **given: Any) -> Tensor:
        nonlocal on_one
        before, levels = time.perf_counter(), library.omp_get_max_active_levels()
        # no parallel loops. PyTorch's own number of threads stays: compiled code checks it, and would compile again
        library.omp_set_max_active_levels(0 if on_one else levels)
        try:
            return step(*args, **given)
        finally:
            library.omp_set_max_active_levels(levels)
            on_one = way.send(time.perf_counter() - before)

    return timed_step


@cache
def compiled_step(kind: str) -> Callable[..., Tensor]:
    """`step(lm, ids, ...)`, compiled without graph breaks. Each model, batch and cache size compiles its own."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)  # 8 would soon be an error

    def step(lm: LanguageModel, *args: Any, **given: Any) -> Any:
        with FewRows():
            return lm(*args, **given)

    return torch.compile(step, fullgraph=True, dynamic=False, **OPTIONS.get(kind, {}))


class FewRows(TorchFunctionMode):
    """`with FewRows():` every F.linear on a CPU with at most FEW rows is computed in another way."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear and len(args) == 3:  # as an nn.Linear calls it
            x, weight, bias = args
            rows = x.numel() // x.shape[-1]
            is_plain = type(weight) in (Tensor, nn.Parameter)  # quantised weights bring their own product
            if rows <= FEW and x.device.type == "cpu" and is_plain:
                if rows == 1:
                    product = (x.unsqueeze(-2) * weight).sum(dim=-1)
                else:  # the tall weight in front: it made a step of 16 rows a fifth faster
                    columns = x.reshape(-1, x.shape[-1]).T.contiguous()
                    product = (weight @ columns).T.contiguous().view(*x.shape[:-1], -1)
                return product if bias is None else product + bias
        return function(*args, **(kwargs or {}))


def quicker_way() -> Generator[bool, float, None]:
    """Yields whether the next step is to run on one thread, and is sent the seconds that it took."""
    yield True  # the first step may compile: its time says nothing
    while True:
        one = everyone = 0.0
        for _ in range(TRIAL):
            one += yield True
        for _ in range(TRIAL):
            everyone += yield False
            if everyone >= one:  # given up at once: beside a busy program a single step is as long as this
                break
        on_one, usual = everyone >= one, everyone / TRIAL
        for _ in range(PAUSE):
            seconds = yield on_one
            if not on_one and seconds > SLOW * usual:  # another program came; one thread waits for nobody
                break


@cache
def openmp() -> ctypes.CDLL | None:
    """The library that starts PyTorch's threads; None where it is unknown, and all threads stay."""
    folder = Path(torch.__file__).parent / "lib"
    for pattern in ("libgomp*", "libiomp5*", "libomp*"):
        for file in sorted(folder.glob(pattern)):
            with suppress(OSError, AttributeError):
                library = ctypes.CDLL(str(file))
                library.omp_set_max_active_levels  # noqa: B018  # raises where it has none
                return library
    return None
