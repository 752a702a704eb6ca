"""The viewer's tab of experts, in a real browser: it is there for runs that have experts, and shows their log."""

import pytest

from eval.attention.viewer.page import write_viewer
from eval.experts.log import MOST, ExpertUse, for_viewer
from tests.eval.viewer_helpers import chromium, opened, snapshot

SHARES = {0: [[0.5, 0.25, 0.2, 0.05], [0.25] * 4], 10: [[0.4, 0.3, 0.298, 0.002], [0.7, 0.1, 0.1, 0.1]]}


def look(step, share, **more):
    weight = [[0.6, 0.5, 0.4, None], [0.7, 0.6, 0.5, 0.4]]
    return ExpertUse(step=step, tokens=1000 * step, layers=[1, 3], share=share, weight=weight, **more)


@pytest.fixture
def looks():
    words = [[["the", "<b>fox</b>"], ["a"], [], ["\u202eb"]], [["one"], ["two"], ["three"], ["four"]]]
    first, last = (look(step, share) for step, share in SHARES.items())
    return [first, last.model_copy(update={"words": words, "loss": {"learned": 2.0, "random": 2.75}})]


def test_a_long_log_of_many_experts_keeps_its_first_and_last_look():
    many = [ExpertUse(step=s, tokens=0, layers=[0], share=[[1 / 500] * 500], weight=[[None] * 500]) for s in range(100)]
    steps = [one["step"] for one in for_viewer(many)["steps"]]
    assert (steps[0], steps[-1]) == (0, 99)
    assert steps == sorted(set(steps))
    assert len(steps) == MOST // 500 < 100
    assert for_viewer([]) is None


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser, looks, tmp_path):
    runs, experts = [("dense", [snapshot(5)]), ("moe", [snapshot(0), snapshot(10)])], [None, for_viewer(looks)]
    with opened(browser, write_viewer(runs, tmp_path / "v.html", experts=experts)) as page:
        page.click("#tab-experts")
        yield page


def grid(page):
    return page.locator("#experts-grid .expert").all_inner_texts()


@pytest.mark.slow
def test_a_run_without_experts_has_no_tab(browser, tmp_path):
    with opened(browser, write_viewer([("dense", [snapshot(5)])], tmp_path / "v.html", experts=[None])) as page:
        assert not page.locator("#tabs").is_visible()
        assert not page.locator("#experts").is_visible()


@pytest.mark.slow
def test_every_look_is_shown_as_it_was_logged(page):
    first = ["1.60\n0.60", "1.20\n0.50", "1.19\n0.40", "0.008\n–"]
    assert grid(page) == [*first, "2.80\n0.70", "0.40\n0.60", "0.40\n0.50", "0.40\n0.40"]
    assert page.locator("#experts-grid .row-name").all_inner_texts() == ["L1", "L3"]
    assert page.locator("#experts-balance").inner_text() == "Dead, with hardly a token: L1 E3."
    assert "the loss is 0.75 nats a token higher" in page.locator("#experts-worth").inner_text()
    page.locator("#experts-step").fill("0")
    assert page.locator("#experts-when").inner_text() == "step 0"
    assert grid(page)[:4] == ["2.00\n0.60", "1.00\n0.50", "0.80\n0.40", "0.20\n–"]
    assert page.locator(".expert.starved").count() == 1
    words = "The weakest expert, L1 E3, has 0.20 of a fair share. None is dead."
    assert page.locator("#experts-balance").inner_text() == words


@pytest.mark.slow
def test_which_tokens_go_where(page):
    rows = page.locator("#experts-words tbody tr")
    assert rows.nth(0).locator(".word").all_inner_texts() == ["the", "<b>fox</b>"]
    assert rows.nth(3).locator(".word").all_inner_texts() == ["⟨U+202E⟩b"]
    assert page.locator("#experts-words-note").inner_text() == "layer 1"
    page.keyboard.press("Shift+ArrowDown")
    assert rows.nth(0).locator(".word").all_inner_texts() == ["one"]
    page.keyboard.press("ArrowLeft")  # this look noted no tokens: those of the next one that did
    assert page.locator("#experts-words-note").inner_text() == "layer 3, noted at step 10"


@pytest.mark.slow
def test_keys_clicks_and_play(page):
    def where():
        return page.evaluate(
            "[headlight.state.experts.at, headlight.state.experts.layer, headlight.state.experts.expert]"
        )

    assert where() == [1, 0, 0]
    page.locator(".expert").nth(6).click()
    assert where() == [1, 1, 2]
    for key, at in (("Shift+ArrowUp", [1, 0, 2]), ("Shift+ArrowRight", [1, 0, 3]), ("Home", [0, 0, 3])):
        page.keyboard.press(key)
        assert where() == at
    box = page.locator("#experts-share").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 20, box["y"] + 40)
    assert where() == [1, 0, 3]
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now()") + 60_000)
    page.click("#experts-play")
    assert where()[0] == 0  # from the end it starts anew
    page.clock.run_for(1000)
    assert where()[0] == 1
    assert "Play" in page.locator("#experts-play").inner_text()
    page.click("#tab-heads")
    assert page.locator(".thumbnail").first.is_visible()
    assert not page.locator("#experts").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_screen(browser, looks, tmp_path, width):
    file = write_viewer([("moe", [snapshot(0), snapshot(10)])], tmp_path / "v.html", experts=[for_viewer(looks)])
    with opened(browser, file, viewport={"width": width, "height": 800}) as page:
        page.click("#tab-experts")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width > 1000:  # grid, words and both curves on one screen
            box = page.locator("#experts-weight").bounding_box()
            assert box["y"] + box["height"] <= 800
