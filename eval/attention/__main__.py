"""Draw what every head of a trained run looks at.

python -m eval.attention runs/x               pictures, time-lapse and viewer of training
python -m eval.attention runs/x --compute     page.html, with the model in it: it reads any text
python -m eval.attention runs/x --subsets     switch off every subset of the heads: subsets.png
python -m eval.attention runs/x --lookalikes  do its heads find a word in another form?
python -m eval.attention runs/x --text "..."  the newest checkpoint on your text: text.png, .html
python -m eval.attention runs/x --text "..." --head induction
                                              the best induction head large, too: text_L3H1.png

--head takes every score of docs/measure.md (previous_token, sink, …), or a layer and a head (3,1).
"""

import argparse
import re
from pathlib import Path

from configs.command import (
    InputError,
    add_number,
    command_parser,
    exit_on_bad_input,
    still_busy,
)
from configs.files import run_path
from data.config import DataConfig
from eval.attention.capture import layers_with_weights, without_weights
from eval.attention.history import best_head
from eval.attention.lookalikes import lookalikes_in_words
from eval.attention.metrics import SCORES
from eval.attention.probes import build_probes, probe_from_text
from eval.attention.snapshots import newest, read_all, take_snapshot
from eval.attention.subsets import (
    copy_value,
    halves,
    measure_subsets,
    name_value,
    named_pair,
    summary,
)
from eval.config import AttentionConfig
from eval.load_model import add_device_option, data_config, open_checkpoint
from eval.page.page_model import read_models
from eval.page.viewer import write_viewer
from eval.pictures.heads import mosaic, one_head
from eval.pictures.run_pictures import render
from eval.pictures.scores import draw_subsets

MOST_TOKENS = 256  # A map of more tokens is too fine to see.


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("run", type=run_path, help="a run or a checkpoint directory, for example runs/demo")
    add("--text", help="what the heads look at; default: the texts of training")
    add("--out", type=Path, help="folder of the pictures; default: the run's, or this one")
    about = "tokens of the text that are shown"
    add_number(parser, "--max-tokens", MOST_TOKENS, about, least=2, most=MOST_TOKENS)
    add("--head", metavar="SCORE", help="also draw this head large: a score, or LAYER,HEAD")
    add("--svg", action="store_true", help="draw .svg, not .png")
    add(
        "--compute",
        nargs="?",
        const="",
        metavar="STEPS",
        help="page.html, with the weights of up to 12 checkpoints, or of these steps: 300,600,900",
    )
    add("--subsets", action="store_true", help="Shapley values of the heads, by all subsets")
    add("--lookalikes", action="store_true", help='induction where "the" becomes " The"')
    add_device_option(parser)
    args = parser.parse_args()
    if args.lookalikes:
        if args.text is not None or args.head or args.subsets or args.compute is not None:
            raise InputError("--lookalikes has rows of its own, and draws nothing: give it alone")
        print_lookalikes(args)
        return
    if args.compute is not None and args.text is not None:
        raise InputError("--compute makes a page that reads any text: leave --text out")
    out = args.out
    if out is None:
        # nothing is written into a checkpoint directory
        is_run = (args.run / "checkpoints").is_dir()
        out = args.run / "attention" if is_run else Path()
    try:
        out.mkdir(parents=True, exist_ok=True)
        if args.subsets:
            files = all_subsets(args, out)
        else:
            files = from_snapshots(args, out) if args.text is None else from_text(args, out)
    except OSError as error:
        raise InputError(f"--out: {out} cannot be written: {error.strerror}") from None
    print("\n".join(map(str, files)))


def from_snapshots(args: argparse.Namespace, out: Path) -> list[Path]:
    # Draw the pictures of training again.
    if args.head or args.svg:
        raise InputError("--head and --svg are for a --text: give one")
    # one damaged file costs one look, not the whole history
    snapshots, problems = read_all(args.run)
    for problem in problems:
        print(f"warning: {problem}")
    if args.compute is None:
        if not snapshots:
            raise InputError(
                f"{args.run}/attention: no snapshot can be read: train again, or give a --text"
            )
        return render(args.run, snapshots, folder=out)
    if not re.fullmatch(r"(\d+(,\d+)*)?", args.compute):
        raise InputError(f"--compute {args.compute}: give steps, such as 300,600,900, or nothing")
    steps = [int(step) for step in args.compute.split(",") if step]
    networks = {args.run.name: read_models(args.run, steps, snapshots=snapshots)}
    return [write_viewer([(args.run.name, snapshots)], out / "page.html", networks=networks)]


def all_subsets(args: argparse.Namespace, out: Path) -> list[Path]:
    lm, tokenizer, _ = open_checkpoint(args.run, args.device)
    snapshot = newest(args.run)
    longest = lm.config.max_position_embeddings
    probes = build_probes(
        tokenizer,
        data_config(args.run) or DataConfig(),
        longest,
        blocks=snapshot.blocks if snapshot else (),  # the tokens on which training measured
    )
    # a context may be too short for some of them
    by_name = {probe.name: probe for probe in probes}
    if "repeated_2" not in by_name:
        raise InputError(f"{args.run}: its context is too short for repeated words")
    chosen_on, measured_on = halves(by_name["repeated_2"])
    values = [copy_value(measured_on)]
    if "stories" in by_name:
        values.append(name_value(by_name["stories"]))
    # chosen on other rows than those that are measured: there it would win by chance
    pair = named_pair(lm, chosen_on)
    files = []
    for value in values:
        try:
            with still_busy(f"switching off heads: {value.name}"):
                subsets = measure_subsets(lm, value)
        except ValueError as error:
            raise InputError(f"{args.run}: {error}") from None
        print(f"{summary(subsets, value, pair)}\n")
        file = out / f"subsets_{value.name.replace(' ', '_')}.png"
        files.append(draw_subsets(subsets, file, f"{args.run}: {value.name}"))
    return files


def print_lookalikes(args: argparse.Namespace) -> None:
    lm, tokenizer, _ = open_checkpoint(args.run, args.device)
    try:
        print(lookalikes_in_words(lm, tokenizer))
    except ValueError as error:  # too few words, or layers without attention weights
        raise InputError(f"{args.run}: {error}") from None


def from_text(args: argparse.Namespace, out: Path) -> list[Path]:
    choice = args.head or ""
    # --head takes two kinds of values; a score's name never looks like 0,1
    numbers = re.fullmatch(r"(\d+),(\d+)", choice)
    score = choice.replace("-", "_")
    if choice and not numbers and score not in SCORES:
        raise InputError(
            f"--head {choice}: give a layer and a head, such as 0,1, "
            f"or a score: {', '.join(SCORES)}"
        )
    lm, tokenizer, directory = open_checkpoint(args.run, args.device)
    if not layers_with_weights(lm.config):
        raise InputError(f"{args.run}: {without_weights(lm.config)}")
    longest = lm.config.max_position_embeddings
    try:
        probes = [probe_from_text(tokenizer, args.text, longest)]
    except ValueError as error:  # empty
        raise InputError(f"--text: {error}") from None
    if score in SCORES and SCORES[score].probe != "text":
        # measure it on the texts of training
        # without held-out text: the scores of repeated words and of stories need none
        built_in = build_probes(tokenizer, data_config(args.run) or DataConfig(), longest)
        probes += [probe for probe in built_in if probe.name == SCORES[score].probe]
    step = re.search(r"step_(\d{8})$", directory.name)
    moment = (int(step[1]) if step else -1, 0, 0.0)  # a checkpoint has no count of tokens
    # as in training, but of one moment: so every picture of training can draw it
    snapshot = take_snapshot(lm, probes, AttentionConfig(max_tokens=args.max_tokens), moment)
    name = str(args.run)
    suffix = ".svg" if args.svg else ".png"
    files = [mosaic(snapshot, out / f"text{suffix}", name)]
    head = None
    if choice:
        title = name
        if numbers:
            head = (int(numbers[1]), int(numbers[2]))
        else:
            best = best_head(snapshot, score)
            if best is None:
                raise InputError(
                    f"--head {score}: this score cannot be measured here: "
                    f"give another, or LAYER,HEAD"
                )
            # the reason for this head: its score may be of another probe than the map's
            value = f"{snapshot.scores[score][best]:.2f} on {SCORES[score].probe}"
            title = f"{name} · {SCORES[score].title} {value}"
            # an index becomes a number: a hybrid model has maps of some layers only
            head = (snapshot.layers[best[0]], snapshot.heads[best[1]])
        layer, number = head
        if layer not in snapshot.layers or number not in snapshot.heads:
            raise InputError(
                f"--head {choice}: this model has layers 0 to {snapshot.layers[-1]}, "
                f"heads 0 to {snapshot.heads[-1]}"
            )
        file = out / f"text_L{layer}H{number}{suffix}"
        files.append(one_head(snapshot, layer, number, file, title=title))
    return [*files, write_viewer([(name, [snapshot])], out / "text.html", head)]


if __name__ == "__main__":
    exit_on_bad_input(main)
