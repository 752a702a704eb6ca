"""What does every head of a trained run look at?

python -m eval.attention runs/x                     pictures, time-lapse and viewer, from the snapshots of training
python -m eval.attention runs/x --compute           page.html, with the model in it: it reads any text
python -m eval.attention runs/x --text "..."        the newest checkpoint on your text: text.png, text.html
python -m eval.attention runs/x --text "..." --head induction    the best induction head large, too: text_L3H1.png

--head takes a layer and a head as well (3,1), and every score of docs/measure.md: previous_token, sink, …
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from configs.command import InputError, exit_on_bad_input, integer
from configs.files import run_path
from data.config import DataConfig
from eval.attention.history import best_head
from eval.attention.metrics import SCORES
from eval.attention.probes import build_probes, probe_from_text
from eval.attention.snapshots import read_all, take_snapshot
from eval.config import AttentionConfig
from eval.load_model import add_device_option, data_config, open_checkpoint
from eval.page.page_model import read_models
from eval.page.viewer import write_viewer
from eval.pictures.heads import mosaic, one_head, render

MOST_TOKENS = 256  # of a map: more are too small to see


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("run", type=run_path, help="a run or a checkpoint directory, for example runs/demo")
    parser.add_argument("--text", help="what the heads look at; default: the texts of training")
    parser.add_argument("--out", type=Path, help="folder of the pictures; default: the run's, or this one")
    count, words = integer("--max-tokens", 2, MOST_TOKENS), f"tokens of the text that are shown ({MOST_TOKENS})"
    parser.add_argument("--max-tokens", type=count, default=MOST_TOKENS, help=words)
    parser.add_argument("--head", metavar="SCORE", help="draw the head with most of it large, too; or LAYER,HEAD")
    parser.add_argument("--svg", action="store_true", help="draw .svg, not .png")
    words = "page.html, with the weights of up to 12 checkpoints, or of these steps: 300,600,900"
    parser.add_argument("--compute", nargs="?", const="", metavar="STEPS", help=words)
    add_device_option(parser)
    given = parser.parse_args()
    if given.compute is not None and given.text is not None:
        raise InputError("--compute makes a page that reads any text: leave --text out")
    is_run = (given.run / "checkpoints").is_dir()  # a checkpoint directory is left as it is
    out = given.out or (given.run / "attention" if is_run else Path())
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = from_snapshots(given, out) if given.text is None else from_text(given, out)
    except OSError as error:
        raise InputError(f"--out: {out} cannot be written: {error.strerror}") from None
    print("\n".join(map(str, written)))


def from_snapshots(given: argparse.Namespace, out: Path) -> list[Path]:
    """Draw again what is drawn at the end of a run; a broken snapshot is reported and skipped."""
    if given.head or given.svg:
        raise InputError("--head and --svg are for a --text: give one")
    snapshots, problems = read_all(given.run)
    for problem in problems:
        print(f"warning: {problem}")
    if given.compute is not None:
        if not re.fullmatch(r"(\d+(,\d+)*)?", given.compute):
            raise InputError(f"--compute {given.compute}: give steps, such as 300,600,900, or nothing")
        network, weights = read_models(given.run, [int(step) for step in given.compute.split(",") if step])
        sizes = (network["config"]["num_hidden_layers"], network["config"]["num_attention_heads"])
        if any((len(snapshot.layers), len(snapshot.heads)) != sizes for snapshot in snapshots):
            remedy = "train without eval.attention.layers and eval.attention.heads"
            raise InputError(f"{given.run}/attention: the page computes all heads, and a look has only some: {remedy}")
        networks = {given.run.name: (network, weights)}
        return [write_viewer([(given.run.name, snapshots)], out / "page.html", networks=networks)]
    if not snapshots:
        raise InputError(f"{given.run}/attention: no snapshot can be read: train again, or give a --text")
    return render(given.run, snapshots, folder=out)


def from_text(given: argparse.Namespace, out: Path) -> list[Path]:
    """Every head of a checkpoint on one text; where --head names a score, that is measured as in training, too."""
    score, numbers = (given.head or "").replace("-", "_"), re.fullmatch(r"(\d+),(\d+)", given.head or "")
    if given.head and not numbers and score not in SCORES:
        raise InputError(f"--head {given.head}: give a layer and a head, such as 0,1, or a score: {', '.join(SCORES)}")
    lm, tokenizer, directory = open_checkpoint(given.run, given.device)
    longest, step = lm.config.max_position_embeddings, re.search(r"step_(\d{8})$", directory.name)
    try:
        probes = [probe_from_text(tokenizer, given.text, longest)]
    except ValueError as error:  # empty
        raise InputError(f"--text: {error}") from None
    if score in SCORES and SCORES[score].probe != "text":
        built_in = build_probes(tokenizer, data_config(given.run) or DataConfig(), longest)
        probes += [probe for probe in built_in if probe.name == SCORES[score].probe]
    config = AttentionConfig(max_tokens=given.max_tokens)
    snapshot = take_snapshot(lm, probes, config, (int(step[1]) if step else -1, 0, 0.0))
    name, suffix, head = str(given.run), ".svg" if given.svg else ".png", None
    written = [mosaic(snapshot, out / f"text{suffix}", name)]
    if given.head:
        head = (int(numbers[1]), int(numbers[2])) if numbers else best_head(snapshot, score)
        if head is None:
            raise InputError(f"--head {score}: this score cannot be measured here: give another, or LAYER,HEAD")
        if head[0] not in snapshot.layers or head[1] not in snapshot.heads:
            there = f"layers 0 to {snapshot.layers[-1]}, heads 0 to {snapshot.heads[-1]}"
            raise InputError(f"--head {given.head}: this model has {there}")
        title = name
        if not numbers:  # say why it is this head: the map itself may be of another probe than the score
            title += f" · {SCORES[score].title} {snapshot.scores[score][head]:.2f} on {SCORES[score].probe}"
        written.append(one_head(snapshot, *head, out / f"text_L{head[0]}H{head[1]}{suffix}", title=title))
    return [*written, write_viewer([(name, [snapshot])], out / "text.html", head)]


if __name__ == "__main__":
    exit_on_bad_input(main)
