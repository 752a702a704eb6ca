"""Train in docs/train.html, without a network, and compare each birth with the PyTorch twin's.

    python -m benchmarks.page_births

prints the step at which an induction head is born, for MHA, GQA, MQA and each seed. The page trains
all three at once, as its button does. It needs Chromium; fifteen births take about ten minutes.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from configs.command import InputError, add_number, command_parser, exit_on_bad_input

PAGE = Path(__file__).parents[1] / "docs/train.html"
KINDS = ("MHA", "GQA", "MQA")
BORN = re.compile(r"^step (\d+)", re.MULTILINE)
LONGEST = 1_800_000  # milliseconds to wait for three births, on a slow machine


def in_page(page: Any, seed: int) -> list[int]:
    """Return the steps of the births that the page reports, one for each kind."""
    page.goto(PAGE.as_uri())
    page.wait_for_selector("html[data-ready]")
    page.fill("[name=seed]", str(seed))
    page.check(f'[name=kinds][value="{" ".join(KINDS)}"]', force=True)
    page.click("#play")
    births = page.locator(".birth")
    births.nth(len(KINDS) - 1).wait_for(timeout=LONGEST)
    page.click("#play")  # it pauses
    return [int(BORN.findall(births.nth(i).inner_text())[0]) for i in range(len(KINDS))]


def in_twin(kind: str, seed: int) -> int:
    """Return the step of the twin's birth: it prints that step last."""
    # no package imports the notebooks
    command = [sys.executable, "-m", "notebooks.page_twin", kind.lower(), str(seed)]
    printed = subprocess.run(command, cwd=PAGE.parents[1], stdout=subprocess.PIPE, check=True)
    return int(BORN.findall(printed.stdout.decode())[-1])


def main() -> None:
    parser = command_parser(__doc__)
    add_number(parser, "--seeds", 5, "seeds 0, 1, …", most=100)
    args = parser.parse_args()
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise InputError("there is no Chromium on the PATH: apt-get install chromium")
    from playwright.sync_api import sync_playwright  # slow to import

    print("| seed | kind | born at step, in the page | in the twin |\n|---|---|---:|---:|")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        context = browser.new_context(offline=True, locale="en-US")
        page = context.new_page()
        for seed in range(args.seeds):
            for kind, step in zip(KINDS, in_page(page, seed), strict=True):
                print(f"| {seed} | {kind} | {step} | {in_twin(kind, seed)} |", flush=True)
        browser.close()


if __name__ == "__main__":
    exit_on_bad_input(main)
