"""Matrix products as an architecture of transformers computes them, so that logits agree to the last bit.

A product is a sum, and a library adds it up in another order when the matrix lies in memory the other way round, or
when it is part of a wider one. Almost every architecture has plain nn.Linear layers. GPT-2 stores each matrix
transposed, and computes queries, keys and values in one product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.families import fitting_family


class Conv1D(nn.Linear):
    """nn.Linear, added up in the order of GPT-2's layer of this name when a model on a CPU is evaluated.

    Its parameters are nn.Linear's. Training, a GPU and compiled code take nn.Linear's product: the same numbers but for
    rounding, without a copy of the matrix.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self._is_plain(x) else _transposed(x, [self])

    def _is_plain(self, x: Tensor) -> bool:
        return self.training or x.device.type != "cpu" or torch.compiler.is_compiling()


def make_linear(config: ModelConfig) -> type[nn.Linear]:
    """The class of a layer's products, in attention and in the feed-forward part."""
    family = fitting_family(config)
    return Conv1D if family is not None and family.transposed else nn.Linear


def side_by_side(x: Tensor, *layers: nn.Module) -> tuple[Tensor, ...]:
    """The output of each layer for x; in one product where GPT-2 has one."""
    exact = [layer for layer in layers if type(layer) is Conv1D and not layer._is_plain(x)]
    if len(exact) == len(layers):
        return _transposed(x, exact).split([layer.out_features for layer in exact], dim=-1)
    return tuple(layer(x) for layer in layers)


def _transposed(x: Tensor, layers: list[Conv1D]) -> Tensor:
    """One product with all matrices, which lie in memory as (inputs, outputs)."""
    weight = torch.cat([layer.weight.T for layer in layers], dim=1)
    return F.linear(x, weight.T, torch.cat([layer.bias for layer in layers]))


def zero_biases(*layers: nn.Linear) -> None:
    """Biases start at zero, where a layer has one."""
    for layer in layers:
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
