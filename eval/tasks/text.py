"""How well does it predict a text of any length? Every token is scored once, in windows that slide over the text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from configs.command import InputError
from data.tokenizer import Tokenizer
from eval.language_modeling import bits_per_byte
from eval.tasks.likelihood import mean_error, token_log_probs
from model import LanguageModel

WINDOWS = 256  # kept at a time


def text_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """A text as a document begins: the first token of a document, then the text."""
    return [tokenizer.bos_id, *tokenizer.encode(text)]


def windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first): tokens begin … end - 1 of `count` are read together, those from `first` on are scored.

    Token 0 is scored by none, every other one by exactly one, with at least window - stride tokens before it.
    With count 8, window 4, stride 2 (x = scored, . = read):

        . x x x
            . . x x
                . . x x
    """
    first = 1
    for begin in range(0, count, stride):
        end = min(begin + window, count)
        yield begin, end, first
        first = end
        if end == count:
            return


def check_windows(lm: LanguageModel, window: int | None, stride: int | None) -> tuple[int, int]:
    """Window and stride in tokens; by default the whole context, and half a window. Raises InputError."""
    longest = lm.config.max_position_embeddings
    window = longest if window is None else window
    if not 2 <= window <= longest:
        raise InputError(f"--window ({window}) must be 2 to {longest}, this model's max_position_embeddings")
    stride = window // 2 if stride is None else stride
    if not 1 <= stride < window:
        raise InputError(f"--stride ({stride}) must be 1 to {window - 1}, one less than the window ({window})")
    return window, stride


def text_log_probs(lm: LanguageModel, ids: list[int], window: int, stride: int) -> Tensor:
    """ln p of every token but the first: (T - 1,) in float64. Windows as `windows` lays them."""
    parts, places = list[Tensor](), list(windows(len(ids), window, stride))
    for start in range(0, len(places), WINDOWS):
        some = places[start : start + WINDOWS]
        log_probs = token_log_probs(lm, [ids[begin:end] for begin, end, _ in some])
        parts += [log_p[first - begin - 1 :] for (begin, _, first), log_p in zip(some, log_probs, strict=True)]
    return torch.cat(parts)


def figures(log_probs: Tensor, text_bytes: int, vocab_size: int) -> dict[str, Any]:
    """loss (nats a token), perplexity and bits_per_byte, each with its standard error and its chance level.

    Chance is a model to which all `vocab_size` ids are equally likely. The standard errors of perplexity and bits per
    byte are that of the loss, carried over to first order.
    """
    count, loss, error = len(log_probs), -float(log_probs.mean()), mean_error(log_probs)
    perplexity, uniform = math.exp(min(loss, 700)), math.log(vocab_size)
    return {
        "tokens": count,
        "bytes": text_bytes,
        "loss": loss,
        "loss_stderr": error,
        "loss_chance": uniform,
        "perplexity": perplexity,
        "perplexity_stderr": perplexity * error,
        "perplexity_chance": float(vocab_size),
        "bits_per_byte": bits_per_byte(loss, count, text_bytes),
        "bits_per_byte_stderr": bits_per_byte(error, count, text_bytes),
        "bits_per_byte_chance": bits_per_byte(uniform, count, text_bytes),
    }
