"""Every name in the guides exists: links, files, modules, options, keys, targets of make, YAML, imports."""

import re

import pytest

from tests.docs import tree
from tests.docs.checks import CHECKS
from tests.docs.page import ROOT, read

pytestmark = pytest.mark.slow

FOUND = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb")]
PAGES = sorted(path.relative_to(ROOT) for path in FOUND)


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_every_name_exists(path):
    page = read(path)
    mistakes = [mistake for check in CHECKS.values() for mistake in check(page)]
    assert not mistakes, "\n".join(mistakes)
    if path.name == "FINDINGS.md":
        assert set(re.findall(r"FINDINGS\.md#([\w-]+)", tree.code())) <= page.anchors
