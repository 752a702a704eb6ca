"""What does a model do with texts longer than those of its training? docs/long_context.md explains it.

No document of the built-in world is as long as four rows, so two kinds of text are made: held-out documents one after
the other, cut into pieces; and random words, of which some come again at the end. `ways` are how they are read: none
(as it is), linear (Chen et al. 2023, arXiv 2306.15595), yarn (Peng et al. 2023, arXiv 2309.00071), windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from configs.command import InputError
from data.chat import plain_texts
from data.config import DataConfig
from data.reading.documents import documents
from data.storyworld.lexicon import lexicon
from data.storyworld.names import held_out_names
from data.tokenizer import Tokenizer
from eval.language_modeling import predictions
from model import LanguageModel
from model.config import ModelConfig
from model.rope import inverse_frequencies

PARTS, PHRASE = 4, 4  # a phrase of four words from each quarter of a recall text
POSITIONS = 16  # stretches of a text in which mean losses are taken
Make = Callable[[int], LanguageModel]  # length in tokens -> the model for it


def study(
    opened: Mapping[str, tuple[LanguageModel, Tokenizer]], config: DataConfig, lengths: Sequence[int], count: int
) -> dict[str, Any]:
    """Read `count` texts of every length with the first run in every way, and with all others as they are.

    Returns what is written as JSON. Most of it is name -> way to read -> one entry a length:

    loss:              of the same last tokens of every held-out text, however much stands before them
    loss_by_position:  its mean in stretches from the first token to the last
    recall, copy_gain: of the tokens asked for: the share that are the likeliest; how much their loss falls, in nats.
                       None where the text is too short for the phrases

    Raises InputError for a run with another tokenizer, and for what cannot be read.
    """
    (first, (lm, tokenizer)), *others = opened.items()
    trained, longest = config.sequence_length, lengths[-1]
    makers = ways(lm, trained)
    for path, (other, its_tokenizer) in others:
        if its_tokenizer.sha256() != tokenizer.sha256():
            raise InputError(f"{path}: has another tokenizer than {first}, so their losses cannot be compared")
        name = Path(path).resolve().name
        makers[path if name in makers else name] = partial(longer, other)
    for length in lengths:
        makers["none"](length)  # what cannot be read is refused before anything is measured
    text = held_out_rows(tokenizer, config, longest, count)
    questions = {length: recall_texts(tokenizer, length, len(text)) for length in lengths}
    last = lengths[0] // 2
    measured: dict[str, Any] = {"run": first, "trained_length": trained, "lengths": list(lengths), "texts": len(text)}
    measured["last_tokens"] = last
    for name, make in makers.items():
        for length in lengths:
            model, asked = make(length), questions[length]
            end = torch.cat((text[:, :1], text[:, longest - length + 1 :]), dim=1)  # behind a document's first token
            losses, _ = predictions(model, end)
            figures: dict[str, Any] = {"loss": losses[:, -last:].mean().item()}
            figures["loss_by_position"] = [part.nanmean().item() for part in losses.tensor_split(POSITIONS, dim=1)]
            figures |= {"recall": None, "copy_gain": None}
            if asked is not None:
                ids, row, place, source = asked
                losses, right = predictions(model, ids)
                gain = losses[row, source] - losses[row, place]
                figures |= {"recall": right[row, place].float().mean().item(), "copy_gain": gain.mean().item()}
            for key, value in figures.items():
                measured.setdefault(key, {}).setdefault(name, []).append(value)
    return measured


def ways(lm: LanguageModel, trained: int) -> dict[str, Make]:
    """In which ways this model, which read rows of `trained` tokens in training, can read a longer text."""
    rotates = any(lm.config.rotates)
    plain = lm.with_rope_scaling("none", 1, trained) if rotates else lm

    def scaled(kind: str, length: int) -> LanguageModel:
        return longer(plain.with_rope_scaling(kind, max(1.0, length / trained), trained), length)

    def windows(length: int) -> LanguageModel:
        return longer(plain, length).with_config(sliding_window=trained, layer_types=["sliding_attention"])

    scalings = {kind: partial(scaled, kind) for kind in ("linear", "yarn")} if rotates else {}
    return {"none": partial(longer, plain), **scalings, "windows": windows}


def longer(lm: LanguageModel, length: int) -> LanguageModel:
    """The model, allowed to read so many tokens. Raises InputError where a learned vector is missing for some."""
    longest = lm.config.max_position_embeddings
    if length <= longest:
        return lm
    if lm.config.position_embedding == "learned":
        raise InputError(
            f"--lengths: {length:,} is too long: this model has learned a vector for {longest:,} positions"
        )
    return lm.with_config(max_position_embeddings=length)


def held_out_rows(tokenizer: Tokenizer, config: DataConfig, length: int, count: int) -> Tensor:
    """Up to `count` pieces of the joined held-out documents, each behind a first token: (N, length).

    Raises InputError for a source that cannot be read, or holds less than one piece.
    """
    ids, wanted = list[int](), count * (length - 1)
    for document in documents(config, "validation"):
        for text in plain_texts(document):
            ids += tokenizer.encode(text)
        if len(ids) >= wanted:
            break
    pieces = min(count, len(ids) // (length - 1))
    if not pieces:
        raise InputError(f"--lengths: the held-out text has {len(ids):,} tokens, so none is {length:,} long: give less")
    rows = torch.tensor(ids[: pieces * (length - 1)]).view(pieces, length - 1)
    return torch.cat((torch.full((pieces, 1), tokenizer.bos_id), rows), dim=1)


def recall_texts(tokenizer: Tokenizer, length: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """`count` texts of at most `length` tokens, always the same ones: random words, and phrases of them again at the
    end. None where it is too short for the phrases.

    ids: (N, T) int64, padded on the right. row, place, source: (questions,) each: token `place` of text `row` is asked
    for, and stood first at `source`. The first word of a phrase is not asked for: nothing says which phrase comes.
    """
    words = [tokenizer.encode(f" {word}") for word in (*held_out_names(), *lexicon().song_words)]
    ids, questions = torch.full((count, length), tokenizer.pad_id), []
    for row in range(count):
        rng = Random(f"recall {length} {row}")
        shuffled = rng.sample(words, len(words))
        begins = list(accumulate(map(len, shuffled), initial=1))  # behind the first token of a document
        within, order = [rng.random() for _ in range(PARTS)], rng.sample(range(PARTS), PARTS)
        fitting = sum(end <= length for end in begins[1:])
        while (part := fitting // PARTS) >= PHRASE:
            text, asked = [tokenizer.bos_id, *chain(*shuffled[:fitting])], []
            for k in order:  # a phrase of each part of the text
                first = int(k * part + within[k] * (part - PHRASE + 1))
                for number in range(first, first + PHRASE):
                    if number > first:
                        asked += [(row, len(text) + i, begins[number] + i) for i in range(len(shuffled[number]))]
                    text += shuffled[number]
            if len(text) <= length:
                break
            fitting -= 1  # the phrases need the room of some words
        else:
            return None
        ids[row, : len(text)] = torch.tensor(text)
        questions += asked
    row_of, place, source = torch.tensor(questions).T
    return ids, row_of, place, source


class Angles(NamedTuple):
    """The pairs of numbers that RoPE turns, under one scaling. wavelength (pairs,): tokens of a full turn, as trained;
    slowed (pairs,): how much slower each one turns with this scaling, 1 = as trained; new (pairs, T) bool: whether a
    distance of that many tokens gives an angle that no row of training gave.

    A pair that turns fast has met every angle within a row of training. A slow one has not: beyond the row its angles
    are new. Peng et al. 2023, YaRN (arXiv 2309.00071), section 3.
    """

    wavelength: Tensor
    slowed: Tensor
    new: Tensor


def angles(before: ModelConfig, now: ModelConfig, trained: int, length: int) -> Angles:
    """Of a model trained with the config `before` on rows of `trained` tokens: distances of 0 … length - 1."""
    speed, new_speed = (
        inverse_frequencies(config.rotary_size, config.rope_theta, config.rope_scaling)[0].double()
        for config in (before, now)
    )
    largest = speed[:, None] * trained  # how far it turns within a row; one that turns fully has been everywhere
    rest = new_speed[:, None] * torch.arange(length) % (2 * math.pi)
    new = (largest < 2 * math.pi) & (rest > largest * (1 + 1e-9))
    return Angles(2 * math.pi / speed, speed / new_speed, new)
