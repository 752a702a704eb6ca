"""Optimizers: parameter groups, AdamW, Muon, and the learning rate over time.

The learning rate is a pure function of progress, so there is nothing to save and nothing to
restore.

Both optimizers read the attribute `found_inf`, a 0-dim float tensor on the device, as PyTorch's
fused AdamW does: at 1.0 a step changes nothing at all (weights, momentum, step count), and the CPU
need not wait for the device.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from model import LanguageModel
from train.config import OptimizerConfig, RunConfig
from train.machine.distributed import ALONE, World, share

GROUPS = ("matrix", "expert", "embedding", "head", "vector", "adapter")
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # steepest slope at zero; Jordan's constants
FUSED = ("cpu", "cuda", "mps")  # devices on which PyTorch has AdamW as one kernel


def orthogonalize(matrices: Tensor, steps: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return roughly the nearest (semi-)orthogonal matrices.

    matrices (N, rows, columns): no more rows than columns.

    Newton-Schulz iteration X <- aX + b(XXᵀ)X + c(XXᵀ)²X, which drives all singular
    values to about 1.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrices.to(dtype)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    if dtype == torch.float32 and x.shape[-1] >= 2 * x.shape[-2]:
        # The same for wide matrices, a third quicker: every X is PX for a P made from XXᵀ, which is
        # small. Only in float32: in bfloat16 the error of XXᵀ grows from step to step.
        gram = x @ x.mT
        product = None
        for step in range(steps):
            factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            factor.diagonal(dim1=-2, dim2=-1).add_(a)
            product = factor if product is None else factor @ product
            if step < steps - 1:
                gram = factor @ gram @ factor
        x = x if product is None else product @ x
    else:
        for _ in range(steps):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """MomentUm Orthogonalized by Newton-Schulz, for the weight matrices of the layers.

    Nesterov momentum, then the update is made orthogonal, so that it moves every direction equally;
    scaled by sqrt(max(1, rows / columns)). Jordan et al. 2024, kellerjordan.github.io/posts/muon. A
    parameter (…, rows, columns) is a stack of matrices, as experts are. Matrices of one shape, a
    tall one counting as wide, are orthogonalised in one batch, in `dtype` (None: bfloat16 on CUDA,
    else float32, as bfloat16 products are slow on many CPUs). Of sharded parameters (FSDP2:
    DTensor) momentum stays sharded, and every process orthogonalises the whole; on the cores of a
    CPU each makes its share.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype | None = None,
        world: World = ALONE,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype
        self.world = world

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient; none at all where `found_inf` is 1."""
        found_inf = getattr(self, "found_inf", None)
        memory = self.world.memory
        # 1 or 0, a factor: a step that must not happen adds zeros and multiplies by one
        happens = 1.0 if found_inf is None else 1.0 - found_inf
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[tuple(sorted(parameter.shape[-2:]))].append(parameter)
            # all shapes at once take more memory, but on the cores of a CPU the processes wait for
            # each other only once
            shapes = list(by_shape.values())
            for several in [[shape] for shape in shapes] if memory is None else [shapes]:
                updates = [
                    self._nesterov(parameters, group["momentum"], happens) for parameters in several
                ]
                dtype = self.dtype or (torch.bfloat16 if updates[0].is_cuda else torch.float32)
                compute = partial(orthogonalize, dtype=dtype)
                # a sixth of a small model's step, so on the cores of a CPU nobody computes what
                # another process does
                orthogonal = (
                    map(compute, updates) if memory is None else memory.in_shares(compute, updates)
                )
                for parameters, matrices in zip(several, orthogonal, strict=True):
                    self._move(parameters, matrices, group["lr"], group["weight_decay"], happens)

    def _nesterov(
        self, parameters: list[nn.Parameter], momentum: float, happens: float | Tensor
    ) -> Tensor:
        """Move the momentum towards the gradients, and return Nesterov's mix of both.

        The result (N, rows, columns) is whole, and wide: columns >= rows.
        """
        grads = [_local(parameter.grad) for parameter in parameters]  # type: ignore[arg-type]
        if isinstance(happens, Tensor):
            grads = [
                torch.where(happens > 0, grad, 0.0) for grad in grads
            ]  # NaN times zero would be NaN
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [_local(self.state[parameter]["momentum_buffer"]) for parameter in parameters]
        torch._foreach_mul_(buffers, 1 - (1 - momentum) * happens)
        torch._foreach_add_(buffers, grads, alpha=1 - momentum)
        wide = []
        for x, p in zip(torch._foreach_lerp(grads, buffers, momentum), parameters, strict=True):
            if isinstance(p, DTensor):
                x = DTensor.from_local(
                    x, p.device_mesh, p.placements, shape=p.shape, stride=p.stride()
                ).full_tensor()
            x = x.mT if x.shape[-2] > x.shape[-1] else x
            wide.append(x.reshape(-1, *x.shape[-2:]))
        return torch.cat(wide)

    def _move(
        self,
        parameters: list[nn.Parameter],
        orthogonal: Tensor,
        lr: float,
        decay: float,
        happens: float | Tensor,
    ) -> None:
        """Move the parameters of one shape by their orthogonal matrices."""
        steps = []
        scales = []
        counts = [math.prod(parameter.shape[:-2]) for parameter in parameters]  # 1 for a matrix
        for matrices, parameter in zip(orthogonal.split(counts), parameters, strict=True):
            rows, columns = parameter.shape[-2:]
            step = (matrices.mT if rows > columns else matrices).reshape(parameter.shape)
            steps.append(_local(share(step, parameter)) if isinstance(parameter, DTensor) else step)
            scales.append(lr * math.sqrt(max(1.0, rows / columns)))
        torch._foreach_mul_(steps, scales)
        if isinstance(happens, Tensor):
            torch._foreach_mul_(steps, happens)
        weights = [_local(parameter) for parameter in parameters]
        torch._foreach_mul_(weights, 1 - lr * decay * happens)
        torch._foreach_sub_(weights, steps)


def _local(x: Tensor) -> Tensor:
    """Return this process's shard of a sharded tensor; any other tensor as it is."""
    return x.to_local() if isinstance(x, DTensor) else x


def parameter_groups(lm: LanguageModel) -> dict[str, list[nn.Parameter]]:
    """Return the trainable parameters by group: the `optimizer_group` of the innermost module that
    sets one.

    Norms and biases have fewer than two dimensions, and are always vectors. Sharding replaces
    parameters: group them again then.
    """
    group_of = dict.fromkeys(lm.parameters(), "matrix")
    for name, weight in lm.named_parameters():
        if ".embed_" in name:
            group_of[weight] = "embedding"
    for weight in lm.lm_head.parameters():  # also where it is tied
        group_of[weight] = "head"
    for _, module in lm.named_modules(remove_duplicate=False):  # from the outside to the inside
        group = getattr(module, "optimizer_group", None)
        if group:
            group_of.update(dict.fromkeys(module.parameters(), group))
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in GROUPS}
    for weight, group in group_of.items():
        if weight.requires_grad:
            groups["vector" if weight.ndim < 2 else group].append(weight)
    return groups


def build_optimizers(
    lm: LanguageModel,
    config: OptimizerConfig,
    world: World = ALONE,
    precision: torch.dtype | None = None,
) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices of the layers and AdamW for the rest.

    The model says which parameter belongs to which group, and leaves out what is frozen. Weight
    decay applies to matrices only: an untied embedding is a table of vectors that is looked up, so
    it has a rate of its own and no decay. Learned positions are added to the embedding, so they
    have the same rate: the head's, if it is tied. Every group remembers its peak learning rate as
    `peak_lr` and has a `name`: blocks, head (a tied matrix is one), embedding, vectors or adapters.
    precision: of the run's products; with bfloat16, Muon orthogonalises in it as well. Raises
    ValueError if every parameter is frozen.
    """
    of = parameter_groups(lm)
    blocks = of["matrix"] + of["expert"]
    lr = config.lr
    decay = config.weight_decay
    optimizers: list[torch.optim.Optimizer] = []
    if config.name == "muon":
        if blocks:
            dtype = precision if precision == torch.bfloat16 else None
            group = {"name": "blocks", "params": blocks, "peak_lr": lr}
            optimizers.append(Muon([group], lr, config.momentum, decay, dtype, world))
        blocks = []
        lr = config.adamw_lr
    embedding_lr = lr if lm.config.tie_word_embeddings else config.embedding_lr or lr
    table = [
        ("blocks", blocks, lr, decay),
        ("head", of["head"], lr, decay),
        ("embedding", of["embedding"], embedding_lr, 0.0),
        ("vectors", of["vector"], lr, 0.0),
        # Muon would make every direction of B A equally strong. An adapter has few, and most tasks
        # need fewer
        ("adapters", of["adapter"], lr, decay),
    ]
    groups: list[dict[str, Any]] = [
        {"name": name, "params": parameters, "lr": peak, "peak_lr": peak, "weight_decay": shrink}
        for name, parameters, peak, shrink in table
        if parameters
    ]
    if groups or not optimizers:  # AdamW refuses to train nothing
        betas = (config.betas[0], config.betas[1])
        fused = lm.lm_head.weight.device.type in FUSED
        optimizers.append(torch.optim.AdamW(groups, betas=betas, eps=config.eps, fused=fused))
    return optimizers


def set_learning_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> float:
    """Set every group to factor * its peak; returns the first group's rate (Muon's, or AdamW's)."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
    return optimizers[0].param_groups[0]["lr"]


def lr_factor(config: RunConfig, step: int, progress: float = 0.0) -> float:
    """Return the factor of the peak learning rate, in [0, 1].

    progress: share of the minutes that are over, where a clock ends the run: its last step begins
    before the end, with a rate just above the final one. Else the step decides: the last one has
    the final rate.

    constant: the peak to the end, so it has no final_lr_fraction.
    cosine:   half a cosine down to final_lr_fraction (Loshchilov & Hutter 2017, arXiv 1608.03983).
    wsd:      constant, then linear to final_lr_fraction over the last `cooldown` share of the run
              (warm-up-stable-decay, Hu et al. 2024, arXiv 2404.06395).
    Each of them times the warm-up, which is linear over the first warmup_steps.

           cosine ╭──╮             wsd ╭────────╮
                 ╱    ╲               ╱          ╲
                ╱      ╰───          ╱            ╲_
    """
    train = config.train
    last = (config.max_steps or 1) - 1
    if config.max_steps is not None:
        progress = step / last if last else 1.0
    shape = 1.0
    if train.schedule == "cosine":
        shape = 0.5 * (1 + math.cos(math.pi * progress))
    elif train.schedule == "wsd" and train.cooldown:
        shape = min(1.0, (1 - progress) / train.cooldown)
    warmup = min(1.0, (step + 1) / train.warmup_steps) if train.warmup_steps else 1.0
    return warmup * (train.final_lr_fraction + (1 - train.final_lr_fraction) * shape)
