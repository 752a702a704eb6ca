"""The viewer in a real browser: every control, the file that opens anywhere, what it is while a run
trains.
"""

import re
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from configs.command import InputError
from eval.attention.snapshots import ProbeMap
from eval.page import viewer
from eval.page.viewer import Looks, Notebook, quantise, write_page, write_viewer
from tests.eval.page.viewer_helpers import causal, opened, snapshot

pytestmark = pytest.mark.slow  # a browser: in `make test-all`

STEPS = [0, 1, 2, 5, 10, 20]
HOSTILE = [
    *("</script><script>window.pwned=1</script>", "<img src=x onerror=window.pwned=1>", "\"quotes'", "@@END@@"),
    *("\ud83d", "\x00\u200b\u202e", "狐狸", "", "␣averyveryverylongtokenindeed" * 4, "-->", "&amp;", "x"),
]
TRAINING = {"step": 40, "total": 80, "seconds": 5.0, "loss": 4.0, "state": "training", "stopped": "", "command": ""}
# where a page opens: a text, and the score that is measured on it
INDUCTION = ("repeated_2", "induction")


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


def choose_head(page, layer, head, view=0):
    page.locator(".pane").nth(view).locator(".thumbnail").nth(layer * (4 if view == 0 else 8) + head).click()


def test_every_weight_in_the_page_is_the_snapshots(page, runs):
    script = """([run, at, probe, layer, at_head]) => {
      const one = headlight.runs[run];
      const head = new headlight.Head(one, one.maps(at, probe), layer, at_head, { hideSink: false });
      const places = Array.from({ length: head.length }, (_, place) => place);
      return places.map((q) => places.map((k) => head.weight(q, k)));
    }"""
    for r, (_, snapshots) in enumerate(runs):
        for at, one in enumerate(snapshots):
            for probe, layer, head in [("text", 0, 0), ("repeated_2", 1, 3), ("packed", 1, 2)]:
                shown = np.array(page.evaluate(script, [r, at, probe, layer, head]))
                true = one.maps[probe].weights[layer, head]
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
    # from here on time passes only when we say so
    page.clock.pause_at(page.evaluate("Date.now()") + 60_000)
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
    tokens = page.locator(".pane").first.locator(".token")
    readout = page.locator(".readout").first
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
    assert [view["at"] for view in state(page)["views"]] == [0, 5]
    panes.nth(1).locator(".step").fill("3")
    page.keyboard.press("ArrowRight")  # keys act on the view that was used last
    assert [view["at"] for view in state(page)["views"]] == [0, 4]
    # the early step stays on the left: the other one goes along
    panes.nth(0).locator(".step").fill("5")
    assert [panes.nth(i).locator(".when").inner_text()[:7] for i in (0, 1)] == ["step 20"] * 2
    choose_head(page, 0, 2)
    assert [panes.nth(i).locator(".map-title").inner_text() for i in (0, 1)] == ["L0 H2", "L0 H2"]


def test_a_page_of_two_runs_opens_on_both_though_they_differ_in_shape(browser, file):
    with opened(browser, file) as page:
        one, other = page.locator(".pane").all()
        for pane, run, best, heads in ((one, "mha", "L1 H3", 8), (other, "gqa", "L2 H7", 24)):
            assert pane.locator(".run-choice option:checked").inner_text() == run
            assert pane.locator(".map-title").inner_text()[:5] == best
            assert pane.locator(".thumbnail").count() == heads
        # another run's heads are others: the first view keeps its own
        choose_head(page, 0, 1, view=1)
        assert one.locator(".map-title").inner_text() == "L1 H3"
        one.locator(".step").fill("3")  # step 5; the nearest of the other is 4
        assert other.locator(".when").inner_text().startswith("step 4 ")


def test_scores_with_their_chance_are_those_of_the_text_that_is_shown(page):
    """One head, one truth: induction is measured on repeated tokens, so no other map bears its
    number.
    """
    table = page.locator(".pane").first.locator(".score-table tbody")
    badges = page.locator(".badge")
    choose_head(page, 0, 1)
    for name, (value, chance) in {"previous token": ("0.020", "0.050"), "copied mention": ("undefined", "–")}.items():
        assert table.locator("tr", has_text=name).locator("td").all_inner_texts()[:2] == [value, chance]
    assert (state(page)["probe"], state(page)["score"], badges.nth(7).inner_text()) == (*INDUCTION, "0.20")
    values = "bars => bars.map((bar) => Number(bar.style.getPropertyValue('--value')))"
    bars = table.locator(".gauge").evaluate_all(values)
    # shares of attention have one scale, whatever the others score
    assert bars[:2] == pytest.approx([0.02, 0.05])
    page.get_by_role("button", name="entropy", exact=True).first.click()
    # where entropy is measured
    assert state(page)["probe"] == page.locator("#probe").input_value() == "text"
    assert badges.nth(1).inner_text() == "1.1"
    page.select_option("#probe", "packed")  # here nothing is measured
    assert not badges.first.is_visible()


def test_what_is_shown_can_be_kept(page):
    choose_head(page, 0, 0)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save picture").click()
    assert Image.open(download.value.path()).format == "PNG"


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
    for key in "t h v d ] ] [ Home End".split():
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


# The file


def shown_steps(page):
    return page.evaluate("headlight.runs[0].shown.map((i) => headlight.runs[0].steps[i].step)")


def test_quantisation_keeps_small_weights_and_its_error_is_bounded():
    true = np.concatenate([[0, 1], np.geomspace(4e-6, 1, 1828)]).astype(np.float32)
    weights = np.zeros((1, 60, 60), np.float32)
    weights[:, *np.tril_indices(60)] = true
    back = (quantise(weights)[0] / 255.0) ** 2
    assert (np.abs(back - true) <= np.sqrt(true) / 255 + 4e-6).all()
    assert ((back > 0) == (true > 0)).all()
    assert quantise(np.full((1, 2, 2), np.nan)).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("most", [1_000_000, 1])
def test_a_large_run_fits_and_the_page_says_what_is_missing(browser, tmp_path, monkeypatch, most):
    monkeypatch.setattr(viewer, "AT_THE_END", most)
    maps = {"text": ProbeMap(causal(8, 8, 64, 0), [f"w{n}" for n in range(64)])}
    run = [snapshot(s, range(8), range(8), 8, 2, maps=maps) for s in (0, 1, 2, 5, 10, 20, *range(50, 1001, 50))]
    file = write_viewer([("large", run)], tmp_path / "v.html")
    with opened(browser, file) as page:
        steps = shown_steps(page)
        notes = page.locator("#notes").inner_text()
        assert (steps[0], steps[-1]) == (0, 1000)
        assert len(steps) == 2 if most == 1 else 5 < len(steps) < len(run)
        assert f"the maps of {len(steps)} of {len(run)} steps of large, scores of all" in notes
        assert page.evaluate("headlight.runs[0].steps.length") == len(run)  # the curves are whole


def test_hostile_labels_are_text(browser, tmp_path):
    name = '<b>&"@@HEAD@@</title></script>'
    with opened(browser, write_viewer([(name, [snapshot(3, labels=HOSTILE)])], tmp_path / "v.html")) as page:
        shown = [*HOSTILE[:4], "⟨U+D83D⟩", "⟨U+0000⟩⟨U+200B⟩⟨U+202E⟩", "狐狸", "∅", *HOSTILE[8:]]
        assert page.locator(".pane").first.locator(".token").all_text_contents() == shown
        assert all(name in text for text in (page.locator("h1").first.text_content(), page.title()))
        for place in range(len(HOSTILE)):
            page.keyboard.press("]")
            assert f"({place})" in page.locator(".readout").first.inner_text()
        assert page.evaluate("window.pwned") is None
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_undefined_breaks_nothing(browser, tmp_path):
    scores = {"induction": np.full((2, 4), np.nan, np.float32)}
    nothing = {"induction": None}
    first = snapshot(0, scores=scores, chance=nothing, scalars={"x": None})
    last = replace(first, step=5, maps={"text": first.maps["text"]}, chance={}, scalars={})
    file = write_viewer([("odd", [first, snapshot(2, heads=(0, 1)), last])], tmp_path / "v.html")
    with opened(browser, file) as page:
        assert shown_steps(page) == [0, 5]  # not those of other heads
        page.select_option("#probe", "packed")
        for key in ["Home", *"hmgvxsd"]:
            page.keyboard.press(key)
    with pytest.raises(InputError, match="no attention snapshot"):
        write_viewer([("a", [])], tmp_path / "v.html")


def test_heads_of_a_part_have_their_true_numbers_and_a_score_needs_no_bounds(browser, tmp_path):
    part = {"maps": {"mine": ProbeMap(causal(1, 2, 5, 0), list("abcde"))}, "chance": {"max_logit": None}}
    odd = snapshot(2, [0], [0, 3], 4, 2, scores={"max_logit": np.array([[-3.0, -2.0]], np.float32)}, **part)
    with opened(browser, write_viewer([("b", [odd])], tmp_path / "v.html", head=(0, 3))) as page:
        assert page.locator(".map-title").first.inner_text() == "L0 H3 · reads key/value head 1"
        assert page.locator(".token").all_inner_texts() == list("abcde")
        page.get_by_role("button", name="largest logit").click()
        assert page.locator(".chosen .here").inner_text() == "-2"


@pytest.mark.parametrize("length", [3, 5])
def test_the_numbers_of_the_colour_bar_do_not_touch_on_a_short_text(browser, tmp_path, length):
    maps = {"text": ProbeMap(causal(2, 4, length, 0), list("abcdefgh")[:length])}
    with opened(browser, write_viewer([("a", [snapshot(1, maps=maps)])], tmp_path / "v.html")) as page:
        ticks = page.locator(".around").first.locator("text.word[font-size='10']")
        boxes = [tick.bounding_box() for tick in ticks.all()]
        assert len(boxes) >= 2
        for one, other in pairwise(boxes):
            assert one["x"] + one["width"] < other["x"]


def test_it_works_inside_a_notebook_and_a_sandbox(browser, tmp_path):
    file = write_viewer([('a "quoted" & run', [snapshot(0), snapshot(4)])], tmp_path / "v.html")
    frame = Notebook(file)._repr_html_()
    host = tmp_path / "host.html"
    frames = frame + frame.replace("<iframe ", '<iframe sandbox="allow-scripts" ')
    host.write_text(f"<!doctype html><meta charset=utf-8><div data-ready>{frames}</div>", encoding="utf-8")
    with opened(browser, host, wait="iframe", allowed=("about:srcdoc",)) as page:
        for number in (0, 1):  # two in one notebook do not disturb one another
            inside = page.frame_locator("iframe").nth(number)
            inside.locator("html[data-ready]").wait_for()
            inside.locator(".step").first.fill("0")
            assert inside.locator(".when").first.inner_text() == "step 0"
            page.wait_for_timeout(400)  # when the address would follow


# While a run trains


def looks(*steps: int) -> Looks:
    """The induction head is layer 1, head 2."""
    run = Looks("tiny")
    for step in steps:
        scores = {"induction": np.full((2, 4), 0.01, np.float32)}
        scores["induction"][1, 2] = {0: 0.02, 40: 0.31, 80: 0.6}[step]
        run.add(snapshot(step, scores=scores))
    # not held
    assert not any(maps.weights.size for shot in run.snapshots for maps in shot.maps.values())
    return run


def test_a_page_renews_itself_keeps_what_was_chosen_and_stops_when_the_run_ends(browser, tmp_path):
    (tmp_path / "attention").mkdir()
    write_page(looks(0, 40), tmp_path, TRAINING | {"patience": 180})
    with opened(browser, tmp_path / "attention/viewer.html") as tab:
        assert "step 40 of 80" in tab.locator(".progress .line").inner_text()
        tab.locator(".thumbnail").nth(1).click()
        tab.wait_for_url(re.compile(r"at=0\.1\."))
        write_page(looks(0, 40, 80), tmp_path, TRAINING | {"step": 80, "state": "finished"})
        tab.get_by_text("Finished · step 80 of 80").wait_for()  # nobody asked for it
        assert tab.locator(".map-title").first.inner_text().startswith("L0 H1")
        assert tab.locator(".when").first.inner_text().startswith("step 80")  # it went along
        assert "Around step 40 (40,000 tokens, 20 seconds), layer 1, head 2 learned" in tab.locator("body").inner_text()


def test_a_page_that_no_longer_changes_says_so_and_how_to_go_on(browser, tmp_path, monkeypatch):
    (tmp_path / "attention").mkdir()
    long_ago = time.time() - 605
    now = time.time()
    goes_on = "python -m train.pretrain <configs/small.yaml>"
    for when, status, shown in (
        (long_ago, {"patience": 180}, True),
        (long_ago, {"patience": 700}, False),
        (now, {"patience": 180, "state": "stopped", "stopped": "Stopped: loss <nan>.", "loss": float("nan")}, True),
    ):
        monkeypatch.setattr(time, "time", lambda when=when: when)
        write_page(looks(0, 40), tmp_path, TRAINING | {"command": goes_on} | status)
        with opened(browser, tmp_path / "attention/viewer.html") as tab:
            assert (goes_on in tab.locator(".progress .quiet").inner_text()) == shown
