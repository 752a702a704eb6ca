"""docs/train.html: a model that trains in the page, in one file without a network.

    python -m eval.page.train_page

writes the file again from eval/page/train/. The page's language, elements and colours are those of
the viewer (viewer.py).
"""

from __future__ import annotations

import argparse
import re

from configs.command import exit_on_bad_input
from eval.page.viewer import PAGE, POLICY, script

TRAIN = PAGE / "train"
FILE = PAGE.parents[1] / "docs/train.html"
# These run in the worker, and in the page, which shows their constants.
ENGINE = "numbers model trainer worker".split()
SCRIPTS = "train/zh language dom colours chart train/page".split()


def build() -> str:
    """Return the page, complete."""
    engine = "\n".join((TRAIN / f"{name}.js").read_text(encoding="utf-8") for name in ENGINE)
    style = "\n".join(
        path.read_text(encoding="utf-8") for path in (PAGE / "page.css", TRAIN / "page.css")
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}; worker-src blob:">\n'
        f"<title>Headlight: a head is born</title>\n<style>\n{style}</style>"
    )
    end = (
        f'<script id="engine">\n"use strict";\n{engine}</script>\n'
        f"<script>\n{script(SCRIPTS)}</script>"
    )
    parts = {"HEAD": head, "END": end}
    page = (TRAIN / "page.html").read_text(encoding="utf-8")
    return re.sub("@@([A-Z]+)@@", lambda match: parts[match[1]], page)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=form).parse_args()
    FILE.write_text(build(), encoding="utf-8")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    exit_on_bad_input(main)
