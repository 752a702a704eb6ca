import torch
from torch import Tensor

from model import LanguageModel
from model.attention import AttentionFunction
from notebooks.broken import train


def break_it() -> None:
    """Let query heads 0 1 2 3 read the keys and values 3 2 1 0, in training only."""
    choose = LanguageModel.set_attn_implementation

    def reversed_heads(attend: AttentionFunction) -> AttentionFunction:
        def compute(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
            if torch.is_grad_enabled():  # in training
                k = k.flip(1)
                v = v.flip(1)
            return attend(q, k, v, mask, dropout)

        return compute

    def chosen(self: LanguageModel, name: str) -> None:
        choose(self, name)
        for layer in self.attention_modules():
            layer.attend = reversed_heads(layer.attend)

    LanguageModel.set_attn_implementation = chosen  # type: ignore[method-assign]


if __name__ == "__main__":
    train(2, break_it)
