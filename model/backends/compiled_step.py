"""The compiled step of decoding: many small operations become few loops."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.transformer import LanguageModel

OPTIONS: dict[str, dict[str, Any]] = {
    # threads do not share smaller loops
    "cpu": {"options": {"cpp.min_chunk_size": 16384}},
    # a CUDA graph; not tested yet
    "cuda": {"mode": "reduce-overhead"},
}
# A product with at most so many rows has its own loops.
FEW = 32


@cache
def compiled_step(kind: str) -> Callable[..., Tensor]:
    """Compile `step(lm, ids, ...)`, once for each model, batch and cache size."""
    # the default of 8 would soon be an error
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)

    def step(lm: LanguageModel, *args: Any, **kwargs: Any) -> Any:
        with FewRows():
            return lm(*args, **kwargs)

    return torch.compile(step, fullgraph=True, dynamic=False, **OPTIONS.get(kind, {}))


class FewRows(TorchFunctionMode):
    """Compute every F.linear on a CPU with at most FEW rows in another way.

    PyTorch's library call for one row took four times as long as reading the weights
    (FINDINGS.md#decoding). Compiled, (x * w).sum() becomes one loop that reads each weight once.
    """

    # note: it adds in another order, so only compiled decoding uses it

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is F.linear and len(args) == 3:  # as an nn.Linear calls it
            x, weight, bias = args
            rows = x.numel() // x.shape[-1]
            # quantised weights bring their own product
            is_plain = type(weight) in (Tensor, nn.Parameter)
            if rows <= FEW and x.device.type == "cpu" and is_plain:
                if rows == 1:
                    product = (x.unsqueeze(-2) * weight).sum(dim=-1)
                else:
                    # the tall weight in front made a step of 16 rows a fifth faster
                    product = (weight @ x.flatten(0, -2).T).T.contiguous().view(*x.shape[:-1], -1)
                return product if bias is None else product + bias
        return function(*args, **(kwargs or {}))
