"""transformers' own continuous batching, in a process of its own: the same weights, the same prompts, without HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

PAGE = 16  # tokens of a block, as the server has it
READ_AT_ONCE = 512  # tokens of a pass, as the server's chunk

_held: dict[str, Any] = {}  # in the process of its own: the model and its tokenizer


@dataclass(frozen=True)
class Answered:
    """The texts of all answers, their tokens in all, and the bytes of memory that the process holds."""

    texts: list[str]
    tokens: int
    memory: int


@contextmanager
def their_process(run: Path) -> Iterator[ProcessPoolExecutor]:
    """A process that has loaded a run's model into transformers. Raises InputError without that package."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(load, run).result()
        yield pool


def load(run: Path) -> None:
    """In the process: the run's model as transformers has it."""
    from benchmarks.transformers_model import in_transformers
    from eval.load_model import open_model

    logging.disable(logging.WARNING)  # a note for each request
    lm, tokenizer = open_model(run, "cpu")
    _held.update(model=in_transformers(lm, attn_implementation="sdpa").eval(), tokenizer=tokenizer)


def generate_batch(prompts: Sequence[str], new_tokens: int) -> Answered:
    """In the process: greedy answers to all prompts at once."""
    import psutil
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model, tokenizer = _held["model"], _held["tokenizer"]
    ids = [[tokenizer.bos_id, *tokenizer.encode(prompt)] for prompt in prompts]
    blocks = sum(-(-(len(one) + new_tokens) // PAGE) for one in ids)
    batching = ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=blocks, max_batch_tokens=READ_AT_ONCE, max_requests_per_batch=len(ids)
    )
    ends = [tokenizer.eos_id, *tokenizer.stop_ids]
    settings = GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, eos_token_id=ends, pad_token_id=tokenizer.pad_id
    )
    found = model.generate_batch(inputs=ids, generation_config=settings, continuous_batching_config=batching)
    written = [
        [token for token in found[key].generated_tokens if token not in ends] for key in sorted(found, key=_turn)
    ]
    texts = [tokenizer.decode(one) for one in written]
    return Answered(texts, sum(map(len, written)), psutil.Process().memory_info().rss)


def _turn(key: str) -> int:
    """req_12 -> 12: requests are numbered in the order of the prompts."""
    return int(key.rpartition("_")[2])
