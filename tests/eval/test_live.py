"""The page that shows a head as it forms: what it says of known snapshots, and what a browser makes of it."""

import re
import time

import numpy as np
import pytest

from eval.attention.live import Live, Moment
from eval.attention.snapshots import Ablated
from tests.eval.viewer_helpers import chromium, opened, snapshot

INDUCTION = {0: 0.02, 40: 0.31, 80: 0.6}
LENGTH = 9  # the first token of a document, and four words twice
WORDS = ["⟨bos⟩", *["␣fox", "␣<b>", "␣red", "␣owl"] * 2]


def look(step: int, **changes):
    """The induction head is layer 1, head 2; the previous-token head is layer 0, head 3."""
    induction, previous = np.full((2, 4), 0.01, np.float32), np.full((2, 4), 0.04, np.float32)
    induction[1, 2], previous[0, 3] = INDUCTION[step], 0.5
    scores = {"previous_token": previous, "induction": induction}
    one = snapshot(step, length=LENGTH, labels=WORDS, **({"scores": scores} | changes))
    for row in range(5, LENGTH - 1) if one.maps else ():
        one.maps["repeated_2"].weights[1, 2, row, row - 3] = INDUCTION[step] / 2
        one.maps["repeated_2"].weights[1, 2, 6, 3] = INDUCTION[step] + 0.1
    return one


def live(*steps: int, **changes) -> Live:
    page = Live()
    for step in steps:
        page.notice(look(step, **changes))
    return page


def page(steps=(0, 40, 80), total=100, is_over=False, **changes) -> str:
    return live(*steps, **changes).page("small", Moment(steps[-1], total, 12.0, 3.5, is_over))


def test_what_is_seen_so_far_stands_there_in_words():
    text = page((0,))
    assert "No head has learned yet to look at what followed the same token before" in text
    assert "Nothing yet" in text
    text = page()
    assert "Around step 40, layer 1, head 2 learned to look at what followed the same token before" in text
    assert "<b>step 80</b> layer 1, head 2: induction 0.31 → 0.60 (chance 0.02)" in text
    assert text.index("<b>step 80</b>") < text.index("<b>step 40</b>")
    assert "step 80 of 100 · training loss 3.500 nats a token · 12 seconds" in text
    assert "step 80 · 12 seconds" in live(0, 80).page("small", Moment(80, None, 12.0, None))  # a clock ends the run


def test_the_word_at_which_the_head_is_best_and_nothing_of_a_text_works_in_the_page():
    text = page()
    assert "at the second <b>&lt;b&gt;</b>: <b>0.70</b> of its attention goes to <b>red</b>" in text
    assert "(at step 0: 0.12)" in text
    assert "<b>⟨bos⟩" not in text
    name = live(0).page("</title><script>", Moment(0, 100, 0.0, None))
    assert name.count("<script") == 1  # its own
    assert "&lt;script&gt;" in name


def test_at_the_end_it_says_what_the_ablation_costs_and_renews_itself_no_more():
    rows = [Ablated("strongest induction heads", [(1, 2), (1, 0)], 4.4), Ablated("random draw 1", [(0, 1)], 0.2)]
    text = page(is_over=True, ablations=rows)
    assert "rises by 4.40 without the strongest induction heads (layer 1, heads 2 and 0), in nats a token" in text
    assert "refresh" not in text
    assert text.count("data:image/png;base64,") == 2
    assert "<script" not in text
    assert 'content="3"' in page()


def test_a_run_that_stopped_says_why_and_what_continues_it_and_renews_itself_no_more():
    text = live(0, 40).page("small", Moment(44, 100, 12.0, 3.5, stopped="Stopped: loss <nan>", command="python -m <x>"))
    assert "Headlight: small has stopped" in text
    assert "Stopped: loss &lt;nan&gt;<br>This command continues from the newest checkpoint" in text
    assert "<code>python -m &lt;x&gt;</code>" in text
    assert "step 44 of 100" in text
    assert "at the last look, at step 40" in text
    assert not [word for word in ("refresh", "<script", "script-src", "data-written") if word in text]


def test_only_the_maps_that_are_shown_are_kept():
    kept = live(0, 40, 80).looks
    assert [one.maps["repeated_2"].weights.size > 0 for one in kept] == [True, False, True]
    assert not any(one.maps["text"].weights.size for one in kept)


def test_other_texts_than_before_begin_a_new_curve_and_a_step_that_comes_again_replaces_what_was_there():
    one = live(0, 40)
    one.notice(snapshot(80))
    assert [look.step for look in one.looks] == [80]
    one = live(0, 40, 80)
    one.notice(look(40))
    assert [look.step for look in one.looks] == [0, 40]


def test_what_was_not_measured_is_not_shown():
    text = page(scores={"sink": np.full((2, 4), 0.1, np.float32)})
    assert "Induction is not measured" in text
    assert "<polyline" not in text
    assert "data:image" not in text
    undefined = {"induction": np.full((2, 4), np.nan, np.float32)}
    assert "Induction is not measured" in page(scores=undefined)
    assert "<img" not in page(maps={})


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def test_a_browser_renews_the_page_and_everything_is_on_one_screen(browser, tmp_path):
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention/viewer.html").write_text("")
    shown = live(0, 40)
    file = shown.write(tmp_path, Moment(40, 80, 5.0, 4.0))
    with opened(browser, file, wait="progress", viewport={"width": 1280, "height": 800}) as tab:
        assert tab.locator("polyline").count() == 2
        shown.notice(look(80))
        shown.write(tmp_path, Moment(80, 80, 9.0, 3.0, is_over=True))
        tab.get_by_text("step 80 of 80").wait_for()  # nobody asked for it
        assert tab.locator('meta[http-equiv="refresh"]').count() == 0
        assert tab.evaluate("[...document.images].map(one => one.naturalWidth > 0)") == [True, True]
        assert tab.evaluate("document.documentElement.scrollHeight") <= 800
        assert tab.locator("a.next").evaluate("one => one.href") == (tmp_path / "attention/viewer.html").as_uri()
        heights = tab.eval_on_selector_all("circle.induction", "all => all.map(one => one.cy.baseVal.value)")
        assert heights == sorted(heights, reverse=True)
        assert len(heights) == 3


def test_a_page_that_no_longer_changes_says_so_and_one_that_changes_again_does_not(browser, tmp_path, monkeypatch):
    shown, command = live(0, 40), "python -m train.pretrain configs/small.yaml"
    monkeypatch.setattr(time, "time", lambda now=time.time: now() - 605)
    file = shown.write(tmp_path, Moment(40, 80, 5.0, 4.0, command=command))
    with opened(browser, file, wait="progress") as tab:
        said = tab.locator("#quiet")
        assert said.is_visible()
        assert "Nothing has changed for 10 minutes" in said.inner_text()
        assert command in said.inner_text()
        monkeypatch.undo()
        shown.write(tmp_path, Moment(40, 80, 5.0, 4.0, command=command))
        tab.reload()
        assert said.is_hidden()
        assert said.count() == 1
    text = shown.page("small", Moment(40, 80, 5.0, 4.0, patience=700.0))
    assert 'data-patience="700"' in text


def test_every_value_of_the_drawing_is_where_its_axis_says():
    text = page()
    for name, values in (("induction", list(INDUCTION.values())), ("previous_token", [0.5] * 3)):
        (line,) = re.findall(rf'<polyline class="{name}" points="([^"]*)"', text)
        places = [tuple(map(float, point.split(","))) for point in line.split()]
        (zero,), (one,) = (re.findall(rf'y="([\d.]+)" text-anchor="end">{label}<', text) for label in ("0", "1"))
        zero, one = float(zero) - 4, float(one) - 4
        assert [(zero - y) / (zero - one) for _, y in places] == pytest.approx(values, abs=1e-3)
        assert [x - places[0][0] for x, _ in places] == pytest.approx(
            [(places[-1][0] - places[0][0]) * step / 80 for step in INDUCTION], abs=0.2
        )
