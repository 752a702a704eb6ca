"""The viewer in a real browser: every control and what it does, and that nothing leaves the page."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from eval.attention.viewer import write_viewer
from eval.experts import ExpertUse, for_viewer
from tests.eval.viewer_helpers import opened, snapshot

pytestmark = pytest.mark.slow  # a browser: in `make test-all`

STEPS = [0, 1, 2, 5, 10, 20]
INDUCTION = ("repeated_2", "induction")  # where a page opens: a text, and the score that is measured on it


@pytest.fixture(scope="module")
def runs():
    big = [snapshot(s, layers=(0, 1, 2), heads=range(8), total=8, kv=2, length=9) for s in (0, 4, 20)]
    return [("mha", [snapshot(step, kv=4) for step in STEPS]), ("gqa", big)]


@pytest.fixture(scope="module")
def file(runs, tmp_path_factory):
    return write_viewer(runs, tmp_path_factory.mktemp("viewer") / "viewer.html")


@pytest.fixture
def page(browser, file):
    """The first run alone: a page of two runs opens on both."""
    with opened(browser, file) as page:
        page.select_option("#compare", "none")
        yield page


def state(page):
    return page.evaluate("JSON.parse(JSON.stringify(headlight.state))")


def saved(page, words):
    page.locator(".save summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=words, exact=True).click()
    return download.value


def choose_head(page, layer, head, view=0):
    page.locator(".pane").nth(view).locator(".thumbnail").nth(layer * (4 if view == 0 else 8) + head).click()


def weights_in(page, run, at, probe, layer, head):
    return np.array(
        page.evaluate(
            f"""() => {{
              const run = headlight.runs[{run}];
              const head = new headlight.Head(run, run.maps({at}, "{probe}"), {layer}, {head},
                                              {{ hideSink: false }});
              return Array.from({{ length: head.length }}, (_, q) =>
                Array.from({{ length: head.length }}, (_, k) => head.weight(q, k)));
            }}"""
        )
    )


def test_every_weight_in_the_page_is_the_snapshots(page, runs):
    for r, (_, snapshots) in enumerate(runs):
        for at, one in enumerate(snapshots):
            for probe, (layer, head) in [("text", (0, 0)), ("repeated_2", (1, 3)), ("packed", (1, 2))]:
                shown, true = weights_in(page, r, at, probe, layer, head), one.maps[probe].weights[layer, head]
                assert (np.abs(shown - true) <= np.sqrt(true) / 255 + 5e-6).all()
                assert (shown[np.triu_indices(len(true), 1)] == 0).all()


def test_the_slider_keys_and_play_choose_the_step(page, runs):
    slider = page.locator(".step").first
    slider.fill("2")
    assert page.locator(".when").first.inner_text() == "step 2 · 2000 tokens · 1 s"
    for key, at in [("ArrowRight", 3), ("ArrowLeft", 2), ("End", 5), ("ArrowRight", 5), ("Home", 0)]:
        page.keyboard.press(key)
        assert state(page)["views"][0]["at"] == at, key
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now()") + 60_000)  # from here on time passes only when we say so
    page.locator(".play").first.click()
    page.clock.run_for(1000)
    assert state(page)["views"][0]["at"] == 2
    page.clock.run_for(5000)
    assert (state(page)["views"][0]["at"], state(page)["playing"]) == (5, None)


def test_a_head_is_chosen_and_a_token_shows_what_it_looks_at_and_who_looks_at_it(page):
    choose_head(page, 1, 0)
    for key, title in [("ArrowRight", "L1 H1"), ("ArrowUp", "L0 H1"), ("ArrowLeft", "L0 H0")]:
        page.keyboard.press(f"Shift+{key}")
        assert page.locator(".map-title").first.inner_text() == title
    tokens, readout = page.locator(".pane").first.locator(".token"), page.locator(".readout").first
    tokens.nth(5).hover()
    assert readout.inner_text() == "w5 (5) looks at w4 (4) 1. Looked at by w6 (6) 1."
    tokens.nth(5).click()
    page.mouse.move(5, 5)
    assert "w5 (5) looks at" in readout.inner_text()  # kept
    page.keyboard.press("]")
    assert "w6 (6) looks at" in readout.inner_text()
    page.keyboard.press("Escape")
    assert "w6" not in readout.inner_text()


def test_two_steps_side_by_side(page):
    choose_head(page, 1, 1)
    page.select_option("#compare", "steps")
    panes = page.locator(".pane")
    assert [panes.nth(i).locator(".when").inner_text().split(" · ")[0] for i in (0, 1)] == ["step 0", "step 20"]
    panes.nth(1).locator(".step").fill("3")
    page.keyboard.press("ArrowRight")  # keys act on the view that was used last
    assert [view["at"] for view in state(page)["views"]] == [0, 4]
    panes.nth(0).locator(".step").fill("5")  # the early step stays on the left: the other one goes along
    assert [view["at"] for view in state(page)["views"]] == [5, 5]
    choose_head(page, 0, 2)
    assert [panes.nth(i).locator(".map-title").inner_text() for i in (0, 1)] == ["L0 H2", "L0 H2"]


def test_a_page_of_two_runs_opens_on_both_though_they_differ_in_shape(browser, file):
    with opened(browser, file) as page:
        panes = page.locator(".pane")
        assert [panes.nth(i).locator(".run-choice option:checked").inner_text() for i in (0, 1)] == ["mha", "gqa"]
        assert [panes.nth(i).locator(".map-title").inner_text()[:5] for i in (0, 1)] == ["L1 H3", "L2 H7"]  # the best
        assert [panes.nth(i).locator(".thumbnail").count() for i in (0, 1)] == [8, 24]
        choose_head(page, 0, 1, view=1)  # another run's heads are others: the first view keeps its own
        assert panes.nth(0).locator(".map-title").inner_text() == "L1 H3"
        panes.nth(0).locator(".step").fill("3")  # step 5; the nearest of the other is 4
        assert panes.nth(1).locator(".when").inner_text().startswith("step 4 ")


def test_scores_with_their_chance_are_those_of_the_text_that_is_shown(page):
    """One head, one truth: induction is measured on repeated tokens, so no other map bears its number."""
    rows, badges = page.locator(".pane").first.locator(".score-table tbody tr"), page.locator(".badge")
    choose_head(page, 0, 1)
    cells = {
        rows.nth(i).locator(".score-name").inner_text(): rows.nth(i).locator("td").all_inner_texts()[:2]
        for i in range(4)
    }
    assert cells["previous token"] == ["0.020", "0.050"]
    assert cells["entropy"] == ["1.1 nats", "1.7"]
    assert cells["copied mention"] == ["undefined", "–"]
    assert (state(page)["probe"], state(page)["score"], badges.nth(7).inner_text()) == (*INDUCTION, "0.20")
    page.get_by_role("button", name="entropy", exact=True).first.click()
    assert state(page)["probe"] == page.locator("#probe").input_value() == "text"  # where entropy is measured
    assert badges.nth(1).inner_text() == "1.1"
    page.select_option("#probe", "packed")  # here nothing is measured
    assert not badges.first.is_visible()


def test_what_is_shown_can_be_kept(page):
    choose_head(page, 0, 0)
    assert Image.open(saved(page, "Picture (PNG)").path()).format == "PNG"
    svg = saved(page, "Map (SVG)").path().read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert "var(" not in svg  # it looks the same without the page
    kept = json.loads(saved(page, "Map and scores (JSON)").path().read_text())
    assert (kept["run"], kept["step"], kept["layer"], kept["head"]) == ("mha", 20, 0, 0)
    assert kept["weights"][5] == [0, 0, 0, 0, 1, 0]


def test_the_address_says_what_is_shown(browser, file):
    with opened(browser, file) as page:
        page.select_option("#compare", "steps")
        page.select_option("#probe", "packed")
        choose_head(page, 1, 1)
        page.keyboard.press("Home")
        page.wait_for_url(re.compile("side=steps"))
        page.wait_for_timeout(400)
        before = state(page)
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert state(page) == before | {"active": 0}


def test_every_key_of_the_help_does_something(page):
    page.keyboard.press("?")
    documented = " ".join(page.locator("#keys dt").all_inner_texts())
    page.keyboard.press("Escape")
    page.locator(".step").first.fill("2")
    for key in "f t c h v d ] ] [ Home End".split():
        look = "JSON.stringify([headlight.state, document.documentElement.dataset.theme])"
        before = page.evaluate(look)
        page.keyboard.press(key)
        assert page.evaluate(look) != before, key
        assert key.upper() in documented.upper()


def test_everything_has_a_name(page):
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input, svg[role], [tabindex='0']")]
             .filter((one) => one.checkVisibility() && !(one.ariaLabel || one.getAttribute("aria-label")
                              || one.textContent.trim() || one.labels?.[0]?.textContent.trim()))
             .map((one) => one.outerHTML)"""
    )
    assert nameless == []


def test_nothing_sticks_out_on_narrow_screens(browser, tmp_path):
    wide = [snapshot(s, range(3), range(8), 8, 2, labels=["averyverylongtoken"] * 24, length=24) for s in (0, 4)]
    file = write_viewer([("eight heads and a long name", wide), ("b", wide)], tmp_path / "v.html")
    with opened(browser, file, viewport={"width": 390, "height": 740}) as page:
        for mode in ("none", "steps", "runs"):
            page.select_option("#compare", mode)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, mode


# ---------------------------------------------------------------------------------------------------------
# experts

SHARES = {0: [[0.5, 0.25, 0.2, 0.05], [0.25] * 4], 10: [[0.4, 0.3, 0.298, 0.002], [0.7, 0.1, 0.1, 0.1]]}


@pytest.fixture
def experts(browser, tmp_path):
    """The tab of experts of a run with two looks at them, beside a run without any."""
    weight = [[0.6, 0.5, 0.4, None], [0.7, 0.6, 0.5, 0.4]]
    looks = [
        ExpertUse(step=s, tokens=1000 * s, layers=[1, 3], share=share, weight=weight) for s, share in SHARES.items()
    ]
    words = [[["the", "<b>fox</b>"], ["a"], [], ["\u202eb"]], [["one"], ["two"], ["three"], ["four"]]]
    looks[1] = looks[1].model_copy(update={"words": words, "loss": {"learned": 2.0, "random": 2.75}})
    runs = [("dense", [snapshot(5)]), ("moe", [snapshot(0), snapshot(10)])]
    with opened(browser, write_viewer(runs, tmp_path / "v.html", experts={"moe": for_viewer(looks)})) as page:
        page.get_by_role("tab", name="experts").click()
        page.wait_for_selector("[data-tab=experts] .badge")
        yield page


def test_every_look_at_experts_is_shown_as_it_was_logged(experts):
    def grid():
        return experts.locator(".badge").filter(visible=True).all_inner_texts()

    assert grid() == ["1.6", "1.2", "1.2", "0.0080", "2.8", "0.40", "0.40", "0.40"]
    words = experts.locator(".caption").first.inner_text()
    assert "L1 E3" in words  # dead
    assert "0.75 nats" in words  # what a random choice costs
    experts.locator(".step").first.fill("0")
    assert grid()[:4] == ["2", "1", "0.80", "0.20"]
    experts.get_by_role("button", name="mean weight").first.click()
    assert grid()[:4] == ["0.60", "0.50", "0.40", "–"]


def test_which_tokens_go_where_and_back_to_the_heads(experts):
    rows = experts.locator(".words").first.locator("li")
    experts.locator(".thumbnail").first.click()
    assert rows.nth(0).locator(".word").all_inner_texts() == ["the", "<b>fox</b>"]
    assert rows.nth(3).locator(".word").all_inner_texts() == ["⟨U+202E⟩b"]
    experts.keyboard.press("Shift+ArrowDown")
    assert rows.nth(0).locator(".word").all_inner_texts() == ["one"]
    experts.select_option("#compare", "steps")
    assert [experts.locator(".when").nth(i).inner_text()[:7] for i in (0, 1)] == ["step 0", "step 10"]
    experts.get_by_role("tab", name="heads").click()
    experts.locator("[data-tab=heads] .token").first.wait_for()
    assert not experts.locator(".words").filter(visible=True).count()
