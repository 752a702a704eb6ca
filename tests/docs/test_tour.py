"""The path of a run: docs/tour.md names at most twelve of its files, and README says how many there
are in all.
"""

import re

from docs.tools.sizes import two_steps
from tests.docs.checks import ROOT

TOUR = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
LINES = {file: int(lines) for file, lines in re.findall(r"^\| `([\w/]+\.py)` \| (\d+) \|", TOUR, re.MULTILINE)}
PROMISE = re.compile(r"a run is (\d+) files and ([\d,]+) lines")


def test_a_run_is_as_short_as_readme_promises_and_enters_every_file_of_the_tour(tmp_path):
    path = two_steps(tmp_path)
    promised = PROMISE.search((ROOT / "README.md").read_text(encoding="utf-8")).groups()
    files, lines = (int(number.replace(",", "")) for number in promised)
    assert len(path) <= files, sorted(path)
    assert sum(map(len, path.values())) <= lines * 1.02
    assert len(LINES) <= 12
    assert LINES.keys() - path.keys() == set(), "files that docs/tour.md names and a run does not enter"


def test_the_tour_says_how_long_each_file_is():
    real = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in LINES}
    assert {file for file in LINES if abs(real[file] - LINES[file]) > 0.1 * real[file]} == set(), real
