"""How fast are rollouts? `python -m benchmarks.rollouts runs/sft_demo`: ours, and transformers' `generate` beside it.

Both answer the same questions, several times each, padded on the left, at temperature 1 and without a filter. No answer
ends early, so that both write equally many tokens. They take turns. On a CPU the medians are of processor time in one
thread, which other programs disturb less than the clock; with `--device cuda`, of the clock.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from configs.command import exit_on_bad_input, whole
from configs.text import table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollouts", description="Sampled answers, tokens/s.")
    parser.add_argument("run", help="a run that answers, for example runs/sft_demo")
    parser.add_argument("--questions", type=whole("--questions", 1), default=16)
    parser.add_argument("--group-size", type=whole("--group-size", 1), default=8)
    parser.add_argument("--tokens", type=whole("--tokens", 1), default=24, help="of each answer")
    parser.add_argument("--rounds", type=whole("--rounds", 1), default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    from itertools import islice

    import torch

    from benchmarks.timing import CLOCKS, alternate
    from benchmarks.transformers_model import in_transformers
    from data.chat import prompt_ids
    from eval.load_model import open_model
    from eval.questions import held_out_questions, source_of
    from model import generate, left_pad

    torch.set_num_threads(1)
    lm, tokenizer = open_model(given.run, given.device)
    theirs = in_transformers(lm, dtype=torch.float32).eval().to(given.device)
    asked = islice(held_out_questions(source_of(given.run)), given.questions)
    ids, real = left_pad([prompt_ids(tokenizer, question.messages) for question in asked], tokenizer.pad_id)
    ids, real = ids.to(given.device), real.to(given.device)
    drawn = {"num_return_sequences": given.group_size, "attention_mask": real, "max_new_tokens": given.tokens}
    drawn |= {"temperature": 1.0}
    endless = {"do_sample": True, "top_k": 0, "top_p": 1.0, "eos_token_id": None, "pad_token_id": tokenizer.pad_id}

    ways: dict[str, Callable[[], torch.Tensor]] = {
        f"Headlight, {cache} cache": partial(generate, lm, ids, stop_ids=(), seed=0, kv_cache=cache, **drawn)
        for cache in ("dynamic", "static")
    }
    ways["transformers"] = partial(theirs.generate, ids, **drawn, **endless)
    with torch.no_grad():
        shapes = {tuple(call().shape) for call in ways.values()}
        assert len(shapes) == 1, shapes  # equally many tokens
        seconds = alternate(ways, given.rounds, ids.device, 600, CLOCKS["cpu" if given.device == "cpu" else "wall"])
    written = len(ids) * given.group_size * given.tokens
    print(
        f"{len(ids)} questions of up to {ids.shape[1]} tokens, {given.group_size} answers of {given.tokens} tokens each"
    )
    rows = [
        [name, f"{written / took:,.0f}", f"{seconds['transformers'] / took:.2f}x"] for name, took in seconds.items()
    ]
    where = "tokens/s of one core" if given.device == "cpu" else f"tokens/s, {torch.cuda.get_device_name()}"
    print(table(["", where, "transformers / this"], rows))
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
