"""Optimizers: Muon, AdamW, which parameter gets which, and the learning rate over time.

Both optimizers read the attribute `found_inf`, a 0-dim float tensor on the device, as PyTorch's
fused AdamW does: at 1.0 a step changes nothing, and the CPU need not wait to know it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from model import LanguageModel
from train.config import OptimizerConfig, RunConfig
from train.machine.distributed import ALONE, World, is_sharded, share

# Jordan's constants have a steep slope at zero, so small singular values grow fast. In return they
# end anywhere between about 0.7 and 1.2, which is near enough to 1.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
GROUPS = ("matrix", "expert", "embedding", "head", "vector", "adapter")
FUSED = ("cpu", "cuda", "mps")  # On these devices PyTorch has AdamW as one kernel.


def orthogonalize(matrices: Tensor, steps: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return roughly the nearest (semi-)orthogonal matrices: all singular values become about 1.

    matrices (N, rows, columns), no more rows than columns. A Newton-Schulz iteration:
    X <- aX + b(XXᵀ)X + c(XXᵀ)²X.
    """
    # Why 5 steps? In configs/shakespeare_char_15s.yaml (three seeds), 4 raise the loss by 0.005
    # nats and 3 by 0.018. All of Muon takes 19 % of a step's time, so one less saves 4 % at most.
    a, b, c = NEWTON_SCHULZ
    x = matrices.to(dtype)
    # The iteration needs singular values of at most 1. The Frobenius norm is no less than the
    # largest of them, and cheap. The clamp keeps a zero matrix from becoming NaN.
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    if dtype == torch.float32 and x.shape[-1] >= 2 * x.shape[-2]:
        # The same for wide matrices, a third quicker: each step is X <- PX, and P is made from the
        # small matrix XXᵀ (N, rows, rows). So multiply the Ps first, and X only at the end. In
        # bfloat16 the error of XXᵀ would grow from step to step.
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

    Jordan et al. 2024, kellerjordan.github.io/posts/muon. A parameter (…, rows, columns) is a stack
    of matrices, as experts are. dtype: of the iteration; None = bfloat16 on CUDA, else float32.
    """

    # Gradients are dominated by a few directions. Muon takes Nesterov momentum and makes the update
    # orthogonal, so it moves every direction equally far.

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
        """Update every parameter that has a gradient; if `found_inf` is 1, nothing changes."""
        found_inf = getattr(self, "found_inf", None)
        memory = self.world.memory
        # A factor of 1 or 0. A step that must not happen adds zeros and multiplies by one: `if`
        # would make the CPU wait for the GPU.
        happens = 1.0 if found_inf is None else 1.0 - found_inf
        for group in self.param_groups:
            # Matrices of one shape are orthogonalised in one batch; a tall one counts as wide.
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[tuple(sorted(parameter.shape[-2:]))].append(parameter)
            # One shape at a time takes the least memory. On the cores of a CPU take all at once, so
            # that the processes wait for each other only once.
            shapes = list(by_shape.values())
            for several in [[shape] for shape in shapes] if memory is None else [shapes]:
                momentum = group["momentum"]
                updates = [self._nesterov(parameters, momentum, happens) for parameters in several]
                # bfloat16 products are slow on many CPUs
                dtype = self.dtype or (torch.bfloat16 if updates[0].is_cuda else torch.float32)
                compute = partial(orthogonalize, dtype=dtype)
                orthogonal: Iterable[Tensor] = map(compute, updates)
                if memory is not None:
                    # It is a sixth of a small model's step, so each process computes its share.
                    orthogonal = memory.in_shares(compute, updates)
                for parameters, matrices in zip(several, orthogonal, strict=True):
                    self._move(parameters, matrices, group["lr"], group["weight_decay"], happens)

    def _nesterov(
        self, parameters: list[nn.Parameter], momentum: float, happens: float | Tensor
    ) -> Tensor:
        """Move the momentum towards the gradients, and return Nesterov's mix of both.

        The result (N, rows, columns) is wide: columns >= rows. No process holds only a shard of it.
        """
        grads = [_local(parameter.grad) for parameter in parameters]  # type: ignore[arg-type]
        if isinstance(happens, Tensor):  # times zero is not enough: NaN times zero is NaN
            grads = [torch.where(happens > 0, grad, 0.0) for grad in grads]
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [_local(self.state[parameter]["momentum_buffer"]) for parameter in parameters]
        # buffer <- momentum * buffer + (1 - momentum) * gradient
        # (_foreach_ updates many tensors in one kernel. One by one, small ones take longer.)
        torch._foreach_mul_(buffers, 1 - (1 - momentum) * happens)
        torch._foreach_add_(buffers, grads, alpha=1 - momentum)
        wide = []
        for x, p in zip(torch._foreach_lerp(grads, buffers, momentum), parameters, strict=True):
            if is_sharded(p):  # FSDP2: momentum stays sharded, the update is put together
                from torch.distributed.tensor import DTensor

                x = DTensor.from_local(
                    x, p.device_mesh, p.placements, shape=p.shape, stride=p.stride()
                ).full_tensor()
            x = x.mT if x.shape[-2] > x.shape[-1] else x  # XXᵀ is smaller then
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
            steps.append(_local(share(step, parameter)) if is_sharded(parameter) else step)
            # A tall orthogonal matrix spreads its input over more outputs, so each changes less.
            scales.append(lr * math.sqrt(max(1.0, rows / columns)))
        torch._foreach_mul_(steps, scales)
        if isinstance(happens, Tensor):
            torch._foreach_mul_(steps, happens)
        weights = [_local(parameter) for parameter in parameters]
        torch._foreach_mul_(weights, 1 - lr * decay * happens)  # decoupled decay, as in AdamW
        torch._foreach_sub_(weights, steps)


def _local(x: Tensor) -> Tensor:
    """Return this process's shard of a sharded tensor, any other tensor unchanged."""
    return x.to_local() if is_sharded(x) else x


def parameter_groups(lm: LanguageModel) -> dict[str, list[nn.Parameter]]:
    """Return the trainable parameters by group. Sharding replaces parameters: group again then."""
    # A module may set `optimizer_group`, and the innermost one decides.
    group_of = dict.fromkeys(lm.parameters(), "matrix")
    for name, weight in lm.named_parameters():
        # embed_tokens, and embed_positions if positions are learned
        if ".embed_" in name:
            group_of[weight] = "embedding"
    for weight in lm.lm_head.parameters():  # a tied embedding is the head's
        group_of[weight] = "head"
    for _, module in lm.named_modules(remove_duplicate=False):  # from the outside to the inside
        group = getattr(module, "optimizer_group", None)
        if group:
            group_of.update(dict.fromkeys(module.parameters(), group))
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in GROUPS}
    for weight, group in group_of.items():  # norms and biases are always vectors
        if weight.requires_grad:
            groups["vector" if weight.ndim < 2 else group].append(weight)
    return groups


def build_optimizers(
    lm: LanguageModel,
    config: OptimizerConfig,
    world: World = ALONE,
    precision: torch.dtype | None = None,
) -> list[torch.optim.Optimizer]:
    """Build AdamW for everything, or Muon for the matrices of the layers and AdamW for the rest.

    Every group has a `name` and its highest learning rate, `peak_lr`. precision: of the run's
    products; with bfloat16 Muon orthogonalises in it as well. Raises ValueError if all is frozen.
    """
    groups = parameter_groups(lm)
    blocks = groups["matrix"] + groups["expert"]
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
    # Learned positions are added to the embedding and have its rate; a tied one has the head's.
    embedding_lr = lr if lm.config.tie_word_embeddings else config.embedding_lr or lr
    # Decay is for matrices. An untied embedding is a table of vectors, of which a step reads some:
    # decay would shrink rare tokens most. A norm's scale belongs near 1, not near 0.
    table = [
        ("blocks", blocks, lr, decay),
        ("head", groups["head"], lr, decay),
        ("embedding", groups["embedding"], embedding_lr, 0.0),
        ("vectors", groups["vector"], lr, 0.0),
        # Muon would make every direction of B A equally strong. An adapter has few, and most tasks
        # need fewer.
        ("adapters", groups["adapter"], lr, decay),
    ]
    of_adamw: list[dict[str, Any]] = [
        {"name": name, "params": parameters, "lr": peak, "peak_lr": peak, "weight_decay": shrink}
        for name, parameters, peak, shrink in table
        if parameters
    ]
    if of_adamw or not optimizers:  # AdamW refuses to train nothing
        betas = (config.betas[0], config.betas[1])
        fused = lm.lm_head.weight.device.type in FUSED
        optimizers.append(torch.optim.AdamW(of_adamw, betas=betas, eps=config.eps, fused=fused))
    return optimizers


def set_learning_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> float:
    """Set every group to factor * its peak; return the first group's rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
    # One number is enough for the log: all groups have the same factor.
    return optimizers[0].param_groups[0]["lr"]


def lr_factor(config: RunConfig, step: int, progress: float = 0.0) -> float:
    """Return the factor of the peak learning rate, in [0, 1].

           cosine ╭──╮             wsd ╭────────╮
                 ╱    ╲               ╱          ╲
                ╱      ╰───          ╱            ╲_

    cosine: Loshchilov & Hutter 2017, arXiv 1608.03983. wsd, warm-up-stable-decay: Hu et al. 2024,
    arXiv 2404.06395. progress: share of the minutes that are over, if a clock ends the run.
    """
    train = config.train
    last = (config.max_steps or 1) - 1
    # Divide by `last`, not by max_steps: so the last step has exactly the final rate.
    if config.max_steps is not None:
        progress = step / last if last else 1.0
    # the schedule `constant`, and wsd without a cooldown
    shape = 1.0
    if train.schedule == "cosine":
        shape = 0.5 * (1 + math.cos(math.pi * progress))
    elif train.schedule == "wsd" and train.cooldown:
        # 1 until the last `cooldown` share of the run, then straight down to 0
        shape = min(1.0, (1 - progress) / train.cooldown)
    # At first AdamW's averages rest on few gradients: large steps would follow noise.
    warmup = min(1.0, (step + 1) / train.warmup_steps) if train.warmup_steps else 1.0
    return warmup * (train.final_lr_fraction + (1 - train.final_lr_fraction) * shape)
