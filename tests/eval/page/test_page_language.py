"""The pages in Chinese: the table has every sentence of a page and every one that runs say, and no
other.
"""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from eval.attention.controls import Ablated
from eval.attention.history import changes, formed, without_them
from eval.attention.metrics import SCORES
from eval.page.viewer import OWN, PAGE, PROBES
from tests.docs.test_demo_viewer import FILE
from tests.eval.page.viewer_helpers import chromium, english_in, opened, snapshot

NAMES = {"Headlight", "@@HEAD@@", "@@BODY@@", "@@END@@", "This page needs JavaScript.", "中文 / English"}
NAMES |= {*"0 0.5 0.8 0.95 1 2 3 4 8 10 40 MHA GQA MQA".split()}  # the same in both languages
NAMES |= {  # in both languages, because no script runs yet
    "Loading … If this line does not disappear, the file is incomplete: download it again.",
    "正在加载……如果一直显示这一行，说明文件不完整：请重新下载。",
}
TABLE = json.loads((PAGE / "zh.json").read_text(encoding="utf-8"))
OF_PAGE, OF_RUNS = TABLE["page"], TABLE["runs"]


class Words(HTMLParser):
    """Return the texts, titles and labels of the pages."""

    def __init__(self):
        super().__init__()
        self.found = set()
        for file in PAGE.rglob("*.html"):
            self.feed(file.read_text(encoding="utf-8"))

    def handle_data(self, data):
        self.found |= {" ".join(data.split())} - {""}

    def handle_starttag(self, tag, attributes):
        self.found |= {" ".join(value.split()) for name, value in attributes if name in ("title", "aria-label")}


def looks(*inductions, chance=0.03, ablations=()):
    """One look for each score of the induction head, which is layer 1, head 2."""
    result = []
    for number, induction in enumerate(inductions):
        scores = {name: np.full((2, 4), 0.01, np.float32) for name in ("induction", "previous_token")}
        scores["induction"][1, 2] = scores["previous_token"][0, 1] = induction
        scores["induction"][1, 1] = induction / 2
        levels = {"induction": chance, "previous_token": 0.05}
        result.append(snapshot(100 * number, scores=scores, chance=levels))
    return [*result[:-1], replace(result[-1], ablations=[Ablated(*ablation) for ablation in ablations])]


def said_of_runs():
    """Every kind of sentence that Python writes into a page."""
    heads = [("strongest induction heads", [(1, 2)], 2.0), ("previous-token heads below them", [(0, 1)], 1.0)]
    random = [("random draw 1", [(0, 0)], 0.1)]
    useless = [("random draw 1", [(0, 0)], 0.0)]
    for run in (looks(0.01, 0.6), looks(0.5, 0.6), looks(0.01, 0.02), looks(0.01)):
        yield from (formed(run), *(line for _, line in changes(run)))
    for ablations in (heads, heads + random, heads + useless, heads[:1], heads[:1] + random):
        yield without_them(looks(0.01, 0.6, ablations=ablations)[-1])
    for score in SCORES.values():
        yield from (score.title, score.meaning, score.looks_at, score.unit)
    yield from (text for probe in PROBES.values() for text in probe)
    yield from (OWN["title"], OWN["note"], "x: attention heads", "training", "finished", "stopped")
    yield from ("tokens 1 to 2 of 3", "To stay small, this file has the maps of 1 of 2 steps of x, scores of all.")


def keys_of(words, used):
    """Note which lines of the table translate this text, as translated() in language.js does;
    whether any does.
    """
    for key in OF_RUNS:
        pattern = re.sub(r"\\\{\d\\\}", "(.+?)", re.escape(key))
        if found := re.fullmatch(pattern, words):
            used.add(key)
            for part in found.groups():
                keys_of(part, used)
            return True
    return False


def test_the_table_has_every_sentence_of_the_page_and_no_other():
    scripts = [file.read_text(encoding="utf-8") for file in PAGE.rglob("*.js")]
    given = {words for text in scripts for words in re.findall(r'\bt\(\s*"((?:[^"\\]|\\.)*)"', text)}
    assert set(OF_PAGE) == given | Words().found - NAMES


def test_the_table_has_every_sentence_that_runs_say_and_no_other():
    used = set()
    assert [words for words in filter(None, said_of_runs()) if not keys_of(words, used)] == []
    assert set(OF_RUNS) == used


@pytest.mark.slow
def test_a_chinese_browser_shows_no_english_sentence_until_the_reader_wants_it():
    with chromium() as browser, opened(browser, FILE, locale="zh-CN") as page:
        for probe in page.evaluate("headlight.about.probes.map(({ name }) => name)"):
            page.select_option("#probe", probe)
            assert english_in(page) == []
        page.select_option("#compare", "steps")
        assert english_in(page) == []
        page.get_by_role("button", name="English").click()
        page.wait_for_selector("html[lang=en][data-ready]")
        assert len(english_in(page)) > 20
        page.reload()  # the language is remembered
        page.wait_for_selector("html[lang=en][data-ready]")
        page.get_by_role("button", name="中文").click()
        page.wait_for_selector("html[lang=zh-CN][data-ready]")
