"""The viewer in a real browser: every control and what it does, and that nothing leaves the page."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from eval.attention.snapshots import ProbeMap
from eval.attention.viewer import write_viewer
from eval.experts.log import MOST, ExpertUse, for_viewer
from tests.eval.viewer_helpers import causal, chromium, opened, snapshot

pytestmark = pytest.mark.slow  # a browser: in `make test-all`

STEPS = [0, 1, 2, 5, 10, 20]
BLACK, PALE = [0, 0, 4], [252, 253, 191]  # weight 1, weight 0, in the light


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


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


def pixel(page, q, k, canvas=".picture"):
    """The colour of an entry: a canvas has one pixel for each."""
    read = f"(canvas) => [...canvas.getContext('2d').getImageData({k}, {q}, 1, 1).data].slice(0, 3)"
    return page.locator(canvas).first.evaluate(read)


def entry(page, q, k, view=0):
    """Where an entry of the large map lies in the window."""
    place = page.evaluate(f"headlight.panes[{view}].map.place")
    page.locator(".around").nth(view).scroll_into_view_if_needed()
    box = page.locator(".around").nth(view).bounding_box()
    return [box["x"] + place["left"] + (k + 0.5) * place["cell"], box["y"] + place["top"] + (q + 0.5) * place["cell"]]


def saved(page, words):
    page.locator(".save summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=words, exact=True).click()
    return download.value


def choose_head(page, layer, head, view=0):
    page.locator(".pane").nth(view).locator(".thumbnail").nth(layer * (4 if view == 0 else 8) + head).click()


def weights_in(page, run, at, probe, layer, head, hide="false"):
    return np.array(
        page.evaluate(
            f"""() => {{
              const run = headlight.runs[{run}];
              const head = new headlight.Head(run, run.maps({at}, "{probe}"), {layer}, {head},
                                              {{ hideSink: {hide}, rowMax: false }});
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


def test_the_slider_and_its_keys_choose_the_step(page, runs):
    slider = page.locator(".step").first
    assert page.locator(".when").first.inner_text() == "step 20 · 20.0 k tokens · 10 s"
    slider.fill("2")
    assert state(page)["views"][0]["at"] == 2
    assert page.locator(".when").first.inner_text().startswith("step 2 ·")
    assert slider.get_attribute("aria-valuetext") == "step 2"
    assert not page.locator(".scalars").first.is_visible()
    page.locator(".all-numbers summary").first.click()
    assert page.locator(".scalars").first.inner_text().split("\n") == ["copy gain", "0.20"]  # group_gap is undefined
    for key, at in [("ArrowRight", 3), ("ArrowLeft", 2), ("End", 5), ("ArrowRight", 5), ("Home", 0)]:
        page.keyboard.press(key)
        assert state(page)["views"][0]["at"] == at, key


def test_play_walks_to_the_end_and_stops(page):
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now()") + 60_000)  # from here on time passes only when we say so
    page.locator(".play").first.click()
    assert state(page)["views"][0]["at"] == 0  # from the end it starts anew
    assert page.locator(".play").first.get_attribute("aria-label") == "Pause"
    page.clock.run_for(1000)
    assert state(page)["views"][0]["at"] == 2
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press(" ")
    assert state(page)["playing"] is None
    page.clock.run_for(3000)
    assert state(page)["views"][0]["at"] == 2  # it is paused
    page.keyboard.press(" ")
    page.clock.run_for(5000)
    assert (state(page)["views"][0]["at"], state(page)["playing"]) == (5, None)
    assert page.locator(".play").first.get_attribute("aria-label") == "Play"


def test_a_click_enlarges_a_head(page):
    choose_head(page, 1, 2)
    assert page.locator(".map-title").first.inner_text() == "L1 H2"
    assert page.locator(".score-head").first.inner_text() == "L1 H2"
    assert page.locator('.thumbnail[aria-pressed="true"]').first.get_attribute("aria-label") == "L1 H2: induction 0.17"
    for key, title in [("ArrowLeft", "L1 H1"), ("ArrowUp", "L0 H1"), ("ArrowRight", "L0 H2"), ("ArrowDown", "L1 H2")]:
        page.keyboard.press(f"Shift+{key}")
        assert page.locator(".map-title").first.inner_text() == title
    narrow = page.locator(".around").first.bounding_box()["width"]
    page.click("#wide")
    assert page.locator(".around").first.bounding_box()["width"] > 1.4 * narrow
    assert not page.locator(".heads").first.is_visible()
    page.keyboard.press("f")
    assert page.locator(".heads").first.is_visible()


def test_hovering_a_token_shows_what_it_looks_at_and_who_looks_at_it(page, runs):
    choose_head(page, 0, 0)
    tokens = page.locator(".pane").first.locator(".token")
    tokens.nth(5).hover()
    backs = [tokens.nth(i).evaluate("(token) => token.style.backgroundColor") for i in range(12)]
    shares = [float(re.search(r"\) (\d+)%", back)[1]) for back in backs]
    assert [i for i, share in enumerate(shares) if share > 0] == [4, 6]
    assert "--looks" in backs[4]
    assert "--seen" in backs[6]
    words = page.locator(".readout").first.inner_text()
    assert words == "w5 (5) looks at w4 (4) 1.00. Looked at by w6 (6) 1.00."
    assert page.locator(".cross").first.locator("rect.looks").count() == 1  # the cross-hair
    tokens.nth(5).click()
    page.mouse.move(5, 5)
    assert "w5 (5) looks at" in page.locator(".readout").first.inner_text()  # kept
    page.keyboard.press("]")
    assert "w6 (6) looks at" in page.locator(".readout").first.inner_text()
    page.locator(".tokens").first.focus()
    page.keyboard.press("ArrowUp")
    active = page.locator(".tokens").first.get_attribute("aria-activedescendant")
    assert page.locator(f"#{active}").inner_text() == "w5"
    page.keyboard.press("Escape")
    assert "Point at a token" in page.locator(".readout").first.inner_text()
    assert page.locator(".cross").first.locator("rect").count() == 0


def test_hovering_the_map_shows_the_value(page, runs):
    choose_head(page, 1, 3)
    true = runs[0][1][-1].maps["repeated_2"].weights[1, 3]
    for q, k in [(7, 3), (11, 0), (4, 4)]:
        page.mouse.move(*entry(page, q, k))
        words = page.locator(".tip").first.inner_text()
        found = re.fullmatch(rf"w{q} \({q}\) looks at w{k} \({k}\): (\S+)", words)
        assert float(found[1]) == pytest.approx(true[q, k], abs=0.006)
    page.mouse.move(*entry(page, 3, 9))  # above the diagonal there is nothing
    assert not page.locator(".tip").first.is_visible()
    page.mouse.click(*entry(page, 6, 2))
    assert state(page)["pinned"]
    assert state(page)["key"] == 2


def test_two_steps_side_by_side(page):
    choose_head(page, 1, 1)
    page.select_option("#compare", "steps")
    panes = page.locator(".pane")
    assert panes.nth(1).is_visible()
    assert [panes.nth(i).locator(".when").inner_text().split(" · ")[0] for i in (0, 1)] == ["step 0", "step 20"]
    panes.nth(1).locator(".step").fill("3")
    assert [view["at"] for view in state(page)["views"]] == [0, 3]
    page.keyboard.press("ArrowRight")  # keys act on the view that was used last
    assert [view["at"] for view in state(page)["views"]] == [0, 4]
    panes.nth(0).locator(".step").fill("5")  # the early step stays on the left: the other one goes along
    assert [view["at"] for view in state(page)["views"]] == [5, 5]
    panes.nth(1).locator(".step").fill("2")
    assert [view["at"] for view in state(page)["views"]] == [2, 2]
    choose_head(page, 0, 2)
    assert [panes.nth(i).locator(".map-title").inner_text() for i in (0, 1)] == ["L0 H2", "L0 H2"]
    panes.nth(0).locator(".token").nth(6).hover()  # the same text: both show it
    assert [panes.nth(i).locator(".token[aria-selected=true]").inner_text() for i in (0, 1)] == ["w6", "w6"]
    page.select_option("#compare", "none")
    assert not panes.nth(1).is_visible()
    for at, both in (("3", [3, 5]), ("0", [0, 5]), ("5", [0, 5])):  # it stays, beside a later or earlier one
        page.locator(".step").first.fill(at)
        page.keyboard.press("v")
        assert [view["at"] for view in state(page)["views"]] == both
        page.select_option("#compare", "none")


def test_a_page_of_two_runs_opens_on_both(browser, file, tmp_path):
    with opened(browser, file) as page:
        assert page.locator("#compare").input_value() == "runs"
        panes = page.locator(".pane")
        assert [panes.nth(i).locator(".run-choice option:checked").inner_text() for i in (0, 1)] == ["mha", "gqa"]
        assert [panes.nth(i).locator(".map-title").inner_text()[:5] for i in (0, 1)] == [
            "L1 H3",
            "L2 H7",
        ]  # each its best
        panes.nth(1).locator(".step").focus()
        page.select_option("#compare", "none")  # what was used last stays
        assert panes.first.locator(".run-choice option:checked").inner_text() == "gqa"
    ends = [(name, [snapshot(20, kv=kv)]) for name, kv in (("mha", 4), ("mqa", 1))]  # as eval.compare writes it
    with opened(browser, write_viewer(ends, tmp_path / "v.html")) as page:
        assert [page.locator(".pane").nth(i).is_visible() for i in (0, 1)] == [True, True]
        assert not page.locator(".play, .step, #linked").filter(visible=True).count()  # there is nothing to play


def test_two_runs_side_by_side_though_they_differ_in_shape(page, runs):
    page.select_option("#compare", "runs")
    panes = page.locator(".pane")
    assert [panes.nth(i).locator(".thumbnail").count() for i in (0, 1)] == [8, 24]
    assert [panes.nth(i).locator(".token").count() for i in (0, 1)] == [12, 9]
    choose_head(page, 0, 1, view=1)  # another run's heads are others: the first view keeps its own
    assert panes.nth(0).locator(".map-title").inner_text() == "L1 H3"
    panes.nth(0).locator(".step").fill("3")  # step 5; the nearest of the other is 4
    assert panes.nth(1).locator(".when").inner_text().startswith("step 4 ")
    page.uncheck("#linked")
    panes.nth(0).locator(".step").fill("5")
    assert panes.nth(1).locator(".when").inner_text().startswith("step 4 ")
    panes.nth(0).locator(".run-choice").select_option("gqa")
    assert panes.nth(0).locator(".thumbnail").count() == 24
    shown, true = weights_in(page, 1, 1, "text", 2, 7), runs[1][1][1].maps["text"].weights[2, 7]
    assert np.abs(shown - true).max() < 0.004


def test_hiding_the_first_token_of_each_document(page, runs):
    page.select_option("#probe", "packed")
    choose_head(page, 1, 2)
    page.check("#hide-sink")
    shown = weights_in(page, 0, 5, "packed", 1, 2, hide="true")
    expected = runs[0][1][-1].maps["packed"].weights[1, 2].copy()
    starts = [0] * 5 + [5] * 7
    expected[np.arange(12), starts] = 0
    with np.errstate(invalid="ignore"):
        expected = np.nan_to_num(expected / expected.sum(-1, keepdims=True))
    assert np.abs(shown - expected).max() < 0.012
    assert (shown[[0]] == 0).all()  # nothing is left of the first row
    assert pixel(page, 3, 0) == PALE
    assert page.locator(".document").all_inner_texts()[:2] == ["document 0", "document 1"]


def test_scores_with_their_chance(page):
    rows = page.locator(".pane").first.locator(".score-table tbody tr")
    choose_head(page, 0, 1)
    cells = {
        rows.nth(i).locator(".score-name").inner_text(): rows.nth(i).locator("td").all_inner_texts()[:2]
        for i in range(4)
    }
    assert cells["previous token"] == ["0.020", "0.050"]
    assert cells["entropy"] == ["1.10 nats", "1.70"]
    assert cells["copied mention"] == ["undefined", "–"]
    assert "Attention to the token just before." in rows.first.inner_text()
    before = page.locator(".curve").first.inner_html()
    page.get_by_role("button", name="entropy", exact=True).first.click()
    assert state(page)["probe"] == page.locator("#probe").input_value() == "text"  # where entropy is measured
    assert page.locator(".score-title").first.inner_text() == "entropy: every head"
    assert page.locator(".score-map .cell").nth(1).inner_text() == "1.10"
    assert "chance 1.70" in page.locator(".legend").first.inner_text()
    assert page.locator(".curve").first.inner_html() != before
    assert page.locator(".badge").nth(1).inner_text() == "1.10"
    page.locator(".score-map .cell").nth(6).click()
    assert page.locator(".map-title").first.inner_text() == "L1 H2"
    page.get_by_role("button", name="induction", exact=True).first.click()
    assert state(page)["probe"] == "repeated_2"


def test_the_number_in_a_square_is_a_score_of_the_text_that_is_shown(page):
    """One head, one truth: induction is measured on repeated tokens, so no other map bears its number."""
    badges = page.locator(".pane").first.locator(".badge")
    assert (state(page)["probe"], state(page)["score"]) == ("repeated_2", "induction")
    assert badges.nth(7).inner_text() == "0.200"
    page.select_option("#probe", "text")
    assert state(page)["score"] == "previous_token"
    assert badges.nth(7).inner_text() == "0.080"
    page.select_option("#probe", "packed")  # here nothing is measured
    assert badges.all_inner_texts() == [""] * 8
    assert "This text has no score for previous token" in page.locator(".grid-note").first.inner_text()


def test_the_page_opens_on_the_head_that_was_asked_for(browser, tmp_path):
    """`eval.attention --head 2,0` drew L2 H0, and its page opened on another head. Its numbers are true ones."""
    one = snapshot(4, layers=(1, 2), heads=(0, 3))
    with opened(browser, write_viewer([("run", [one])], tmp_path / "v.html", head=(2, 0))) as page:
        assert page.locator(".map-title").first.inner_text() == "L2 H0 · reads key/value head 0"


def test_switches_of_colour(page):
    choose_head(page, 0, 0)  # all attention on the token before
    for canvas in (".picture", ".thumbnail canvas"):
        assert [pixel(page, 5, 4, canvas), pixel(page, 5, 5, canvas), pixel(page, 5, 3, canvas)] == [BLACK, PALE, PALE]
    choose_head(page, 1, 2)
    rows = weights_in(page, 0, 5, "repeated_2", 1, 2)
    q, k = np.argwhere((rows > 0.05) & (rows < 0.2))[0].tolist()
    seen = []
    for scale in ("linear", "power", "log"):  # of a weight like this, each makes more than the one before
        page.select_option("#scale", scale)
        seen.append(sum(pixel(page, q, k)))
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 3
    true = page.evaluate("headlight.panes[0].map.head.weight(9, 4)")
    page.check("#row-max")
    assert all(pixel(page, q, int(rows[q].argmax())) == BLACK for q in range(12))  # each row's largest
    assert page.evaluate("headlight.panes[0].map.head.weight(9, 4)") == true  # the value stays what it is


def test_thumbnails_of_long_texts_keep_thin_diagonals(browser, tmp_path):
    long = snapshot(0, length=200, maps={"text": ProbeMap(causal(2, 4, 200, 0), [f"t{i}" for i in range(200)])})
    with opened(browser, write_viewer([("long", [long])], tmp_path / "v.html")) as page:
        size = page.locator(".thumbnail canvas").first.evaluate("(canvas) => canvas.width")
        assert size < 200
        for row in range(0, size, 7):
            assert BLACK in [pixel(page, row, k, ".thumbnail canvas") for k in range(max(0, row - 2), row + 1)]


def test_the_curve_follows_the_step_and_leads_to_one(page):
    note = page.locator(".curve-note").first
    assert note.inner_text().startswith("Thick: L1 H3 at step 20: 0.20.")
    curve = page.locator(".curve").first
    curve.scroll_into_view_if_needed()
    box = curve.bounding_box()
    page.mouse.click(box["x"] + 54 + (box["width"] - 76) / 2, box["y"] + 60)
    assert page.locator(".when").first.inner_text().startswith("step 10 ")
    assert note.inner_text().startswith("Thick: L1 H3 at step 10: 0.10.")


def test_light_and_dark(page):
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")  # it follows the system …
    page.wait_for_selector('html[data-theme="dark"]')
    choose_head(page, 0, 0)
    assert pixel(page, 5, 4) == PALE  # all attention is bright in the dark
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    page.emulate_media(color_scheme="dark")  # … until somebody chooses
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    assert pixel(page, 5, 4) == BLACK


def test_what_is_shown_can_be_kept(page):
    choose_head(page, 0, 0)
    picture = Image.open(saved(page, "Picture (PNG)").path())
    assert picture.format == "PNG"
    assert picture.convert("RGB").getcolors(100) is None  # more than 100 colours
    with page.expect_download() as download:
        page.keyboard.press("s")
    assert download.value.suggested_filename == "mha step 20.png"
    svg = saved(page, "Map (SVG)").path().read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert "var(" not in svg  # it looks the same without the page
    kept = json.loads(saved(page, "Map and scores (JSON)").path().read_text())
    assert (kept["run"], kept["step"], kept["layer"], kept["head"]) == ("mha", 20, 0, 0)
    assert kept["weights"][5] == [0, 0, 0, 0, 1, 0]
    rows = saved(page, "Map (CSV)").path().read_text().splitlines()
    assert len(rows) == 1 + 12 * 13 // 2


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
    assert page.locator("#help").is_visible()
    documented = page.locator("#keys dt").all_inner_texts()
    page.keyboard.press("Home")  # while the help is open, keys are its own
    assert state(page)["views"][0]["at"] == 5
    page.keyboard.press("Escape")
    page.click("#help-button")
    page.get_by_role("button", name="Close").click()
    for key in "f t c m h g v d ] ] [ Home End".split():
        look = "JSON.stringify([headlight.state, document.documentElement.dataset.theme])"
        before = page.evaluate(look)
        page.keyboard.press(key)
        assert page.evaluate(look) != before, key
    tested = {"← →", "Home End", "Space", "Shift + ← →", "Shift + ↑ ↓", "[ ]", "Escape", "Tab", "S", "?"}
    assert set(documented) == tested | set("FTCMHGVD")


def test_everything_can_be_reached_and_has_a_name(page):
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input, svg[role], [tabindex='0']")]
             .filter((one) => one.checkVisibility() && !(one.ariaLabel || one.getAttribute("aria-label")
                              || one.textContent.trim() || one.labels?.[0]?.textContent.trim()))
             .map((one) => one.outerHTML)"""
    )
    assert nameless == []
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        focus = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert focus != "none" or reached[-1] == "", f"{reached[-1]} does not show its focus"
    wanted = "wide theme help-button probe compare scale row-max hide-sink run-choice play step thumbnail tokens"
    assert set(wanted.split()) | {"score-name", "cell"} <= set(reached)


@pytest.mark.parametrize("width", [390, 768])
def test_nothing_sticks_out_on_narrow_screens(browser, tmp_path, width):
    wide = [snapshot(s, range(3), range(8), 8, 2, labels=["averyverylongtoken"] * 24, length=24) for s in (0, 4)]
    file = write_viewer([("eight heads and a long name", wide), ("b", wide)], tmp_path / "v.html")
    with opened(browser, file, viewport={"width": width, "height": 740}) as page:
        for mode in ("none", "steps", "runs"):
            page.select_option("#compare", mode)
            page.locator(".pane").first.locator(".token").nth(20).hover()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, mode
        page.keyboard.press("?")
        box = page.locator("#help").bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= width


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
    with opened(browser, write_viewer(runs, tmp_path / "v.html", experts=[None, for_viewer(looks)])) as page:
        page.click("#tab-experts")
        yield page


def test_a_long_log_of_many_experts_keeps_its_first_and_last_look():
    many = [ExpertUse(step=s, tokens=0, layers=[0], share=[[1 / 500] * 500], weight=[[None] * 500]) for s in range(100)]
    steps = [one["step"] for one in for_viewer(many)["steps"]]
    assert (steps[0], steps[-1]) == (0, 99)
    assert len(steps) == MOST // 500 < 100
    assert for_viewer([]) is None


def test_a_run_without_experts_has_no_tab(page):
    assert not page.locator("#tabs").is_visible()


def test_every_look_at_experts_is_shown_as_it_was_logged(experts):
    def grid():
        return experts.locator(".cell").filter(visible=True).all_inner_texts()

    assert grid() == ["1.60", "1.20", "1.19", "0.01", "2.80", "0.40", "0.40", "0.40"]
    assert experts.locator(".cell").nth(3).get_attribute("aria-label") == "L1 E3: 0.008, dead"
    words = experts.locator(".caption").first.inner_text()
    assert words.startswith("Dead, with hardly a token: L1 E3.")
    assert "the loss is 0.75 nats a token higher" in words
    experts.locator(".step").first.fill("0")
    assert experts.locator(".when").first.inner_text() == "step 0"
    assert grid()[:4] == ["2.00", "1.00", "0.80", "0.20"]
    assert experts.locator(".starved").filter(visible=True).count() == 1
    assert "L1 E3, has 0.20 of a fair share. None is dead." in experts.locator(".caption").first.inner_text()
    experts.get_by_role("button", name="mean weight").first.click()
    assert grid()[:4] == ["0.60", "0.50", "0.40", "–"]


def test_which_tokens_go_where(experts):
    rows = experts.locator(".words").first.locator("tbody tr")
    experts.locator(".cell").first.click()
    assert rows.nth(0).locator(".word").all_inner_texts() == ["the", "<b>fox</b>"]
    assert rows.nth(3).locator(".word").all_inner_texts() == ["⟨U+202E⟩b"]
    experts.keyboard.press("Shift+ArrowDown")
    assert rows.nth(0).locator(".word").all_inner_texts() == ["one"]
    experts.keyboard.press("ArrowLeft")  # this look noted no tokens: those of the next one that did
    assert experts.locator(".words-note").first.inner_text() == "layer 3, noted at step 10"


def test_steps_of_experts_side_by_side_the_address_and_back_to_the_heads(experts):
    experts.select_option("#compare", "steps")
    assert [experts.locator(".when").nth(i).inner_text()[:7] for i in (0, 1)] == ["step 0", "step 10"]
    experts.wait_for_url(re.compile("tab=experts.*side=steps"))
    experts.reload()
    experts.wait_for_selector("html[data-ready]")
    assert experts.locator(".pane").nth(1).is_visible()
    experts.click("#tab-heads")
    assert experts.locator(".thumbnail").first.is_visible()
    assert not experts.locator(".words").filter(visible=True).count()
