"""The page in a real browser: runs and heads that grow while it is open, and nothing of a run
becomes HTML.
"""

import re
from contextlib import closing

import pytest

from serve.limits import Limits
from tests.eval.page.viewer_helpers import english_in
from tests.serve.conftest import serving
from tests.serve.page_helpers import HARMFUL, HARMFUL_NAME, Growing, visited

pytestmark = pytest.mark.slow  # a browser: in `make test-all`


@pytest.fixture
def runs(tmp_path):
    """Two finished runs, one of them with names and texts that want to be HTML, and one that
    trains.
    """
    folder = tmp_path / "runs"
    for name, seed in (("done", 1), (HARMFUL_NAME, HARMFUL)):
        run = Growing(folder, name, seed=seed, **{"model.kind": "mha"})
        for step in range(10, 401, 10):
            run.log(step)
        run.log(400, "val", loss=2.5)
        run.log(400, "floor", model=1.5, floor=1.0)
        labels = [HARMFUL, *(f"w{i}" for i in range(11))]
        for step, induction in ((0, 0.01), (200, 0.1), (400, 0.6)):
            run.look(step, induction, labels if name == HARMFUL_NAME else None)
        run.begin()
        run.end()
    young = Growing(folder, "young", seed=2, **{"model.kind": "gqa"})
    young.begin()
    young.log(10)
    return folder, young


@pytest.fixture
def address(runs):
    with serving(runs[0]) as (address, _):
        yield address


def chart(page, title):
    return page.locator(".chart-box", has=page.get_by_role("heading", name=title))


def test_a_run_that_trains_renews_itself(browser, address, runs):
    young = runs[1]
    with visited(browser, address) as page:  # the one that trains is chosen
        legend = chart(page, "Training loss").locator(".chart-legend")
        legend.get_by_text("at step 10", exact=True).wait_for()
        young.log(20, loss=3.25)
        legend.get_by_text("3.25", exact=True).wait_for()
        assert "at step 20" in legend.text_content()
        row = page.locator("tr", has_text="young")
        assert "20 of 400" in row.text_content()
        assert "training" in row.text_content()
        log = young.path / "metrics.jsonl"  # lines that a resumed run took back, in place, are gone
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:1]))
        young.log(15, loss=1.125)
        legend.get_by_text("at step 15", exact=True).wait_for()
        chart(page, "Training loss").locator("svg").press("Home")
        legend.get_by_text("at step 10", exact=True).wait_for()
        chart(page, "Training loss").locator("svg").press("ArrowRight")
        legend.get_by_text("at step 15", exact=True).wait_for()  # there is no step 20 any more
        young.end()
        row.get_by_text("finished").wait_for()
        page.locator("#news").get_by_text("young is finished").wait_for(state="attached")


def test_a_run_that_begins_while_the_page_is_open_is_drawn(browser, address, runs):
    with visited(browser, address, "#/runs?runs=done") as page:
        newest = Growing(runs[0], "newest")
        newest.log(10)
        page.get_by_role("checkbox", name="newest").wait_for()
        assert page.get_by_role("checkbox", name="newest").is_checked()
        assert not page.get_by_role("checkbox", name="young").is_checked()
        chart(page, "Training loss").locator(".chart-legend").get_by_text("newest").wait_for()


def test_several_runs_smoothed_with_values_where_the_mouse_is(browser, address):
    with visited(browser, address, "#/runs?runs=done,young") as page:
        loss = chart(page, "Training loss")
        assert loss.locator(".chart-legend li").count() == 2
        page.locator(".bar select").select_option("tokens")
        assert "tokens" in loss.locator(".chart-legend").text_content()
        page.locator(".bar select").select_option("step")
        page.get_by_label("Smoothing").fill("0.5")
        assert loss.locator("path.faint").count() == 1  # of the run with more than one point
        box = loss.locator("svg").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
        assert "at step 400" not in loss.locator(".chart-legend li").first.text_content()
        page.mouse.move(0, 0)
        loss.locator("svg").focus()
        page.keyboard.press("ArrowLeft")
        assert "at step 390" in loss.locator(".chart-legend li").first.text_content()
        assert "0.50 at step" in chart(page, "Gap to the floor").text_content()
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert page.get_by_label("Smoothing").input_value() == "0.5"
        assert loss.locator("path.faint").count() == 1
        table = page.locator(".difference-table")
        table.wait_for()
        rows = [row.split("\t") for row in table.locator("tbody").inner_text().split("\n")]
        assert rows == [["seed", "1", "2"], ["model.kind", "mha", "gqa"]]
        page.get_by_role("checkbox", name="done").uncheck()
        table.wait_for(state="detached")


def test_what_runs_and_models_say_is_shown_as_text(browser, address):
    encoded = "%3Cimg%20src%3Dx%20onerror%3Dalert(3)%3E"
    with visited(browser, address, f"#/runs?runs=done,{encoded}") as page:
        page.locator(".difference-table").get_by_text(HARMFUL).wait_for()
        assert page.locator("img").count() == 0
        page.get_by_role("link", name=f"Heads of the run {HARMFUL_NAME}").click()
        page.wait_for_selector(".thumbnail")
        page.get_by_role("option", name=HARMFUL).wait_for()
        assert page.locator("h1").first.text_content() == f"What the attention heads of {HARMFUL_NAME} look at"
        assert page.locator("img").count() == 0
        assert page.evaluate("document.querySelectorAll('script').length") == 1  # page.js


def test_heads_of_a_run_that_trains(browser, address, runs):
    young = runs[1]
    with visited(browser, address, "#/heads/young") as page:
        page.get_by_text("has no snapshot of its heads yet").wait_for()
        young.look(0, 0.01)
        page.wait_for_selector(".thumbnail")
        assert not page.locator(".formed").first.is_visible()
        title = page.locator(".map-title").first
        assert title.text_content().startswith("L0 H0")  # noise: no head scores more than another
        young.look(100, 0.05)
        # it went along to the newest look, and to its strongest head
        page.get_by_text("step 100 ·").first.wait_for()
        assert title.text_content().startswith("L1 H2")
        page.locator("#news").get_by_text("A new snapshot of the heads, step 100.").wait_for(state="attached")
        page.keyboard.press("Home")
        page.locator(".when").first.get_by_text("step 0").wait_for()
        young.look(200, 0.7)
        page.get_by_role("button", name="L1 H2 forms at step 200").wait_for()
        assert page.locator(".step").first.get_attribute("max") == "2"
        # who looks back is left alone
        assert page.locator(".when").first.text_content().startswith("step 0")
        assert "became an induction head" in page.locator("#news").text_content()
        page.get_by_role("button", name="L1 H2 forms at step 200").click()
        assert page.locator(".when").first.text_content().startswith("step 200")
        assert page.locator(".map-title").first.text_content().startswith("L1 H2")
        page.locator(".thumbnail").nth(3).click()
        page.keyboard.press("]")
        young.look(300, 0.8)
        page.locator("#news").get_by_text("step 300").wait_for(state="attached")
        assert title.text_content().startswith("L0 H3")  # a head that was chosen stays, and a token
        page.locator('.token[aria-selected="true"]').first.wait_for()  # its map comes after the news
        page.get_by_text("What changed (1)").click()
        assert "layer 1, head 2: induction" in page.locator(".moments").text_content()


def test_the_address_keeps_head_step_and_text(browser, address):
    with visited(browser, address, "#/heads/done") as page:
        page.select_option("#probe", "packed")
        page.locator(".thumbnail").nth(3).click()
        page.keyboard.press("Home")
        page.wait_for_url(re.compile(r"at=0\.3\.0"))
        assert "text=packed" in page.url
        page.reload()
        page.wait_for_selector(".thumbnail")
        assert page.locator(".map-title").first.text_content().startswith("L0 H3")
        assert page.locator(".when").first.text_content().startswith("step 0")
        assert page.input_value("#probe") == "packed"
        page.get_by_role("link", name="Runs").click()
        page.locator(".run-table").wait_for()
        page.go_back()
        page.wait_for_selector(".thumbnail")
        page.keyboard.press("End")  # one viewer hears it, not the one of before as well
        page.locator(".when").first.get_by_text("step 400").wait_for()


def test_an_address_that_was_cut_opens(browser, address):
    with visited(browser, address, "#/%E0%A4%A/%") as page:
        page.locator(".run-table").get_by_text("young").wait_for()
        page.evaluate("location.hash = '#/heads/%E0%A4%A'")
        page.get_by_text("There is no run").wait_for()


def test_what_is_shown_can_be_kept(browser, address):
    with visited(browser, address, "#/runs?runs=done") as page:
        with page.expect_download() as download:
            chart(page, "Training loss").get_by_role("button", name="Save picture").click()
        assert download.value.path().read_bytes().startswith(b"\x89PNG")


def test_a_text_of_ones_own_and_back(browser, folder):
    with serving(folder) as (address, _), visited(browser, address, "#/heads/text") as page:
        page.get_by_text("has no snapshot of its heads yet").wait_for()
        page.get_by_text("A text of your own").click()
        page.get_by_label("A text of your own").fill("Once there was a fox.")
        page.get_by_role("button", name="Look at it").click()
        page.wait_for_selector(".thumbnail")
        assert "fox" in page.locator(".tokens").first.text_content().replace("␣", "")
        page.wait_for_url(re.compile("own=Once"))
        page.reload()
        page.wait_for_selector(".thumbnail")
        page.get_by_role("button", name="Back to the texts of the run").click()
        page.get_by_text("has no snapshot of its heads yet").wait_for()
        assert page.locator(".thumbnail").count() == 0


def test_a_page_of_a_server_with_a_key(browser, runs):
    with serving(runs[0], Limits(api_key="open sesame")) as (address, _), closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(address)
        page.get_by_label("This server has a key").fill("guess")
        page.get_by_role("button", name="Open").click()
        page.get_by_text("This is not the key.").wait_for()
        assert page.locator(".run-table tbody tr").count() == 0
        page.get_by_label("This server has a key").fill("open sesame")
        page.get_by_role("button", name="Open").click()
        page.locator(".run-table").get_by_text("young").wait_for()
        assert not page.get_by_label("This server has a key").is_visible()


def test_a_server_that_goes_away_and_comes_back(browser, runs):
    with serving(runs[0]) as (address, _), closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(address)
        page.locator(".run-table").get_by_text("young").wait_for()
        page.route("**/live/**", lambda route: route.abort())
        page.evaluate("location.hash = '#/heads/done'")
        page.get_by_text("No connection to the server").wait_for()
        page.unroute("**/live/**")
        page.wait_for_selector(".thumbnail")
        page.get_by_text("No connection to the server").wait_for(state="hidden")


def test_in_chinese(browser, address):
    with visited(browser, address, "#/runs?runs=done,young", locale="zh-CN") as page:
        page.locator(".difference-table").wait_for()
        assert english_in(page) == []
        page.get_by_role("link", name="done 的注意力头").click()
        page.wait_for_selector(".thumbnail")
        assert english_in(page) == []
