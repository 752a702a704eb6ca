"""The compiled step of decoding: one token is read, as fast as this machine can. `generate(compile=True)`.

On a CPU, PyTorch's library call for one row times a matrix took four times as long as memory needs (an AMD processor,
EXPERIMENTS.md). Inside a compiled model (x * w).sum() becomes one loop that reads each weight once. The sums are added
in another order, so the last bits differ. That is why only compiled decoding does this.

Threads wait for each other in every loop, and beside a busy program they wait long. Start Python with
OMP_NUM_THREADS=1 there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
