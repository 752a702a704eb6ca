from torch import nn

from eval.hooks import EvalEvent, Hooks
from notebooks.broken import train


def break_it() -> None:
    """Forget to tie the head to the embedding after loading: the head is random."""
    run = Hooks.run

    def after_loading(self: Hooks, event: EvalEvent) -> float | None:
        head = event.lm.lm_head
        embedding = event.lm.model.embed_tokens
        weight = nn.init.normal_(head.weight.detach().clone(), std=0.1 * head.in_features**-0.5)
        head.weight = nn.Parameter(weight)
        try:
            return run(self, event)
        finally:
            head.weight = embedding.weight

    Hooks.run = after_loading  # type: ignore[method-assign]


if __name__ == "__main__":
    train(5, break_it, "model.tie_word_embeddings=true")
