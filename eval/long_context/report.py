"""The page about long texts: what was read, the table, the pictures, and how to train on."""

from __future__ import annotations

from pathlib import Path

from configs.text import markdown, table
from eval.long_context.frequencies import in_words
from eval.long_context.pictures import draw
from eval.long_context.study import Study


def write(found: Study, out: Path, run: str, train_on: str) -> Path:
    """Write report.md and its pictures into `out`, and return the page."""
    longest, texts = found.lengths[-1], found.numbers["texts"]
    lines = [
        f"# {markdown(run)} on longer texts",
        "",
        f"Trained on rows of {found.trained:,} tokens. {texts} held-out texts: documents joined as if they were one. "
        f"The loss is that of their same last {found.numbers['last_tokens']} tokens, however much stands before them.",
        "",
        f"And {texts} texts of random words with four phrases of them again at the end. Recall: the share of tokens of "
        "these phrases that the model finds likeliest; the first word is not asked for. – = too short for the phrases.",
        "",
        found.table(),
        "",
    ]
    gains = found.numbers["copy_gain"]
    if any(gain is not None for values in gains.values() for gain in values):
        header = ["copy gain, nats a token, at", *(f"{length:,}" for length in found.lengths)]
        rows = [[name, *("–" if g is None else f"{g:.2f}" for g in values)] for name, values in gains.items()]
        lines += [table(header, rows), ""]
    for title, picture in draw(found, out):
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        if title == "angles of RoPE":
            lines += [in_words(found.pairs, found.trained, longest), ""]
        lines += [f"![{title}]({picture})", ""]
    lines += [
        "## Train on",
        "",
        f"A hundred steps on rows of {longest:,} tokens, with yarn; afterwards name the new run as well:",
        "",
        "```",
        train_on,
        f"python -m eval.long_context {run} {run}-yarn",
        "```",
        "",
    ]
    file = out / "report.md"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file
