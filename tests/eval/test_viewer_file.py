"""The viewer's file: what fits, what is left out, that it opens anywhere, and what it is while a run trains."""

import re
import time

import numpy as np
import pytest

from configs.command import InputError
from eval.attention import viewer
from eval.attention.snapshots import Ablated, ProbeMap
from eval.attention.viewer import Live, Looks, Moment, described, notebook, quantise, write_viewer
from tests.eval.viewer_helpers import causal, chromium, opened, snapshot

HOSTILE = [
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "\"quotes'",
    "@@END@@",
    "\ud83d",
    "\x00\u200b\u202e",
    "狐狸",
    "👩‍🚀",
    "",
    "␣averyveryverylongtokenindeed" * 4,
    "-->",
    "&amp;",
]
INDUCTION = {0: 0.02, 40: 0.31, 80: 0.6}


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


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


@pytest.mark.parametrize("limit", [5_000_000, 700_000])
def test_a_large_run_fits_and_the_page_says_what_is_missing(browser, tmp_path, limit):
    names = ["text", "repeated_2", "songs"]
    maps = {name: ProbeMap(causal(8, 8, 64, i), [f"w{n}" for n in range(64)]) for i, name in enumerate(names)}
    run = [snapshot(s, range(8), range(8), 8, 2, maps=maps) for s in (0, 1, 2, 5, 10, 20, *range(50, 1001, 50))]
    file = write_viewer([("large", run)], tmp_path / "v.html", max_bytes=limit)
    assert 0.75 * limit < file.stat().st_size <= limit
    with opened(browser, file) as page:
        steps, notes = shown_steps(page), page.locator("#notes").inner_text()
        assert (steps[0], steps[-1]) == (0, 1000)
        assert f"the maps of {len(steps)} of {len(run)} steps of large, scores of all" in notes
        assert page.evaluate("headlight.runs[0].steps.length") == len(run)  # the curves are whole
        probes = page.evaluate("headlight.about.probes.map((one) => one.name)")
        assert ("did not fit" in notes) == (len(probes) < 3)
        assert len(steps) >= 12 if limit == 5_000_000 else probes == ["text"]


def test_a_text_that_is_too_long_loses_its_end(browser, tmp_path):
    maps = {"text": ProbeMap(causal(4, 4, 160, 0), [f"w{n}" for n in range(160)])}
    run = [snapshot(s, range(4), range(4), 4, 1, maps=maps) for s in (0, 9)]
    with opened(browser, write_viewer([("long", run)], tmp_path / "v.html", max_bytes=300_000)) as page:
        tokens = page.locator(".pane").first.locator(".token").count()
        assert tokens == 80
        assert "tokens 80 to 159 of 160" in page.locator(".text-note").first.inner_text()
        cut = page.evaluate("headlight.panes[0].map.head.weight(70, 3)")
        layer, head = (page.evaluate(f"headlight.state.views[0].{key}") for key in ("layer", "head"))
        assert abs(cut - maps["text"].weights[layer, head, 70, 3]) < 0.004
    for runs in ([("too little room", run)], [], [("nothing to show", [])]):
        with pytest.raises(InputError):
            write_viewer(runs, tmp_path / "v.html", max_bytes=60_000)


def test_hostile_labels_are_text(browser, tmp_path):
    name = '<b>&"@@HEAD@@</title></script>'
    with opened(browser, write_viewer([(name, [snapshot(3, labels=HOSTILE)])], tmp_path / "v.html")) as page:
        readable = ["⟨D83D⟩", "⟨00⟩⟨200B⟩⟨202E⟩", "狐狸", "👩⟨200D⟩🚀", "∅"]
        expected = [*HOSTILE[:4], *readable, *HOSTILE[9:]]
        assert page.locator(".pane").first.locator(".token").all_text_contents() == expected
        assert page.locator("h1").first.text_content() == f"What the attention heads of {name} look at"
        assert page.title() == f"{name}: attention heads"
        for place in range(len(HOSTILE)):
            page.keyboard.press("]")
            assert f"({place})" in page.locator(".readout").first.inner_text()
        assert page.evaluate("window.pwned") is None
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_undefined_breaks_nothing(browser, tmp_path):
    nan = np.full((2, 4), np.nan, np.float32)
    broken = causal(2, 4, 12, 1)
    broken[1, 1, 4] = np.nan
    maps = {"text": ProbeMap(broken, [f"w{i}" for i in range(12)])}
    scores = {"induction": nan, "made_up": nan}
    first = snapshot(0, scores=scores, chance={"induction": None}, scalars={"x": None})
    last = snapshot(5, maps=maps, scores=scores, chance={}, scalars={})
    file = write_viewer([("odd", [first, snapshot(2, heads=(0, 1)), last])], tmp_path / "v.html")
    with opened(browser, file) as page:
        notes = page.locator("#notes").inner_text()
        assert "Not shown: steps 2 of odd" in notes  # other heads
        assert "Steps 5 of odd have non-finite weights" in notes
        assert shown_steps(page) == [0, 5]
        page.get_by_role("button", name="made up").first.click()
        page.select_option("#probe", "packed")
        for key in ["Home", *"hmcgvfsd"]:
            page.keyboard.press(key)


def test_runs_with_other_texts_a_score_without_bounds_and_none_at_all(browser, tmp_path):
    maps = {"mine": ProbeMap(causal(1, 2, 5, 0), list("abcde"))}
    logits = {"max_logit": np.array([[-3.0, -2.0]], np.float32)}
    odd = snapshot(2, [0], [0, 1], 2, 2, maps=maps, scores=logits, chance={"max_logit": None})
    bare = [snapshot(0, layers=(1, 2), heads=(0, 3), scores={}, chance={})]
    usual = [snapshot(s, range(6), range(8), 8, 2) for s in range(3)]
    with opened(browser, write_viewer([("a", usual), ("b", [odd])], tmp_path / "v.html")) as page:
        page.select_option("#probe", "mine")
        assert page.locator(".pane").nth(1).locator(".token").all_inner_texts() == list("abcde")
        page.get_by_role("button", name="largest logit").nth(1).click()
        assert page.locator(".pane").nth(1).locator(".chosen .here").inner_text() == "-3"
    with opened(browser, write_viewer([("bare", bare)], tmp_path / "v.html", head=(2, 0))) as page:  # true numbers
        assert page.locator(".map-title").first.inner_text() == "L2 H0 · reads key/value head 0"


@pytest.mark.parametrize("sandbox", ["", 'sandbox="allow-scripts"'])
def test_it_works_inside_a_notebook_and_a_sandbox(browser, tmp_path, sandbox):
    file = write_viewer([('a "quoted" & run', [snapshot(0), snapshot(4)])], tmp_path / "v.html")
    frame = notebook(file, height=700)._repr_html_().replace("<iframe ", f"<iframe {sandbox} ")
    host = tmp_path / "host.html"
    host.write_text(f"<!doctype html><meta charset=utf-8><div data-ready>{frame}</div>{frame}", encoding="utf-8")
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


def live(*steps: int) -> Live:
    """The induction head is layer 1, head 2."""
    found = Live()
    for step in steps:
        scores = {"induction": np.full((2, 4), 0.01, np.float32)}
        scores["induction"][1, 2] = INDUCTION[step]
        found.notice(snapshot(step, scores=scores))
    return found


def test_what_is_seen_so_far_stands_there_in_words():
    (run,) = described([live(0).run])["runs"]
    assert "No head" in run["seen"]
    found = live(0, 40, 80).run
    (run,) = described([found])["runs"]
    assert run["seen"].startswith("Around step 40, layer 1, head 2 learned to look at")
    assert run["formed"] == {"layer": 1, "head": 2, "step": 40}
    assert [moment["step"] for moment in run["moments"]] == [40, 80]
    assert not any(maps.weights.size for shot in found.snapshots for maps in shot.maps.values())  # not held
    rows = [Ablated("strongest induction heads", [(1, 2), (1, 0)], 4.4), Ablated("random draw 1", [(0, 1)], 0.2)]
    (run,) = described([Looks("a", [snapshot(0), snapshot(80, ablations=rows)])])["runs"]
    assert "rises by 4.40 without the strongest induction heads (layer 1, heads 2 and 0)" in run["seen"]


def test_a_page_renews_itself_keeps_what_was_chosen_and_stops_when_the_run_ends(browser, tmp_path):
    (tmp_path / "attention").mkdir()
    said, file = [], tmp_path / "attention/viewer.html"
    live(0, 40).show(tmp_path, Moment(40, 80, 5.0, 4.0), said.append)
    assert file.as_uri() in said[0]
    with opened(browser, file) as tab:
        assert "step 40 of 80" in tab.locator(".progress .line").inner_text()
        tab.locator(".thumbnail").nth(1).click()
        tab.wait_for_url(re.compile(r"at=0\.1\."))
        live(0, 40, 80).show(tmp_path, Moment(80, 80, 9.0, 3.0, is_over=True), said.append)
        tab.get_by_text("Finished · step 80 of 80").wait_for()  # nobody asked for it
        assert tab.locator(".map-title").first.inner_text().startswith("L0 H1")
        assert tab.locator(".when").first.inner_text().startswith("step 80")  # it went along


def test_a_page_that_no_longer_changes_says_so_and_how_to_go_on(browser, tmp_path, monkeypatch):
    (tmp_path / "attention").mkdir()
    long_ago, now, goes_on = time.time() - 605, time.time(), "python -m train.pretrain <configs/small.yaml>"
    for when, moment, shown in (
        (long_ago, Moment(40, 80, 5.0, 4.0, command=goes_on), True),
        (long_ago, Moment(40, 80, 5.0, 4.0, command=goes_on, patience=700.0), False),
        (now, Moment(44, 80, 5.0, 4.0, command=goes_on, stopped="Stopped: loss <nan>."), True),
    ):
        monkeypatch.setattr(time, "time", lambda when=when: when)
        live(0, 40).write(tmp_path, moment)
        with opened(browser, tmp_path / "attention/viewer.html") as tab:
            assert (goes_on in tab.locator(".progress .quiet").inner_text()) == shown
