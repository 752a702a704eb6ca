"""What does a run do with texts longer than those of its training? `python -m eval.long_context runs/demo`

Reads held-out text and random words of growing length in several ways: as it is, with RoPE scaled (linear: Chen et al.
2023, arXiv 2306.15595; yarn: Peng et al. 2023, arXiv 2309.00071), with windows. Writes long_context/ into the run:
report.md, pictures, and long_context.json with all numbers. Further runs, for example one that was trained a little at
the longer length, are read as they are. docs/long_context.md explains it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from configs.command import InputError, exit_on_bad_input, integer, numbers
from configs.text import markdown, table
from data.chat import plain_texts
from data.config import DataConfig
from data.reading.documents import documents
from data.tokenizer import Tokenizer
from eval.language_modeling import predictions
from eval.load_model import add_device_option, data_config, open_model, run_folder
from eval.pictures import drawing
from model import LanguageModel
from model.config import ModelConfig
from model.rope import inverse_frequencies
from model.variants.surgery import with_config, with_rope_scaling
from storyworld.lexicon import lexicon
from storyworld.names import held_out_names

LENGTHS = [128, 256, 512, 1024]
PARTS, PHRASE = 4, 4  # a phrase of four words from each quarter of a recall text
POSITIONS = 16  # stretches of a text in which mean losses are taken
Make = Callable[[int], LanguageModel]  # length in tokens -> the model for it


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.long_context", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run, and others to be read as they are")
    words = "tokens of a text, growing (128,256,512,1024)"
    parser.add_argument("--lengths", type=numbers("--lengths", 16), default=LENGTHS, metavar="N,N", help=words)
    parser.add_argument("--texts", type=integer("--texts", 1), default=32, metavar="N", help="of each length (32)")
    add_device_option(parser)
    given = parser.parse_args()
    if sorted(set(given.lengths)) != given.lengths or len(given.lengths) < 2:
        raise InputError("--lengths: give two or more, each larger than the one before, for example 128,256,512")
    run, config = given.runs[0], data_config(given.runs[0])
    if config is None:
        raise InputError(f"{run}: has no config.yaml beside it, which says what is held out: name a run")
    models = {path: open_model(path, given.device) for path in given.runs}
    measured = study(models, config, given.lengths, given.texts)
    out, lm = run_folder(run) / "long_context", models[run][0]
    out.mkdir(exist_ok=True)
    (out / "long_context.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    draw_curves(measured, out / "curves.png")
    pictures = "![loss by position](curves.png)"
    if any(lm.config.rotates):
        draw_angles(lm, config.sequence_length, given.lengths[-1], out / "frequencies.png")
        pictures += "\n\n![angles of RoPE](frequencies.png)"
    columns = [(key, at) for key in ("loss", "recall", "copy_gain") for at in range(len(given.lengths))]
    header = ["", *(f"{key.replace('_', ' ')} at {given.lengths[at]:,}" for key, at in columns)]
    rows = [[name, *(measured[key][name][at] for key, at in columns)] for name in measured["loss"]]
    shown = table(header, [[name, *("–" if x is None else f"{x:.2f}" for x in values)] for name, *values in rows])
    report = f"""# {markdown(run)} on longer texts

Trained on rows of {config.sequence_length:,} tokens. {measured["texts"]} texts of each length, in nats a token; – = too
short for the phrases. docs/long_context.md explains the figures, and has the command that trains on at a longer length.

{shown}

{pictures}
"""
    (out / "report.md").write_text(report, encoding="utf-8")
    print(f"{shown}\n\nall numbers and pictures: {out / 'report.md'}")


def study(
    models: Mapping[str, tuple[LanguageModel, Tokenizer]], config: DataConfig, lengths: Sequence[int], count: int
) -> dict[str, Any]:
    """Read `count` texts of every length with the first run in every way, and with all others as they are.

    No document of the built-in world is as long as four rows, so two kinds of text are made: held-out documents one
    after the other, cut into pieces; and random words, of which some come again at the end.

    Returns what is written as JSON. Most of it is name -> way to read -> one entry a length:

    loss:              of the same last tokens of every held-out text, however much stands before them
    loss_by_position:  its mean in stretches from the first token to the last
    recall, copy_gain: of the tokens asked for: the share that are the likeliest; how much their loss falls, in nats.
                       None where the text is too short for the phrases

    Raises InputError for a run with another tokenizer, and for what cannot be read.
    """
    (first, (lm, tokenizer)), *others = models.items()
    trained, longest, last = config.sequence_length, lengths[-1], lengths[0] // 2
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
    measured: dict[str, Any] = {"run": first, "trained_length": trained, "lengths": list(lengths), "texts": len(text)}
    for name, make in makers.items():
        for length in lengths:
            model, exam = make(length), questions[length]
            end = torch.cat((text[:, :1], text[:, longest - length + 1 :]), dim=1)  # behind a document's first token
            losses, _ = predictions(model, end)
            figures: dict[str, Any] = {"loss": losses[:, -last:].mean().item(), "recall": None, "copy_gain": None}
            figures["loss_by_position"] = [part.nanmean().item() for part in losses.tensor_split(POSITIONS, dim=1)]
            if exam is not None:
                ids, row, place, source = exam
                losses, right = predictions(model, ids)
                figures["recall"] = right[row, place].float().mean().item()
                figures["copy_gain"] = (losses[row, source] - losses[row, place]).mean().item()
            for key, value in figures.items():
                measured.setdefault(key, {}).setdefault(name, []).append(value)
    return measured


def ways(lm: LanguageModel, trained: int) -> dict[str, Make]:
    """In which ways this model, which read rows of `trained` tokens in training, can read a longer text."""
    rotates = any(lm.config.rotates)
    plain = with_rope_scaling(lm, "none", 1, trained) if rotates else lm

    def scaled(kind: str, length: int) -> LanguageModel:
        return longer(with_rope_scaling(plain, kind, max(1.0, length / trained), trained), length)

    def windows(length: int) -> LanguageModel:
        return with_config(longer(plain, length), sliding_window=trained, layer_types=["sliding_attention"])

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
    return with_config(lm, max_position_embeddings=length)


# ---------------------------------------------------------------------------------------------------------
# texts


def held_out_rows(tokenizer: Tokenizer, config: DataConfig, length: int, count: int) -> Tensor:
    """Up to `count` pieces of the joined held-out documents, each behind a first token: (N, length).

    Raises InputError for a source that cannot be read, or holds less than one piece.
    """
    ids, wanted = list[int](), count * (length - 1)
    for text in chain.from_iterable(map(plain_texts, documents(config, "validation"))):
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
            text, answers = [tokenizer.bos_id, *chain(*shuffled[:fitting])], []
            for k in order:  # a phrase of each part of the text
                first = int(k * part + within[k] * (part - PHRASE + 1))
                for number in range(first, first + PHRASE):
                    if number > first:
                        answers += [(row, len(text) + i, begins[number] + i) for i in range(len(shuffled[number]))]
                    text += shuffled[number]
            if len(text) <= length:
                break
            fitting -= 1  # the phrases need the room of some words
        else:
            return None
        ids[row, : len(text)] = torch.tensor(text)
        questions += answers
    row_of, place, source = torch.tensor(questions).T
    return ids, row_of, place, source


# ---------------------------------------------------------------------------------------------------------
# pictures


def draw_curves(measured: dict[str, Any], file: Path) -> None:
    """The loss over the position in the longest texts, a line for each way to read; a mark where training ended."""
    length = measured["lengths"][-1]
    figure = drawing.new_figure(760, 400)
    axes = figure.subplots()
    middles = (np.arange(POSITIONS) + 0.5) * length / POSITIONS
    for number, (name, by_length) in enumerate(measured["loss_by_position"].items()):
        drawing.draw_curve(axes, middles, by_length[-1], number, drawing.shorten(name, 40))
    drawing.frame_curves(axes, "loss on held-out text, nats a token", "position in the text, in tokens")
    axes.set_xlim(0, length)
    axes.axvline(measured["trained_length"], color=drawing.INK, lw=1, ls="--", label="trained length")
    drawing.legend_below(figure, axes)
    drawing.save_figure(figure, file)


def angles(before: ModelConfig, now: ModelConfig, trained: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs of numbers that RoPE turns, of a model trained with the config `before` on rows of `trained` tokens.

    wavelength (pairs,): tokens of a full turn, as trained. slowed (pairs,): how much slower `now` turns each of them.
    new (pairs, length) bool: whether a distance of that many tokens gives an angle that no row of training gave.

    A pair that turns fast has met every angle within a row of training. A slow one has not: beyond the row its angles
    are new. Peng et al. 2023, YaRN (arXiv 2309.00071), section 3.
    """
    speed, new_speed = (
        inverse_frequencies(config.rotary_size, config.rope_theta, config.rope_scaling)[0].double()
        for config in (before, now)
    )
    largest = speed[:, None] * trained  # how far it turns within a row; one that turns fully has been everywhere
    rest = new_speed[:, None] * torch.arange(length) % (2 * math.pi)
    new = (largest < 2 * math.pi) & (rest > largest * (1 + 1e-9))
    return 2 * math.pi / speed, speed / new_speed, new


def draw_angles(lm: LanguageModel, trained: int, length: int, file: Path) -> None:
    """For each scaling pairs x distance, dark where an angle is new; and how much slower each pair turns."""
    title = f"dark: an angle that no row of {trained:,} tokens (dashed) gave this pair in training"
    figure, makers = drawing.new_figure(1150, 380, title), ways(lm, trained)
    *panels, slower = figure.subplots(1, 4, sharey=True)
    for number, (axes, name) in enumerate(zip(panels, ("none", "linear", "yarn"), strict=True)):
        wavelength, slowed, new = angles(lm.config, makers[name](length).config, trained, length)
        pairs = range(len(wavelength))
        every = max(1, len(pairs) // 16)
        waves = pairs[::every], [f"{wave:,.0f}" for wave in wavelength[::every]]
        drawing.draw_map(axes, new.numpy() * 0.7, waves)
        drawing.draw_curve(slower, slowed, pairs, number, name)
        drawing.frame_curves(axes, name, "distance, in tokens")
        axes.grid(visible=False)
        axes.set_xlim(-0.5, length - 0.5)
        axes.axvline(trained, color=drawing.INK, lw=1, ls="--")
    panels[0].set_ylabel("pair, by its wavelength in tokens", fontsize=9)
    drawing.frame_curves(slower, "how much slower it turns", "times")
    slower.legend(frameon=False, fontsize=8)
    drawing.save_figure(figure, file)


if __name__ == "__main__":
    exit_on_bad_input(main)
