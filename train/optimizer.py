"""Parameter groups, AdamW, Muon."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from train.config import OptimizerConfig

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # steepest slope at zero; Jordan's constants


def orthogonalize(matrices: Tensor, steps: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: (N, rows, columns) -> the same shape.

    Newton-Schulz iteration X <- aX + b(XXᵀ)X + c(XXᵀ)²X, which drives every singular value to about 1.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrices.to(dtype)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """MomentUm Orthogonalized by Newton-Schulz, for the weight matrices of the blocks.

    Nesterov momentum, then the update is made orthogonal, so that it moves every direction equally; scaled by
    sqrt(max(1, rows / columns)). Jordan et al. 2024, kellerjordan.github.io/posts/muon. Same-shaped matrices
    are orthogonalised in one batch; on CPU in float32, because bfloat16 products are slow on many.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                self._step_same_shape(group, shape, parameters)

    def _step_same_shape(self, group: dict, shape: torch.Size, parameters: list[nn.Parameter]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        updates = []
        for parameter in parameters:
            state, grad = self.state[parameter], parameter.grad
            assert grad is not None
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(grad)
            buffer = state["momentum_buffer"].lerp_(grad, 1 - momentum)
            updates.append(grad.lerp(buffer, momentum))
        dtype = self.dtype or (torch.bfloat16 if parameters[0].is_cuda else torch.float32)
        scale = math.sqrt(max(1.0, shape[0] / shape[1]))
        orthogonal = orthogonalize(torch.stack(updates), dtype=dtype)
        for parameter, update in zip(parameters, orthogonal, strict=True):
            parameter.mul_(1 - lr * group["weight_decay"])
            parameter.add_(update, alpha=-lr * scale)


def build_optimizers(lm: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices of the blocks and AdamW for the rest.

    Weight decay applies to matrices only; an untied embedding is a table of vectors that is looked up, so it has
    a rate of its own and no decay. Every group remembers its peak learning rate as `peak_lr`.
    """
    blocks, matrices, embeddings, vectors = [], [], [], []
    tied = lm.get_parameter("lm_head.weight") is lm.get_parameter("model.embed_tokens.weight")
    for name, parameter in lm.named_parameters():
        if parameter.ndim < 2:
            vectors.append(parameter)
        elif ".layers." in name:
            blocks.append(parameter)
        elif "embed_tokens" in name and not tied:
            embeddings.append(parameter)
        else:
            matrices.append(parameter)
    optimizers: list[torch.optim.Optimizer] = []
    lr = config.lr
    if config.name == "muon":
        optimizers.append(Muon(blocks, config.lr, config.momentum, config.weight_decay))
        blocks, lr = [], config.adamw_lr
    groups: list[dict[str, Any]] = [
        {"params": blocks + matrices, "lr": lr, "weight_decay": config.weight_decay},
        {"params": embeddings, "lr": config.embedding_lr or lr, "weight_decay": 0.0},
        {"params": vectors, "lr": lr, "weight_decay": 0.0},
    ]
    betas = (config.betas[0], config.betas[1])
    fused = vectors[0].is_cuda
    groups = [group for group in groups if group["params"]]
    optimizers.append(torch.optim.AdamW(groups, betas=betas, eps=config.eps, fused=fused))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def set_learning_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> float:
    """Set every group to factor * its peak; returns the first group's rate (Muon's, or AdamW's)."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
    return optimizers[0].param_groups[0]["lr"]
