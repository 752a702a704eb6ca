"""Matrix products of one or a few rows on a CPU, as in decoding: the same sums, computed faster.

Only inside a compiled model: there (x * w).sum() becomes one loop that reads each weight once, at the speed of the
memory. PyTorch's library call took four times as long on an AMD processor (EXPERIMENTS.md). The sums are added in
another order, so the last bits differ. That is why only compiled decoding uses this.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

FEW = 32


class FewRows(TorchFunctionMode):
    """`with FewRows():` every F.linear on a CPU with at most FEW rows is computed this way."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear and len(args) == 3:  # as an nn.Linear calls it
            x, weight, bias = args
            rows = x.numel() // x.shape[-1]
            is_plain = type(weight) in (Tensor, nn.Parameter)  # quantised weights bring their own product
            if rows <= FEW and x.device.type == "cpu" and is_plain:
                product = one_row(x, weight) if rows == 1 else few_rows(x, weight)
                return product if bias is None else product + bias
        return function(*args, **(kwargs or {}))


def one_row(x: Tensor, weight: Tensor) -> Tensor:
    """x (…, inputs) with one row, weight (outputs, inputs) -> (…, outputs)."""
    return (x.unsqueeze(-2) * weight).sum(dim=-1)


def few_rows(x: Tensor, weight: Tensor) -> Tensor:
    """The product with the tall weight in front: it made a step of 16 rows a fifth faster."""
    columns = x.reshape(-1, x.shape[-1]).T.contiguous()
    return (weight @ columns).T.contiguous().view(*x.shape[:-1], -1)
