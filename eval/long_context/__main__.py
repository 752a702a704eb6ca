"""What does a run do with texts longer than those of its training? `python -m eval.long_context runs/demo`

Reads held-out text and random words of growing length in several ways: as it is, with RoPE scaled (linear, yarn), with
windows. Writes long_context/ into the run: report.md, pictures, and long_context.json with all numbers. Further runs,
for example one that was trained a little at the longer length, are read as they are. docs/long_context.md explains it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from configs.command import InputError, exit_on_bad_input, numbers, whole
from configs.text import markdown, table
from eval.load_model import add_device_option, data_config, open_model, run_folder
from eval.long_context import study
from eval.long_context.pictures import draw_angles, draw_curves

LENGTHS, TEXTS = [128, 256, 512, 1024], 32
SHORTEST = 16


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m eval.long_context", description=__doc__, formatter_class=form)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run, and others to be read as they are")
    tokens, words = numbers("--lengths", SHORTEST), "tokens of a text, growing (128,256,512,1024)"
    parser.add_argument("--lengths", type=tokens, default=LENGTHS, metavar="N,N", help=words)
    count = whole("--texts", 1)
    parser.add_argument("--texts", type=count, default=TEXTS, metavar="N", help=f"of each length ({TEXTS})")
    parser.add_argument("--out", type=Path, help="folder to write; default: long_context in the first run")
    add_device_option(parser)
    given = parser.parse_args()
    if sorted(set(given.lengths)) != given.lengths or len(given.lengths) < 2:
        raise InputError("--lengths: give two or more, each larger than the one before, for example 128,256,512")
    run = given.runs[0]
    config = data_config(run)
    if config is None:
        raise InputError(
            f"{run}: there is no config.yaml beside it, so held-out text and trained length are unknown: name a run"
        )
    opened = {path: open_model(path, given.device) for path in given.runs}
    measured = study(opened, config, given.lengths, given.texts)
    out, (lm, _) = given.out or run_folder(run) / "long_context", opened[run]
    out.mkdir(parents=True, exist_ok=True)
    (out / "long_context.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    draw_curves(measured, out / "curves.png")
    pictures = ["![loss by position](curves.png)"]
    if any(lm.config.rotates):
        draw_angles(lm, config.sequence_length, given.lengths[-1], out / "frequencies.png")
        pictures.append("![angles of RoPE](frequencies.png)")
    columns = [(key, at) for key in ("loss", "recall", "copy_gain") for at in range(len(given.lengths))]
    rows = []
    for name in measured["loss"]:
        values = [measured[key][name][at] for key, at in columns]
        rows.append([name, *("–" if value is None else f"{value:.2f}" for value in values)])
    shown = table(["", *(f"{key.replace('_', ' ')} at {given.lengths[at]:,}" for key, at in columns)], rows)
    texts = measured["texts"]
    parts = [
        f"# {markdown(run)} on longer texts",
        f"Trained on rows of {config.sequence_length:,} tokens. {texts} held-out texts: documents joined as one. Loss: "
        f"of their same last {measured['last_tokens']} tokens, however much stands before them.",
        f"And {texts} texts of random words with four phrases of them again at the end. Recall: the share of tokens of "
        "these phrases that the model finds likeliest; the first word is not asked for. Copy gain: how much smaller "
        "their loss is than at first, in nats a token. – = too short for the phrases.",
        shown,
        *pictures,
        "docs/long_context.md explains the figures, and has the command that trains a run on at a longer length.",
    ]
    (out / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"{shown}\n\nall numbers and pictures: {out / 'report.md'}")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
