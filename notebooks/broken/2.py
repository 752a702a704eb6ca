import torch
from torch import Tensor

from model import LanguageModel
from model.attention import AttentionFunction
from notebooks.broken import train


def break_it() -> None:
    """Training tiles the key/value heads, 0 1 0 1; whoever loads the weights repeats them, 0 0 1 1."""
    choose = LanguageModel.set_attn_implementation

    def tiled(attend: AttentionFunction) -> AttentionFunction:
        def compute(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
            if torch.is_grad_enabled():  # in training
                k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
            return attend(q, k, v, mask, dropout)

        return compute

    def chosen(self: LanguageModel, name: str) -> None:
        choose(self, name)
        for layer in self.attention_modules():
            layer.attend = tiled(layer.attend)

    LanguageModel.set_attn_implementation = chosen  # type: ignore[method-assign]


if __name__ == "__main__":
    train(2, break_it, "model.num_key_value_heads=gqa")
