"""Check the functions and the story that readers write in notebook 14."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from data.tokenizer import Tokenizer
from eval.attention.inside import logit_lens
from model import LanguageModel
from notebooks.checks.compare import same

Function = Callable[..., Any]


def my_lens(lens: Function, lm: LanguageModel, ids: Tensor, streams: Tensor) -> None:
    lesson = "Which part of the model keeps the stream at one size before the head?"
    same("my_lens(streams)", lens(streams), logit_lens(lm, ids), lesson=lesson)


def head_adds(adds: Function, of_heads: Tensor) -> None:
    for head, expected in enumerate(of_heads.tolist()):
        same(f"head_adds({head})", adds(head), expected, tolerance=1e-3)


def twin_story(text: str, tokenizer: Tokenizer, twin: Tensor) -> None:
    """Compare a story with a twin (1, T)."""
    wanted = tokenizer.decode(twin[0].tolist())
    pairs = zip(text.split(), wanted.split(), strict=False)
    names = [word for word, right in pairs if word != right]
    assert not names, f'"{names[0]}" should have another name here'
    ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text)]])
    assert torch.equal(ids, twin), "the two stories must have equally many tokens"
