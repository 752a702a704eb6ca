from typing import Any

import torch

from notebooks.broken import train

SCALE = 2.0**24  # A gradient above 65504 / SCALE = 0.004 overflows in fp16.


class FixedScale:
    """A loss scale for fp16 that is never lowered.

    Only the gradients are rounded to fp16 here, because a CPU is far too slow in fp16.
    """

    def __init__(self, *args: Any, **settings: Any):
        pass

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * SCALE

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.copy_(parameter.grad.half().float() / SCALE)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def update(self) -> None:
        """Do nothing. A correct scale is halved here after an overflow."""

    def is_enabled(self) -> bool:
        return False  # so nothing looks for overflows

    def state_dict(self) -> dict[str, Any]:
        return {}


def break_it() -> None:
    """Scale the loss too far: the first gradients overflow, and every step is skipped."""
    torch.amp.GradScaler = FixedScale  # type: ignore[misc, assignment]


if __name__ == "__main__":
    train(3, break_it, "train.skip_non_finite=1000000", "train.max_steps=100")
