"""Texts longer than those of training: `python -m eval.long_context runs/demo`

Reads held-out text and random words of growing length in several ways: unchanged, with scaled RoPE
(linear: Chen et al. 2023, arXiv 2306.15595; yarn: Peng et al. 2023, arXiv 2309.00071), and with
windows. Further runs are read unchanged. Writes report.md, curves.png and long_context.json into
the run's long_context/. docs/long_context.md explains them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from configs.command import (
    InputError,
    add_number,
    command_parser,
    exit_on_bad_input,
    numbers,
)
from configs.text import markdown, table
from data.chat import plain_texts
from data.config import DataConfig
from data.reading.documents import documents
from data.tokenizer import Tokenizer
from eval.language_modeling import predictions
from eval.load_model import add_device_option, open_model, run_folder
from eval.pictures import drawing
from eval.questions import data_config_of
from model import LanguageModel
from model.variants.surgery import with_config, with_rope_scaling
from storyworld.lexicon import lexicon
from storyworld.names import held_out_names

LENGTHS = [128, 256, 512, 1024]
PARTS = 4  # A recall text repeats a phrase from each quarter.
PHRASE = 4  # A phrase has so many words.
POSITIONS = 16  # A loss curve has so many points.
Make = Callable[[int], LanguageModel]  # length in tokens -> the model for it


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="a run, and others to be read as they are")
    lengths = numbers("--lengths", 16)
    add("--lengths", type=lengths, default=LENGTHS, metavar="N,N", help="tokens of a text, growing")
    add_number(parser, "--texts", 32, "of each length")
    add_device_option(parser)
    args = parser.parse_args()
    if sorted(set(args.lengths)) != args.lengths or len(args.lengths) < 2:
        raise InputError("--lengths: give two or more, growing, for example 128,256,512")
    run = args.runs[0]
    config = data_config_of(run)
    models = {path: open_model(path, args.device) for path in args.runs}
    measured = study(models, config, args.lengths, args.texts)
    out = run_folder(run) / "long_context"
    out.mkdir(exist_ok=True)
    content = json.dumps(measured, indent=1) + "\n"
    (out / "long_context.json").write_text(content, encoding="utf-8")
    draw_curves(measured, out / "curves.png")
    results = table_of(measured)
    report = f"""# {markdown(run)} on longer texts

Trained on rows of {config.sequence_length:,} tokens. {measured["texts"]} texts of each length, in
nats a token; – = too short for the phrases. docs/long_context.md explains the figures.

{results}

![loss by position](curves.png)
"""
    (out / "report.md").write_text(report, encoding="utf-8")
    print(f"{results}\n\nall numbers and the picture: {out / 'report.md'}")


def study(
    models: Mapping[str, tuple[LanguageModel, Tokenizer]],
    config: DataConfig,
    lengths: Sequence[int],
    count: int,
) -> dict[str, Any]:
    """Return the figures of `count` texts of each length: name -> way -> a value for each length.

    None if a text is too short for the phrases.
    """
    # The first model is read in all ways, the others unchanged.
    (first, (lm, tokenizer)), *others = models.items()
    trained = config.sequence_length
    longest = lengths[-1]
    # every length is judged on the same last tokens: those of half the shortest text
    last = lengths[0] // 2
    makers = ways(lm, trained)
    for path, (other, its_tokenizer) in others:
        # the texts are made of ids, which mean other words to another tokenizer
        if its_tokenizer.sha256() != tokenizer.sha256():
            raise InputError(f"{path}: has another tokenizer than {first}: give runs of one")
        name = Path(path).resolve().name
        makers[path if name in makers else name] = partial(longer, other)
    # raises InputError early if the model cannot read this length
    makers["none"](longest)
    text = held_out_rows(tokenizer, config, longest, count)  # (texts, longest)
    exams = {length: recall_texts(tokenizer, length, len(text)) for length in lengths}
    measured: dict[str, Any] = {"run": first, "trained_length": trained}
    measured |= {"lengths": list(lengths), "texts": len(text)}
    for name, make in makers.items():
        for length in lengths:
            model = make(length)
            # A document's first token, and the end of the text: all lengths predict the same last
            # tokens, after more or less context.
            end = torch.cat((text[:, :1], text[:, longest - length + 1 :]), dim=1)
            losses, _ = predictions(model, end)  # (texts, length)
            # from the first token to the last
            stretches = losses.tensor_split(POSITIONS, dim=1)
            figures: dict[str, Any] = {"loss": losses[:, -last:].mean().item()}
            figures |= {"recall": None, "copy_gain": None}
            figures["loss_by_position"] = [part.nanmean().item() for part in stretches]
            exam = exams[length]
            if exam is not None:
                ids, row, copy, source = exam  # (texts, T), then (questions,) each
                losses, right = predictions(model, ids)
                # share of repeated tokens that are the likeliest, and fall of their loss in nats
                figures["recall"] = right[row, copy].float().mean().item()
                figures["copy_gain"] = (losses[row, source] - losses[row, copy]).mean().item()
            for key, value in figures.items():
                measured.setdefault(key, {}).setdefault(name, []).append(value)
    return measured


def ways(lm: LanguageModel, trained: int) -> dict[str, Make]:
    """Return the ways to read a longer text; the model was trained on rows of `trained` tokens."""
    makers: dict[str, Make] = {}
    plain = lm
    # Only a model with RoPE in some layer has something to scale.
    if any(lm.config.rotates):
        plain = with_rope_scaling(lm, "none", 1, trained)

        def scaled(kind: str, length: int) -> LanguageModel:
            # the scaling that this length needs: one factor for all would be too strong for short
            # texts
            factor = max(1.0, length / trained)
            return longer(with_rope_scaling(plain, kind, factor, trained), length)

        makers = {kind: partial(scaled, kind) for kind in ("linear", "yarn")}

    def windows(length: int) -> LanguageModel:
        # every token sees as far back as in training, so no distance is new to it
        layers = {"sliding_window": trained, "layer_types": ["sliding_attention"]}
        return with_config(longer(plain, length), **layers)

    return {"none": partial(longer, plain), **makers, "windows": windows}


def longer(lm: LanguageModel, length: int) -> LanguageModel:
    """Let the model read `length` tokens. Raises InputError for learned positions."""
    longest = lm.config.max_position_embeddings
    if length <= longest:
        return lm
    if lm.config.position_embedding == "learned":
        raise InputError(
            f"--lengths: {length:,} is too long: "
            f"this model has learned a vector for {longest:,} positions"
        )
    return with_config(lm, max_position_embeddings=length)


# Texts.


def held_out_rows(tokenizer: Tokenizer, config: DataConfig, length: int, count: int) -> Tensor:
    """Cut the joined held-out documents into up to `count` pieces: (N, length).

    Raises InputError if the text is too short.
    """
    ids = list[int]()
    for text in chain.from_iterable(map(plain_texts, documents(config, "validation"))):
        ids += tokenizer.encode(text)
        if len(ids) >= count * (length - 1):
            break
    pieces = min(count, len(ids) // (length - 1))
    if not pieces:
        raise InputError(
            f"--lengths: the held-out text has only {len(ids):,} tokens, "
            f"fewer than {length:,}: give less"
        )
    # - 1: each row begins with a document's first token
    rows = torch.tensor(ids[: pieces * (length - 1)]).view(pieces, length - 1)
    return torch.cat((torch.full((pieces, 1), tokenizer.bos_id), rows), dim=1)


def recall_texts(tokenizer: Tokenizer, length: int, count: int) -> tuple[Tensor, ...] | None:
    """Return texts of random words that repeat phrases at the end; None if `length` is too short.

    ids:               (count, length), padded on the right; the same at every call
    row, copy, source: (questions,) each: token `copy` of text `row` repeats that at `source`
    """
    words = [tokenizer.encode(f" {word}") for word in (*held_out_names(), *lexicon().song_words)]
    ids = torch.full((count, length), tokenizer.pad_id)
    questions = []
    for row in range(count):
        rng = Random(f"recall {length} {row}")
        # no word twice, so a repeated phrase has one source only
        shuffled = rng.sample(words, len(words))
        # the index of each word; 1: behind a document's first token
        begins = list(accumulate(map(len, shuffled), initial=1))
        offsets = [rng.random() for _ in range(PARTS)]
        order = rng.sample(range(PARTS), PARTS)
        # as many words as fit without any phrase behind them
        fitting = sum(end <= length for end in begins[1:])
        while True:
            part = fitting // PARTS  # words
            if part < PHRASE:
                return None
            text = [tokenizer.bos_id, *chain(*shuffled[:fitting])]
            answers = []
            for k in order:
                # a phrase of part k of the text
                first = int(k * part + offsets[k] * (part - PHRASE + 1))
                for number in range(first, first + PHRASE):
                    # nothing announces the first word of a phrase
                    if number > first:
                        size = len(shuffled[number])
                        answers += [(row, len(text) + i, begins[number] + i) for i in range(size)]
                    text += shuffled[number]
            if len(text) <= length:
                break
            fitting -= 1  # make room for the phrases
        ids[row, : len(text)] = torch.tensor(text)
        questions += answers
    return ids, *torch.tensor(questions).T


# Results.


def table_of(measured: dict[str, Any]) -> str:
    # a row for each way to read, a column for each figure and length
    header = [""]
    rows = {name: [name] for name in measured["loss"]}
    for key in ("loss", "recall", "copy_gain"):
        header += [f"{key.replace('_', ' ')} at {length:,}" for length in measured["lengths"]]
        for name, row in rows.items():
            row += ["–" if value is None else f"{value:.2f}" for value in measured[key][name]]
    return table(header, rows.values())


def draw_curves(measured: dict[str, Any], file: Path) -> None:
    length = measured["lengths"][-1]
    figure = drawing.new_figure(760, 400)
    axes = figure.subplots()
    # a point in the middle of each stretch
    middles = (np.arange(POSITIONS) + 0.5) * length / POSITIONS
    for number, (name, by_length) in enumerate(measured["loss_by_position"].items()):
        drawing.draw_curve(axes, middles, by_length[-1], number, drawing.shorten(name, 40))
    title = "loss on held-out text, nats a token"
    drawing.frame_curves(axes, title, "position in the text, in tokens")
    axes.set_xlim(0, length)
    trained = measured["trained_length"]
    axes.axvline(trained, color=drawing.INK, lw=1, ls="--", label="trained length")
    drawing.legend_below(figure, axes)
    drawing.save_figure(figure, file)


if __name__ == "__main__":
    exit_on_bad_input(main)
