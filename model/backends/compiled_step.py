"""The compiled step of decoding: many small operations become few loops, and a token is read as fast as possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.transformer import LanguageModel

OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {"options": {"cpp.min_chunk_size": 16384}},  # to share a loop with fewer numbers a thread takes longer
    "cuda": {"mode": "reduce-overhead"},  # a CUDA graph; not tested yet
}
FEW = 32  # rows of a product


@cache
def compiled_step(kind: str) -> Callable[..., Tensor]:
    """`step(lm, ids, ...)`, compiled without graph breaks. Each model, batch and cache size compiles its own."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)  # 8 would soon be an error

    def step(lm: LanguageModel, *args: Any, **given: Any) -> Any:
        with FewRows():
            return lm(*args, **given)

    return torch.compile(step, fullgraph=True, dynamic=False, **OPTIONS.get(kind, {}))


class FewRows(TorchFunctionMode):
    """`with FewRows():` every F.linear on a CPU with at most FEW rows is computed in another way.

    PyTorch's library call for one row took four times as long as memory needs (FINDINGS.md#decoding). Compiled,
    (x * w).sum() becomes one loop that reads each weight once. It adds in another order, so eager decoding keeps the
    library's bits.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear and len(args) == 3:  # as an nn.Linear calls it
            x, weight, bias = args
            rows = x.numel() // x.shape[-1]
            is_plain = type(weight) in (Tensor, nn.Parameter)  # quantised weights bring their own product
            if rows <= FEW and x.device.type == "cpu" and is_plain:
                product = (x.unsqueeze(-2) * weight).sum(dim=-1) if rows == 1 else None
                if product is None:  # the tall weight in front: it made a step of 16 rows a fifth faster
                    product = (weight @ x.flatten(0, -2).T).T.contiguous().view(*x.shape[:-1], -1)
                return product if bias is None else product + bias
        return function(*args, **(kwargs or {}))
