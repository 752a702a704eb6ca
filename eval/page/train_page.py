"""docs/train.html: a model that trains in the page, in one file without a network.

    python -m eval.page.train_page

writes the file again from eval/page/train/. The page's language, elements and colours are those of
the viewer (viewer.py).
"""

from __future__ import annotations

from configs.command import command_parser, exit_on_bad_input
from eval.page.viewer import PAGE, POLICY, one_file

FILE = PAGE.parents[1] / "docs/train.html"
# These run in the worker, and in the page, which shows their constants.
ENGINE = "numbers train/model train/trainer train/worker".split()
SCRIPTS = "language dom views colours chart train/page".split()


def engine() -> str:
    """Return the program of the worker."""
    return "\n".join((PAGE / f"{name}.js").read_text(encoding="utf-8") for name in ENGINE)


def build() -> str:
    """Return the page, complete."""
    title = "Headlight: a head is born"
    # The worker is made from a text in the page: there is no file beside it.
    policy = f"{POLICY}; worker-src blob:"
    # a script of its own, so that the page can read it as text
    data = f'<script id="engine">\n"use strict";\n{engine()}</script>'
    return one_file(title, policy, ["page", "train/page"], "train/page", data, SCRIPTS)


def main() -> None:
    command_parser(__doc__).parse_args()
    FILE.write_text(build(), encoding="utf-8")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    exit_on_bad_input(main)
