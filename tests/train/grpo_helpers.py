"""A model that has seen some stories for a second, and rollouts with it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch

from data.tokenizer import load_tokenizer
from eval.tools import Written
from model import load
from tests.train.helpers import pretrain, write_config
from train.config import RunConfig, load_run_config
from train.grpo import Rollouts
from train.machine.distributed import ALONE

WORLD = {"kind": "storyworld", "documents": 40, "validation_documents": 8}
ROWS = 8  # answers of a step


def begun(folder: Path) -> Path:
    """A run that has read stories for some steps."""
    folder.mkdir(exist_ok=True)
    data = {"source": WORLD, "tokenizer": {"kind": "bpe", "vocab_size": 512}, "sequence_length": 512}
    model = {"max_position_embeddings": 512}
    train = {"max_steps": 4, "tokens_per_step": 512, "checkpoint_every": 0}
    pretrain(write_config(folder, name="begun", data=data, model=model, train=train, eval={"hooks": []}))
    return folder / "runs/begun"


def grpo_config(run: Path, **sections) -> Path:
    """A config that goes on from that run: 8 answers a step, in groups of 4."""
    grpo = {"group_size": 4, "max_new_tokens": 6, "reward": f"{__name__}:vowels"} | sections.pop("grpo", {})
    data = {"source": WORLD, "tokenizer": {"kind": "pretrained", "path": str(run)}, "records": "conversations"}
    train = {"max_steps": 4, "tokens_per_step": 512 * ROWS, "checkpoint_every": 0, "log_every": 1, "processes": 1}
    settings = {
        "name": "grown",
        "init_from": str(run),
        "grpo": grpo,
        "data": data | {"sequence_length": 512} | sections.pop("data", {}),
        "train": train | sections.pop("train", {}),
        "eval": {"hooks": []} | sections.pop("eval", {}),
    }
    return write_config(run.parent.parent, **settings, **sections)


@cache
def opened(run: Path):
    """(model, tokenizer)"""
    return load(run), load_tokenizer(run)


def rollouts(run: Path, config: Path | None = None, **grpo) -> tuple[RunConfig, Rollouts]:
    """The source of a config; default: one with these keys of `grpo:`."""
    loaded = load_run_config(config or grpo_config(run, grpo=grpo))
    return loaded, Rollouts(loaded, SimpleNamespace(tokenizer=opened(run)[1]), ALONE, torch.device("cpu"))


def sampled(source: Rollouts, run: Path) -> list[Written]:
    """Return the answers of the run's model in step 0."""
    return source.sample(0, opened(run)[0], [source.question(0, number) for number in range(source.groups)])


def vowels(question, reply: str) -> float:
    """A reward of which an untrained model's answers get different amounts."""
    return sum(letter in "aeiou" for letter in reply) / 4


CALLS = [0]


def soon_the_same(question, reply: str) -> float:
    """`vowels` before the first step and in it; then what eight times is not eight times its mean
    in float32.
    """
    CALLS[0] += 1
    return vowels(question, reply) if CALLS[0] <= 2 * ROWS else 0.1


def nothing(question, reply: str) -> float:
    return 0.0


def in_16_bits(question, reply: str) -> float:
    """Earned where the model writes in 16 bits, as a run with bf16 computes."""
    return float(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16)


def raising(question, reply: str) -> float:
    raise KeyError("nothing\nto see")


def infinite(question, reply: str) -> float:
    return float("inf")
