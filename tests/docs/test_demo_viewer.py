"""docs/demo_viewer.html, which README links: a finished demo, and its model at five steps, in
today's page. Made by

python -m train.pretrain configs/demo.yaml train.checkpoint_every=100 train.keep_last=18
python -m eval.attention runs/demo --compute 300,500,600,900,1800

with the looks of pretrained/demo, whose last checkpoint this run gives again, bit by bit, on the
same kind of CPU.
"""

import base64
import json
import re
import zlib
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch

from eval.attention import capture
from eval.attention.inside import direct_logit_attribution
from eval.page import viewer
from tests.eval.page.test_page_model import TEXTS, agrees, unpacked
from tests.eval.page.viewer_helpers import chromium, opened

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
    """Return the run's facts in the file, then its maps and weights."""
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
        # the name that the first text breaks off in
        assert page.locator(".next td").first.inner_text() == "na"
        page.locator(".own-off").first.click()
        page.locator(".own-all").first.wait_for()
        # without the head it is lost
        assert float(page.locator(".next .number").first.inner_text().split()[-1].rstrip("%")) < 50
        agrees(page, last, 1800, begin, [(1, 2)])
        page.locator(".step").first.fill("0")
        assert page.locator(".when").first.inner_text().startswith("step 300 ")
        page.select_option("#probe", "repeated_2")  # of which the file has every look
        assert len(page.evaluate("headlight.runs[0].shown")) == 25


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


def likeliest(page):
    return page.locator(".next td").first.inner_text()


def test_the_step_from_which_a_text_goes_on_so_is_its_own_and_keeps_the_text(browser):
    with opened(browser, FILE) as page:
        text = page.input_value("#words")
        page.get_by_role("button", name="“na” comes next from step 500 on").click()
        assert (page.input_value("#words"), likeliest(page)) == (text, "na")
        assert page.locator(".when").first.inner_text().startswith("step 500 ")
        page.locator(".step").first.fill("0")
        assert likeliest(page) != "na"
        page.select_option("#probe", "repeated_2")
        assert page.get_by_role("button", name="On random words, L1 H2 forms at step 1000").is_visible()
        assert "Measured on random words: Around step 1,000" in page.locator(".findings").inner_text()


def test_the_sentence_on_what_a_head_does_here_and_its_mark_change_with_the_step(browser):
    with opened(browser, FILE) as page:
        caption = page.locator(".caption").first
        assert caption.inner_text().startswith("From “␣Bel”, L1 H2 looks most at “na” (")
        assert "what came after the same word last time" in caption.inner_text()
        looks = page.evaluate("""headlight.runs[0].shown.map((place, at) => {
            const { steps, own } = headlight.runs[0], run = headlight.runs[0];
            const maps = own.look(steps[place].step, headlight.state.words, []);
            const head = new headlight.Head(run, maps, 1, 2, { hideSink: false });
            const row = Array.from({ length: 13 }, (_, k) => head.weight(12, k));
            return head.text.labels[row.indexOf(Math.max(...row))]; })""")
        assert set(looks) == {"na"}
        mark = page.get_by_role("button", name="L1 H2 looks most at “na” already at step 300")
        mark.click()
        assert page.locator(".when").first.inner_text().startswith("step 300 ")
        marks = page.locator(".pane").first.locator(".mark")
        assert marks.count() == 3 + page.evaluate("headlight.runs[0].moments.length")
        assert page.is_visible("#of-name")
        page.fill("#words", "Once there was")
        assert not page.is_visible("#of-name")  # it is about the first example
        assert "what came after" not in caption.locator("b").inner_text()
        assert page.get_by_role("button", name="On random words, L1 H2 forms at step 1000").is_visible()


def test_a_number_of_the_map_is_taken_apart_and_each_head_has_its_push_on_the_logit(browser):
    about, rest = lines()
    network = about["runs"][0]["network"]
    lm = unpacked(network, rest[network["lines"]["1800"] - 1])
    with opened(browser, FILE) as page:
        ids = torch.tensor([page.evaluate("headlight.runs[0].own.tokenizer.encode(headlight.state.words)")])
        token = network["tokens"].index("na")
        expected = direct_logit_attribution(lm, ids, token).heads[:, :, 0, -1]
        pushes = page.evaluate(f"headlight.runs[0].own.pushes(1800, headlight.state.words, [], null, {token})")
        assert torch.allclose(torch.tensor(pushes), expected, atol=1e-3)
        shown = [float(text.replace("−", "-")) for text in page.locator(".badge").all_inner_texts()[:12]]
        assert np.allclose(shown, expected.flatten(), atol=0.006)
        # another token that may come next is chosen
        page.locator(".next .token-name").nth(1).click()
        assert page.locator(".badge").nth(8).inner_text() != f"+{shown[8]:.2f}"
        # q·k/√d of two places differ as the logarithms of their weights do
        cell = """(k) => { const { runs: [run], state } = headlight;
            return headlight.cellOf(run.maps(4, "own"), run, state.views[0], 12, k); }"""
        one, other = (page.evaluate(cell, k) for k in (5, 3))
        ratio = np.log(one["weights"][5] / other["weights"][3])
        assert one["scaled"] - other["scaled"] == pytest.approx(ratio, abs=1e-3)
        assert one["score"] == pytest.approx(np.dot(one["query"], one["key"]), rel=1e-5)
        map_box = page.locator(".around").first.bounding_box()
        layout = page.evaluate("(({ left, top, cell }) => [left, top, cell])(headlight.panes[0].map.layout)")
        left, top, size = layout
        page.mouse.click(map_box["x"] + left + 2.5 * size, map_box["y"] + top + 4.5 * size)
        assert page.locator(".cell h2").first.inner_text() == "How “␣Bel” comes to look at “␣fox”"
        page.mouse.move(5, 5)
        weight = page.evaluate("headlight.panes[0].map.head.weight(4, 2)")
        assert f"{weight:.3f}" in page.locator(".cell").first.inner_text()  # it was clicked, and stays


def test_x_switches_the_head_off_and_a_screen_reader_hears_what_comes_next_now(browser):
    with opened(browser, FILE) as page:
        page.locator(".thumbnail[aria-pressed=true]").first.focus()
        page.keyboard.press("x")
        assert page.evaluate("headlight.state.off") == ["1.2"]
        assert "switched off" in page.locator(".thumbnail[aria-pressed=true]").first.get_attribute("aria-label")
        assert page.locator(".map-title").first.inner_text() == "L1 H2 (off)"
        assert page.locator(".picture.off").count() == 1
        page.locator("#news").get_by_text("before 97").wait_for(state="attached")
        page.keyboard.press("x")
        assert page.evaluate("headlight.state.off") == []


def test_a_token_that_may_come_next_is_written_at_a_click(browser):
    with opened(browser, FILE) as page:
        text = page.input_value("#words")
        page.get_by_role("button", name="Write na").click()
        assert page.input_value("#words") == f"{text}na"


def test_what_is_drawn_is_among_the_top_k_and_top_p(browser):
    draw = """(how) => Array.from({ length: 300 },
        () => headlight.drawToken(new Float32Array([0.1, 0.4, 0.3, 0.2]), how))"""
    with opened(browser, FILE) as page:
        for how, allowed in (
            ({"temperature": 1, "top_k": 0, "top_p": 1}, {0, 1, 2, 3}),
            ({"temperature": 1, "top_k": 2, "top_p": 1}, {1, 2}),
            ({"temperature": 1, "top_k": 0, "top_p": 0.5}, {1, 2}),
            ({"temperature": 1, "top_k": 3, "top_p": 0.3}, {1}),
            ({"temperature": 0, "top_k": 0, "top_p": 1}, {1}),
        ):
            assert set(page.evaluate(draw, how)) == allowed, how
        assert not page.is_visible("#top_k")  # at temperature 0 it does nothing
        page.select_option("#temperature", "1")
        assert page.is_visible("#top_k")


def test_the_tour_has_five_stops_and_comes_on_the_first_visit_only(browser):
    with opened(browser, FILE) as page:
        tour = page.locator("#tour")
        for stop in range(1, 6):
            assert (f"{stop} of 5" if stop < 5 else "Done") in tour.inner_text()
            assert page.locator(".toured").count() == 1
            page.keyboard.press("Enter")
        assert tour.count() == 0
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert tour.count() == 0
        page.get_by_role("button", name="Tour").click()
        assert "1 of 5" in tour.inner_text()
        page.keyboard.press("Escape")
        assert tour.count() == 0


def test_on_a_phone_the_switch_and_what_comes_next_are_seen_together(browser):
    with opened(browser, FILE, viewport={"width": 390, "height": 844}) as page:
        page.keyboard.press("Escape")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator(".thumbnail").nth(9).click()  # it scrolls nothing away
        page.locator(".own-off").first.scroll_into_view_if_needed()
        for part in (page.locator(".own-off").first, page.locator(".next tr").first, page.locator(".thumbnail").nth(9)):
            box = part.bounding_box()
            assert 0 <= box["y"] < box["y"] + box["height"] <= 844


def test_a_long_text_is_read_to_its_end_and_its_last_tokens_are_shown(browser):
    about, rest = lines()
    network = about["runs"][0]["network"]
    lm = unpacked(network, rest[network["lines"]["1800"] - 1])
    text = "A fox named Tomba met a bird.\n\n" + "The bird had a red kite. " * 12 + "Then Tom"
    with opened(browser, FILE) as page:
        page.fill("#words", text)
        assert likeliest(page) == "ba"
        ids = page.evaluate("(words) => headlight.runs[0].own.tokenizer.encode(words)", text)
        look = "headlight.runs[0].own.look(1800, headlight.state.words, [])"
        codes, labels = page.evaluate(f"[Array.from({look}.codes), {look}.text.labels]")
        note = page.locator(".text-note").first.inner_text()
        page.locator(".pane").first.locator(".token").last.hover()
        readout = page.locator(".readout").first.inner_text()
        page.fill("#words", "Bel\n\nThen")
        assert "⏎" in "".join(page.locator(".pane").first.locator(".token").all_inner_texts())
    assert (len(labels), labels[-1]) == (64, "␣Tom")
    assert f"tokens 0 to {len(ids) - 65} of {len(ids)}" in note
    assert f"␣Tom ({len(ids) - 1}) looks at" in readout
    maps = capture(lm, torch.tensor([ids])).weights[:, 0, :, -64:, -64:]
    here = np.array(codes).reshape(2, 6, -1) / 255
    assert np.allclose(here**2, maps[..., *np.tril_indices(64)], atol=1e-4)


def test_heads_that_are_off_are_in_the_address(browser):
    with opened(browser, FILE) as page:
        page.locator(".own-off").first.click()
        share = page.locator(".next .number").first.inner_text()
        page.wait_for_url(re.compile("off=1.2"))
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert page.evaluate("headlight.state.off") == ["1.2"]
        assert page.locator(".next .number").first.inner_text() == share


def test_the_saved_picture_of_ones_own_text_has_what_comes_next(browser):
    keep = """Object.defineProperty(HTMLImageElement.prototype, "src", {
        set(data) { window.picture = data; this.setAttribute("src", data); } });"""
    with opened(browser, FILE) as page:
        page.evaluate(keep)
        page.keyboard.press("s")
        picture = unquote(page.evaluate("window.picture"))
        words = [text for text in re.findall(">([^<]+)<", picture) if text.strip()]
        asked = words.index(page.locator(".next-title").first.inner_text())
        assert words[asked + 1 : asked + 3] == page.locator(".next tr").first.locator("td").all_inner_texts()[:2]
        assert len(re.findall("background: url\\(", picture)) == 13  # twelve heads, and the large map


def test_damaged_data_are_named(browser, tmp_path):
    damaged = tmp_path / "damaged.html"
    text = FILE.read_text(encoding="utf-8")
    middle = text.index('id="data">') + 5000
    damaged.write_text(text[:middle] + "A" * 400 + text[middle + 400 :], encoding="utf-8")
    with closing(browser.new_context(offline=True)) as context:
        page = context.new_page()
        page.goto(damaged.as_uri())
        page.locator("#problem", has_text="its data are damaged. Download the file again.").wait_for()


def test_half_a_file_says_so(browser, tmp_path):
    half = tmp_path / "half.html"
    half.write_bytes(FILE.read_bytes()[:1_000_000])
    with opened(browser, half, wait="main p") as page:
        assert "the file is incomplete" in page.locator("main").inner_text()
