from typing import Any

import torch.nn.functional as F
from torch import Tensor

from configs import IGNORED
from model import LanguageModel
from notebooks.broken import train


def break_it() -> None:
    """Shift the labels, which the model shifts again: it learns the token after the next one."""
    forward = LanguageModel.forward

    def shifted(
        self: LanguageModel, *inputs: Tensor, labels: Tensor | None = None, **options: Any
    ) -> Any:
        if labels is not None:
            labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return forward(self, *inputs, labels=labels, **options)

    LanguageModel.forward = shifted  # type: ignore[assignment]


if __name__ == "__main__":
    train(1, break_it)
