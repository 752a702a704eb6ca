"""Norms: bring the numbers of a token to one size, so that no layer sees them grow or shrink."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from model.config import ModelConfig


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight over the last dimension (Zhang et al., arXiv 1910.07467).

    gain: the first value of the weight.
    """

    # AdamW trains it: Muon is for matrices (train/optimizer.py)
    optimizer_group = "vector"

    def __init__(self, size: int, eps: float, gain: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), gain))
        self.eps = eps
        self.gain = gain

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, self.gain)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.device.type == "cpu" and not torch.compiler.is_compiling():
            return _RMSNorm.apply(x, self.weight, self.eps)
        return self.weight * _normalized(x, self.eps)[0]


class HeadsNorm(RMSNorm):
    """One norm over all heads of a token, as in OLMo 2: x (B, T, H, D), weight (H * D,)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(2)).view(x.shape)


class LayerNorm(nn.LayerNorm):
    """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, GPT-2's norm (arXiv 1607.06450)."""

    optimizer_group = "vector"

    def __init__(self, size: int, eps: float, gain: float = 1.0):
        self.gain = gain
        super().__init__(size, eps)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, self.gain)
        nn.init.zeros_(self.bias)


class NoNorm(nn.Identity):
    """No norm: to see what norms are for (FINDINGS.md#parts)."""

    def reset_parameters(self) -> None:
        pass


def initialize(module: nn.Module, output: str | tuple[()] = ()) -> None:
    """Draw matrices with std 1 / sqrt(inputs), which keeps activations at their scale.

    The `output` projection is zero, so the module starts as a no-op; biases are zero as well.
    """
    for name, parameter in module.named_parameters():
        # a sum of n products of random numbers grows with sqrt(n); the last dimension is n
        if parameter.ndim > 1 and not name.startswith(output):
            nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[-1]))
        else:
            nn.init.zeros_(parameter)
    for norm in module.modules():
        if isinstance(norm, RMSNorm | LayerNorm):
            norm.reset_parameters()


Norm = RMSNorm | LayerNorm | NoNorm


def make_norm(config: ModelConfig, gain: float = 1.0) -> Norm:
    if config.norm == "none":
        return NoNorm()
    kind = LayerNorm if config.norm == "layernorm" else RMSNorm
    return kind(config.hidden_size, config.rms_norm_eps, gain)


def _normalized(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x with a mean square of 1, in its own dtype, and the float32 factor."""
    x32 = x.float()  # in 16 bits, a sum of squares would be rounded or overflow
    factor = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)  # (…, 1)
    return (x32 * factor).to(x.dtype), factor  # cast before the weight, as transformers does


class _RMSNorm(torch.autograd.Function):
    """The same numbers with a third of autograd's backward operations, which small models feel.

    With n = x * factor, y = weight * n and d = weight * dL/dy:
        dL/dx = factor * (d - n * mean(d * n))
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normalized, factor = _normalized(x, eps)
        ctx.save_for_backward(normalized, factor, weight)
        return weight * normalized

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        normalized, factor, weight = ctx.saved_tensors
        (gradient,) = gradients  # dL/dy
        product = gradient * normalized
        mean = product @ weight.to(product.dtype) / weight.shape[0]  # mean(d * n)
        x_grad = torch.addcmul(gradient * weight, normalized, mean[..., None], value=-1)
        x_grad = x_grad.mul_(factor)
        # the weight is shared by all tokens, so its gradient is a sum over them
        return x_grad.to(normalized.dtype), product.flatten(0, -2).sum(0).to(weight.dtype), None
