"""docs/demo_viewer.html, which README links: what a finished demo's viewer.html is, in today's page."""

import re
from pathlib import Path

from eval.attention import viewer

FILE = Path(__file__).resolve().parents[2] / "docs/demo_viewer.html"
DATA = re.compile(r'(?<=<script type="text/plain" id="data">\n)[A-Za-z0-9+/=\n]+?(?=\n</script>)')


def renewed(text: str) -> str:
    """The numbers of the file in the page as it is now."""
    return viewer.assemble("demo", DATA.search(text)[0], computes=False)


def renew() -> None:
    FILE.write_text(renewed(FILE.read_text(encoding="utf-8")), encoding="utf-8")


def test_the_demos_viewer_is_todays_page_and_needs_no_file_beside_it():
    text = FILE.read_text(encoding="utf-8")
    how = "the page has changed: python -c 'from tests.docs.test_demo_viewer import renew; renew()'"
    assert text == renewed(text), how
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
