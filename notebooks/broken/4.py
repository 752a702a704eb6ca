from dataclasses import replace
from typing import Any

from model import masks
from model.masks import MaskSpec
from notebooks.broken import train


def break_it() -> None:
    """Open the mask one place too far: every token sees the token that it predicts."""
    causal = masks.causal
    of_layers = MaskSpec.of_layers

    def written_out(self: MaskSpec, *args: Any) -> dict[int | None, MaskSpec]:
        # otherwise the kernel would make the right mask
        specs = of_layers(self, *args)
        return {window: replace(spec, all_visible=False) for window, spec in specs.items()}

    masks.causal = lambda queries, keys: causal(queries + 1, keys)
    MaskSpec.of_layers = written_out  # type: ignore[method-assign]


if __name__ == "__main__":
    # by default, a CPU's kernel skips blocks of the future with any mask
    train(4, break_it, "model.attn_implementation=sdpa", "train.max_steps=400")
