from torch import nn

from eval.hooks import EvalEvent, Hooks
from notebooks.broken import train


def break_it() -> None:
    """The file holds one matrix for embedding and head. Whoever loads it forgets to tie them: the head is random."""
    run = Hooks.run

    def after_loading(self: Hooks, event: EvalEvent) -> float | None:
        head, embedding = event.lm.lm_head, event.lm.model.embed_tokens
        head.weight = nn.Parameter(nn.init.normal_(head.weight.detach().clone(), std=0.1 * head.in_features**-0.5))
        try:
            return run(self, event)
        finally:
            head.weight = embedding.weight

    Hooks.run = after_loading  # type: ignore[method-assign]


if __name__ == "__main__":
    train(5, break_it, "model.tie_word_embeddings=true")
