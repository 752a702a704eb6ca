"""What does every head of a trained run look at?

python -m eval.attention runs/x                     pictures, time-lapse and viewer, from the snapshots of training
python -m eval.attention runs/x --text "..."        the newest checkpoint on your text: text.png, text.html
python -m eval.attention runs/x --text "..." --head induction    the best induction head large, too: text_L3H1.png

--head takes a layer and a head as well (3,1), and every score of docs/attention_scores.md: previous_token, sink, …
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from configs.command import InputError, exit_on_bad_input, numbers, whole
from configs.text import did_you_mean
from data.config import DataConfig
from eval.attention.history import best_head
from eval.attention.metrics import SCORES
from eval.attention.pictures.plots import mosaic, one_head
from eval.attention.probes import build_probes, probe_from_text
from eval.attention.render import render
from eval.attention.snapshots import look, read_all
from eval.attention.viewer import write_viewer
from eval.config import AttentionConfig
from eval.load_model import add_device_option, data_config, open_checkpoint

MOST_TOKENS = 256  # of a map: more are too small to see
EXAMPLE = "Once there was a fox. The fox saw a bird, and the bird saw the fox."


def main() -> int:
    given = parse()
    run = Path(given.run)
    is_run = (run / "checkpoints").is_dir()  # a checkpoint directory is left as it is
    out = Path(given.out) if given.out else run / "attention" if is_run else Path()
    try:
        out.mkdir(parents=True, exist_ok=True)
        if given.text is None and is_run and any((run / "attention").glob("step_*.npz")):
            written = from_snapshots(given, run, out)
        else:
            written = from_text(given, out)
    except OSError as error:
        raise InputError(f"--out: {out} cannot be written: {error.strerror}") from None
    print("\n".join(map(str, written)))
    return 0


def parse() -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    parser.add_argument("--text", help="what the heads look at; without it and without snapshots, an example")
    parser.add_argument("--out", help="folder of the pictures; default: the run's attention folder, or this one")
    parser.add_argument(
        "--max-tokens",
        type=whole("--max-tokens", 2, MOST_TOKENS),
        default=MOST_TOKENS,
        help=f"tokens of the text that are shown ({MOST_TOKENS})",
    )
    parser.add_argument("--layers", type=numbers("--layers", 0), metavar="N,N", help="which layers; default: all")
    parser.add_argument("--heads", type=numbers("--heads", 0), metavar="N,N", help="which query heads; default: all")
    parser.add_argument(
        "--head", metavar="SCORE", help="draw the head with most of this score large, too; or LAYER,HEAD"
    )
    parser.add_argument("--hide-sink", action="store_true", help="leave the first token out of the picture")
    parser.add_argument("--svg", action="store_true", help="draw .svg, not .png")
    add_device_option(parser)
    return parser.parse_args()


def from_snapshots(given: argparse.Namespace, run: Path, out: Path) -> list[Path]:
    """Draw again what is drawn at the end of a run; a broken snapshot is reported and skipped."""
    for option in ("layers", "heads", "head", "hide_sink", "svg"):
        if getattr(given, option):
            raise InputError(f"--{option.replace('_', '-')} is for a --text: give one")
    snapshots, problems = read_all(run)
    for problem in problems:
        print(f"warning: {problem}")
    snapshots = [snapshot for snapshot in snapshots if snapshot.maps]
    if not snapshots:
        raise InputError(f"{run}/attention: no snapshot can be read: train again, or give a --text")
    return render(run, snapshots, folder=out)


def from_text(given: argparse.Namespace, out: Path) -> list[Path]:
    """Every head of a checkpoint on one text; where --head names a score, that is measured as in training, too."""
    score: str | None = None
    place: tuple[int, int] | None = None
    if given.head and given.head[0].isalpha():
        score = given.head.replace("-", "_")
        if score not in SCORES:
            nearest = did_you_mean(score, {name: name for name in SCORES})
            raise InputError(f"--head {score}: there is no such score{nearest or ': use ' + ', '.join(SCORES)}")
    elif given.head:
        parts = numbers("--head", 0)(given.head)
        if len(parts) != 2:
            raise InputError("--head: give a score, or a layer and a head: --head induction, --head 3,1")
        place = parts[0], parts[1]
    lm, tokenizer, directory = open_checkpoint(given.run, given.device)
    longest, step = lm.config.max_position_embeddings, re.search(r"step_(\d{8})$", directory.name)
    config = AttentionConfig(layers=given.layers, heads=given.heads, max_tokens=given.max_tokens)
    try:
        probes = [probe_from_text(tokenizer, EXAMPLE if given.text is None else given.text, longest)]
        if score and SCORES[score].probe != "text":
            built_in = build_probes(tokenizer, data_config(given.run) or DataConfig(), longest)
            probes += [probe for probe in built_in if probe.name == SCORES[score].probe]
        snapshot = look(lm, probes, config, (int(step[1]) if step else -1, 0, 0.0))
    except ValueError as error:  # a text that is empty or too long, a layer or head that the model does not have
        raise InputError(str(error)) from None
    if score:
        best = best_head(snapshot, score)
        if best is None:
            raise InputError(f"--head {score}: this score cannot be measured here: give another, or LAYER,HEAD")
        place = snapshot.layers[best[0]], snapshot.heads[best[1]]
    if place and not (place[0] in snapshot.layers and place[1] in snapshot.heads):
        there = f"layers {snapshot.layers}, heads {snapshot.heads}"
        raise InputError(f"--head: there is no head {place[1]} in a layer {place[0]}: this picture has {there}")
    suffix = ".svg" if given.svg else ".png"
    written = [mosaic(snapshot, out / f"text{suffix}", str(given.run), hide_sink=given.hide_sink)]
    if place:
        file = out / f"text_L{place[0]}H{place[1]}{suffix}"
        written.append(one_head(snapshot, *place, file, hide_sink=given.hide_sink, score=score))
    written.append(write_viewer([(str(given.run), [snapshot])], out / "text.html", head=place))
    if left_out := snapshot.maps["text"].left_out:
        more = "" if given.max_tokens == MOST_TOKENS else f"; --max-tokens shows up to {MOST_TOKENS}"
        print(f"not shown: {left_out}{more}")
    return written


if __name__ == "__main__":
    exit_on_bad_input(main)
