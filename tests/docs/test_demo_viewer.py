"""docs/demo_viewer.html, which README links: a finished demo, and its model at five steps, in today's page. Made by

python -m train.pretrain configs/demo.yaml train.checkpoint_every=100 train.keep_last=18
python -m eval.attention runs/demo --compute 300,500,600,900,1800
"""

import base64
import json
import re
import zlib
from pathlib import Path

import pytest

from eval.attention import viewer
from tests.eval.test_page_model import TEXTS, agrees, unpacked
from tests.eval.viewer_helpers import chromium, opened

STEPS = [300, 500, 600, 900, 1800]
FILE = Path(__file__).resolve().parents[2] / "docs/demo_viewer.html"
DATA = re.compile(r'(?<=<script type="text/plain" id="data">\n)[A-Za-z0-9+/=\n]+?(?=\n</script>)')


def renewed(text: str) -> str:
    """The numbers of the file in the page as it is now."""
    return viewer.assemble("demo", DATA.search(text)[0], computes=True)


def renew() -> None:
    FILE.write_text(renewed(FILE.read_text(encoding="utf-8")), encoding="utf-8")


def test_the_demos_viewer_is_todays_page_and_needs_no_file_beside_it():
    text = FILE.read_text(encoding="utf-8")
    how = "the page has changed: python -c 'from tests.docs.test_demo_viewer import renew; renew()'"
    assert text == renewed(text), how
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)


def lines():
    """Of the file: what is known of the run, then maps and weights."""
    first, *rest = [
        zlib.decompress(base64.b64decode(line), -zlib.MAX_WBITS) for line in DATA.search(FILE.read_text())[0].split()
    ]
    return json.loads(first), rest


@pytest.mark.slow
def test_the_page_computes_what_capture_does_on_twenty_texts_and_asks_nobody():
    about, rest = lines()
    network = about["runs"][0]["network"]
    assert list(map(int, network["lines"])) == STEPS
    last, middle = (unpacked(network, rest[network["lines"][str(step)] - 1]) for step in (1800, 600))
    with chromium() as browser, opened(browser, FILE) as page:
        for words in TEXTS:
            agrees(page, last, 1800, words)
        begin = page.input_value("#words")
        agrees(page, middle, 600, begin)
        assert page.locator(".next td").first.inner_text() == "na"  # the name that the first text breaks off in
        page.locator(".own-off").first.click()
        page.locator(".own-all").first.wait_for()
        assert float(page.locator(".next .number").first.inner_text().rstrip("%")) < 50  # without the head it is lost
        agrees(page, last, 1800, begin, [(1, 2)])
        page.locator(".step").first.fill("0")
        assert page.locator(".when").first.inner_text().startswith("step 300 ")
        page.select_option("#probe", "repeated_2")  # of which the file has every look
        assert len(page.evaluate("headlight.runs[0].shown")) == 25
