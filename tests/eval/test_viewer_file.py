"""The viewer's file: what fits, what is left out, that it opens anywhere, and what it is while a run trains."""

import re
import time
from dataclasses import replace

import numpy as np
import pytest

from configs.command import InputError
from eval.attention import viewer
from eval.attention.snapshots import ProbeMap
from eval.attention.viewer import Looks, Notebook, described, quantise, write_page, write_viewer
from tests.eval.viewer_helpers import causal, opened, snapshot

HOSTILE = [
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "\"quotes'",
    "@@END@@",
    "\ud83d",
    "\x00\u200b\u202e",
    "狐狸",
    "",
    "␣averyveryverylongtokenindeed" * 4,
    "-->",
    "&amp;",
    "x",
]
INDUCTION = {0: 0.02, 40: 0.31, 80: 0.6}
TRAINING = {"step": 40, "total": 80, "seconds": 5.0, "loss": 4.0, "state": "training", "stopped": "", "command": ""}


def shown_steps(page, run=0):
    return page.evaluate(f"headlight.runs[{run}].shown.map((i) => headlight.runs[{run}].steps[i].step)")


def test_quantisation_keeps_small_weights_and_its_error_is_bounded():
    weights = np.zeros((1, 60, 60), np.float32)
    rows, columns = np.tril_indices(60)
    weights[0, rows, columns] = np.concatenate([[0, 1], np.geomspace(4e-6, 1, len(rows) - 2)])
    true, back = weights[0, rows, columns], (quantise(weights)[0] / 255.0) ** 2
    assert (np.abs(back - true) <= np.sqrt(true) / 255 + 4e-6).all()
    assert ((back > 0) == (true > 0)).all()
    assert (back[:2] == [0, 1]).all()
    assert quantise(np.full((1, 2, 2), np.nan)).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("most", [1_000_000, 1])
def test_a_large_run_fits_and_the_page_says_what_is_missing(browser, tmp_path, monkeypatch, most):
    monkeypatch.setattr(viewer, "AT_THE_END", most)
    maps = {"text": ProbeMap(causal(8, 8, 64, 0), [f"w{n}" for n in range(64)])}
    run = [snapshot(s, range(8), range(8), 8, 2, maps=maps) for s in (0, 1, 2, 5, 10, 20, *range(50, 1001, 50))]
    file = write_viewer([("large", run)], tmp_path / "v.html")
    with opened(browser, file) as page:
        steps, notes = shown_steps(page), page.locator("#notes").inner_text()
        assert (steps[0], steps[-1]) == (0, 1000)
        assert len(steps) == 2 if most == 1 else 5 < len(steps) < len(run)
        assert f"the maps of {len(steps)} of {len(run)} steps of large, scores of all" in notes
        assert page.evaluate("headlight.runs[0].steps.length") == len(run)  # the curves are whole


def test_nothing_to_show_is_an_error_that_says_so(tmp_path):
    with pytest.raises(InputError, match="no attention snapshot"):
        write_viewer([("a", [])], tmp_path / "v.html")


def test_hostile_labels_are_text(browser, tmp_path):
    name = '<b>&"@@HEAD@@</title></script>'
    with opened(browser, write_viewer([(name, [snapshot(3, labels=HOSTILE)])], tmp_path / "v.html")) as page:
        readable = ["⟨U+D83D⟩", "⟨U+0000⟩⟨U+200B⟩⟨U+202E⟩", "狐狸", "∅"]
        expected = [*HOSTILE[:4], *readable, *HOSTILE[8:]]
        assert page.locator(".pane").first.locator(".token").all_text_contents() == expected
        assert page.locator("h1").first.text_content() == f"What the attention heads of {name} look at"
        assert page.title() == f"{name}: attention heads"
        for place in range(len(HOSTILE)):
            page.keyboard.press("]")
            assert f"({place})" in page.locator(".readout").first.inner_text()
        assert page.evaluate("window.pwned") is None
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_undefined_breaks_nothing(browser, tmp_path):
    scores, nothing = {"induction": np.full((2, 4), np.nan, np.float32)}, {"induction": None}
    first = snapshot(0, scores=scores, chance=nothing, scalars={"x": None})
    last = replace(first, step=5, maps={"text": first.maps["text"]}, chance={}, scalars={})
    file = write_viewer([("odd", [first, snapshot(2, heads=(0, 1)), last])], tmp_path / "v.html")
    with opened(browser, file) as page:
        assert shown_steps(page) == [0, 5]  # not those of other heads
        page.select_option("#probe", "packed")
        for key in ["Home", *"hmcgvfsd"]:
            page.keyboard.press(key)


def test_runs_with_other_texts_and_a_score_without_bounds(browser, tmp_path):
    maps = {"mine": ProbeMap(causal(1, 2, 5, 0), list("abcde"))}
    logits = {"max_logit": np.array([[-3.0, -2.0]], np.float32)}
    odd = snapshot(2, [0], [0, 3], 4, 2, maps=maps, scores=logits, chance={"max_logit": None})
    with opened(browser, write_viewer([("b", [odd])], tmp_path / "v.html", head=(0, 3))) as page:  # true numbers
        assert page.locator(".map-title").first.inner_text() == "L0 H3 · reads key/value head 1"
        assert page.locator(".token").all_inner_texts() == list("abcde")
        page.get_by_role("button", name="largest logit").click()
        assert page.locator(".chosen .here").inner_text() == "-2"


def test_it_works_inside_a_notebook_and_a_sandbox(browser, tmp_path):
    file = write_viewer([('a "quoted" & run', [snapshot(0), snapshot(4)])], tmp_path / "v.html")
    frame, host = Notebook(file)._repr_html_(), tmp_path / "host.html"
    frames = frame + frame.replace("<iframe ", '<iframe sandbox="allow-scripts" ')
    host.write_text(f"<!doctype html><meta charset=utf-8><div data-ready>{frames}</div>", encoding="utf-8")
    with opened(browser, host, wait="iframe", allowed=("about:srcdoc",)) as page:
        for number in (0, 1):  # two in one notebook do not disturb one another
            inside = page.frame_locator("iframe").nth(number)
            inside.locator("html[data-ready]").wait_for()
            inside.locator(".step").first.fill("0")
            assert inside.locator(".when").first.inner_text() == "step 0"
            page.wait_for_timeout(400)  # when the address would follow


def test_no_script_asks_for_anything_stores_anything_or_writes_html():
    unsafe = r"https?://(?!www\.w3\.org)|localStorage|sessionStorage|innerHTML|eval\(|onsubmit=|style="
    for file in viewer.PAGE.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(unsafe, text), file.name
        if file.stem in viewer.IN_FILE:
            assert not re.search(r"\bfetch\(|EventSource|XMLHttpRequest|import\(", text), file.name


# ---------------------------------------------------------------------------------------------------------
# while a run trains


def looks(*steps: int) -> Looks:
    """The induction head is layer 1, head 2."""
    run = Looks("tiny")
    for step in steps:
        scores = {"induction": np.full((2, 4), 0.01, np.float32)}
        scores["induction"][1, 2] = INDUCTION[step]
        run.add(snapshot(step, scores=scores))
    return run


def test_what_is_seen_so_far_stands_there_in_words():
    run = looks(0, 40, 80)
    (about,) = described([run])["runs"]
    assert about["seen"].startswith("Around step 40 (40,000 tokens, 20 seconds), layer 1, head 2 learned to look at")
    assert about["formed"] == {"layer": 1, "head": 2, "step": 40}
    assert [moment["step"] for moment in about["moments"]] == [40, 80]
    assert not any(maps.weights.size for shot in run.snapshots for maps in shot.maps.values())  # not held


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


def test_a_page_that_no_longer_changes_says_so_and_how_to_go_on(browser, tmp_path, monkeypatch):
    (tmp_path / "attention").mkdir()
    long_ago, now, goes_on = time.time() - 605, time.time(), "python -m train.pretrain <configs/small.yaml>"
    for when, status, shown in (
        (long_ago, {"patience": 180}, True),
        (long_ago, {"patience": 700}, False),
        (now, {"patience": 180, "state": "stopped", "stopped": "Stopped: loss <nan>.", "loss": float("nan")}, True),
    ):
        monkeypatch.setattr(time, "time", lambda when=when: when)
        write_page(looks(0, 40), tmp_path, TRAINING | {"command": goes_on} | status)
        with opened(browser, tmp_path / "attention/viewer.html") as tab:
            assert (goes_on in tab.locator(".progress .quiet").inner_text()) == shown
