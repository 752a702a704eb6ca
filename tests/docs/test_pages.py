"""Every name in the guides exists: links, files, modules, options, keys, targets of make, YAML, imports."""

from pathlib import Path

import pytest

from tests.docs.checks import CHECKS
from tests.docs.page import ROOT, read

pytestmark = pytest.mark.slow

FOUND = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb")]
PAGES = sorted(path.relative_to(ROOT) for path in FOUND)
DIARY = {Path("EXPERIMENTS.md"): ("links", "tables", "yaml_blocks", "imports")}  # names of then stay as they are


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_every_name_exists(path):
    page = read(path)
    chosen = DIARY.get(path, tuple(CHECKS))
    mistakes = [mistake for name in chosen for mistake in CHECKS[name](page)]
    assert not mistakes, "\n".join(mistakes)
