"""The page's chat in a real browser, with tiny models that answer."""

import json
from contextlib import closing
from urllib.parse import quote, unquote, unquote_plus
from xml.etree import ElementTree

import pytest
import torch

from eval.attention import capture
from model import generate
from tests.eval.page.viewer_helpers import english_in
from tests.serve.chat_helpers import AND_THEN, SAID, get, ids_of, opened, thoughtful
from tests.serve.page_helpers import HARMFUL, visited

pytestmark = pytest.mark.slow  # a browser: in `make test-all`


def place(run="chat", **asked):
    """The address of a chat."""
    return f"#/chat/{run}?talk={quote(json.dumps(asked | {'settings': {'max_completion_tokens': 8}}))}"


CHAT = place()
ASKED = place(messages=SAID)
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def address(chat_address):
    return chat_address


@pytest.fixture(scope="module")
def written(chat_runs):
    """The ids of the greedy answer to SAID, and those before it."""
    lm, tokenizer, ids = opened(chat_runs)
    return generate(lm, torch.tensor([ids]), 8, temperature=0, stop_ids=tokenizer.stop_ids)[0, len(ids) :].tolist(), ids


def answered(page, number=0):
    """Wait for an answer, and what is said about it; its tokens."""
    answer = page.locator(".answer").nth(number)
    answer.locator(".answer-status", has_text="ln p").wait_for()
    return answer.locator(".of-answer")


def head(page, layer, number):
    return page.locator(".head-cell").nth(4 * layer + number)


def choose(page, token):
    token.click()
    page.locator(".looks-at .looks").wait_for()


def saved(page, words):
    with page.expect_download() as download:
        page.get_by_role("button", name=words, exact=True).click()
    return download.value.path().read_bytes()


# Keeps what an image is loaded from.
KEEP_PICTURES = """Object.defineProperty(HTMLImageElement.prototype, "src", {
  set(data) { window.picture = data; this.setAttribute("src", data); } });"""


def kept(page):
    """The answers, as "Save" keeps them."""
    return json.loads(saved(page, "Save data"))["answers"]


def test_an_answer_is_the_models_own_and_shows_what_it_looked_at(browser, address, chat_runs, written):
    answer, ids = written
    with visited(browser, address, CHAT) as page:
        page.get_by_label("Your message").fill(SAID[0]["content"])
        page.keyboard.press("Enter")
        tokens = answered(page)
        choose(page, tokens.nth(3))
        (told,) = kept(page)
        assert (ids_of(told["prompt"]), ids_of(told["tokens"])) == (ids, answer)
        lm, _, _ = opened(chat_runs)
        weights = capture(lm, torch.tensor([ids + answer])).weights[:, 0, :, len(ids) + 2]
        place = int(weights.mean((0, 1)).argmax())
        line = page.locator(".looks-at").text_content()
        assert f"({place}) {100 * weights.mean((0, 1))[place]:.1f} %, " in line or f"({place}) " in line.split("·")[0]
        assert "the mean of all heads" in line
        head(page, 1, 2).click()
        page.locator(".looks-at", has_text="head L1 H2").wait_for()
        assert f"({int(weights[1, 2].argmax())}) " in page.locator(".looks-at").text_content().split("·")[0]
        assert saved(page, "Save picture").startswith(b"\x89PNG")
        link = page.url
    with visited(browser, address, "#" + link.partition("#")[2]) as page:
        assert answered(page).all_text_contents()  # the link asks the same again
        assert head(page, 1, 2).get_attribute("aria-pressed") == "true"


def test_an_alternative_is_gone_on_from(browser, address, chat_runs, written):
    answer, ids = written
    with visited(browser, address, ASKED) as page:
        choose(page, answered(page).nth(2))
        page.locator(".alternative").nth(1).click()
        page.locator(".of-answer.forced").wait_for()
        answered(page)
        told = kept(page)[0]["tokens"]
        lm, tokenizer, _ = opened(chat_runs)
        forced = ids_of(told[:3])
        assert forced[:2] == answer[:2]
        assert forced[2] == told[2]["top_logprobs"][1]["id"] != answer[2]
        rest = generate(lm, torch.tensor([ids + forced]), 8, temperature=0, stop_ids=tokenizer.stop_ids)
        assert ids_of(told[3:]) == rest[0, len(ids) + 3 :].tolist()


def test_heads_that_are_off_give_a_second_answer_beside_the_first(browser, address):
    with visited(browser, address, ASKED) as page:
        first = answered(page).all_text_contents()
        head(page, 0, 1).click()
        page.get_by_role("button", name="Switch off").click()
        page.locator(".answer-status b").wait_for()
        assert answered(page, 0).all_text_contents() == first
        assert answered(page, 1).count() > 0
        assert head(page, 0, 1).text_content() == "off"
        assert "switched off" in head(page, 0, 1).get_attribute("aria-label")
        with page.expect_response("**/v1/chat/completions"):
            page.get_by_label("Strength of layer 0, head 1").fill("0.5")
        page.locator(".answer-status b").wait_for()
        page.get_by_text("L0 H1 ×0.5").wait_for()
        assert '"heads":[{"layer":0,"head":1,"factor":0.5}]' in unquote_plus(page.url)
        choose(page, answered(page, 0).nth(1))
        page.get_by_text("With the heads changed:").wait_for()
        told = kept(page)
        assert told[1]["heads"] == [{"layer": 0, "head": 1, "factor": 0.5}]
        assert len(told[0]["differences"]) == len(told[0]["tokens"])
        page.get_by_role("button", name="All as trained").click()
        page.locator(".answers:not(.two)").wait_for()
        assert '"heads":[]' in unquote_plus(page.url)


def test_a_story_question_shows_the_right_answer(browser, address):
    with visited(browser, address, CHAT) as page:
        for number in (0, 1):
            page.get_by_role("button", name="Story question").click()
            right = get(address, "/chat/question", number=number).json()["reply"]
            page.locator(".right-answer", has_text=right).wait_for()
            assert f'"question":{number}' in unquote_plus(page.url)


def test_thoughts_stand_apart_and_sent_back_they_are_the_ids_of_training(browser, address, chat_runs):
    tokenizer = opened(chat_runs)[1]
    message, ids, following = thoughtful(tokenizer)
    with visited(browser, address, place(messages=SAID, begun=ids)) as page:
        answered(page)
        thoughts = "".join(page.locator(".of-answer.thought").all_text_contents())
        assert thoughts == f"<think>⏎\n{message.reasoning_content}⏎\n</think>"
        page.get_by_label("Your message").fill(AND_THEN)
        page.keyboard.press("Enter")
        for after in (lambda: None, page.reload):
            after()
            page.locator(".said", has_text=AND_THEN).wait_for()
            answered(page)
            assert ids_of(kept(page)[0]["prompt"]) == following


def test_a_picture_has_every_word_where_lines_wrap(browser, address):
    said = " ".join(f"word{i} fox" for i in range(60))
    with visited(browser, address, place(messages=[{"role": "user", "content": said}]), viewport=PHONE) as page:
        answered(page)
        shown = page.locator(".talk").evaluate("box => box.innerText")
        page.evaluate(KEEP_PICTURES)
        saved(page, "Save picture")
        svg = ElementTree.fromstring(unquote(page.evaluate("picture").partition(",")[2]))
        body = svg.find("{*}foreignObject/{*}body")
        drawn = "".join(body.itertext())
        assert "".join(shown.split()) in "".join(drawn.split())
        # as wide as on the screen, so its lines wrap at the same words
        width = page.locator(".talk").bounding_box()["width"]
        assert f"width: {width:g}px" in svg.find(".//*[@class='talk']").get("style")


def test_without_a_server_the_last_answer_stays_and_the_question_can_be_sent_again(browser, address):
    with closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(f"{address}/{ASKED}")
        before = answered(page).all_text_contents()
        page.route("**/v1/chat/completions", lambda route: route.abort())
        page.get_by_label("Your message").fill(AND_THEN)
        page.keyboard.press("Enter")
        page.locator("#problem").get_by_text("Is `python -m serve` still running?").wait_for()
        assert answered(page).all_text_contents() == before
        assert page.get_by_label("Your message").input_value() == AND_THEN
        page.unroute("**/v1/chat/completions")
        with page.expect_request("**/v1/chat/completions") as request:
            page.keyboard.press("Enter")
        messages = request.value.post_data_json["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        page.locator(".said", has_text=AND_THEN).wait_for()
        assert page.get_by_label("Your message").input_value() == ""


@pytest.mark.parametrize("talk", ['{"heads":5}', '{"heads":[null],"messages":"x"}', "5", "{"])
def test_an_address_of_another_kind_begins_a_new_conversation(browser, address, talk):
    with closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(f"{address}/#/chat/chat?talk={quote(talk)}")
        page.wait_for_selector("html[data-ready]")
        page.get_by_label("Your message").wait_for()
        assert not page.locator("#problem").is_visible()


def test_texts_stay_texts(browser, address):
    with visited(browser, address, place("text")) as page:
        page.get_by_label("A text, which the model continues").fill(HARMFUL + " \u202e\u0007 end")
        page.get_by_role("button", name="Continue it").click()
        answered(page)
        assert HARMFUL in page.locator(".said").text_content()
        assert "⟨U+202E⟩⟨U+0007⟩" in page.locator(".said").text_content()
        assert page.locator("#root img, #root script").count() == 0
        choose(page, page.locator(".of-answer").first)
        assert saved(page, "Save picture").startswith(b"\x89PNG")
        assert page.get_by_role("button", name="Story question").is_disabled()


def test_models_are_chosen_and_keep_the_conversation(browser, address):
    with visited(browser, address, ASKED) as page:
        first = answered(page).all_text_contents()
        page.get_by_label("Checkpoint").select_option("20")
        page.wait_for_url(lambda url: '"step":20' in unquote_plus(url))
        page.locator("html[data-ready]").wait_for()
        assert answered(page).all_text_contents() != first
        page.go_back()
        page.wait_for_url(lambda url: '"step":20' not in unquote_plus(url))
        answered(page)
        page.locator(".chat-bar select").nth(2).select_option("adapters")
        page.wait_for_url(lambda url: '"adapter":"adapters"' in unquote_plus(url))
        page.locator("html[data-ready]").wait_for()
        assert answered(page).all_text_contents() != first


def test_the_keyboard_is_enough(browser, address):
    with visited(browser, address, ASKED) as page:
        answered(page)
        page.locator(".answer-tokens").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("End")
        page.locator(".looks-at .looks").wait_for()
        box = page.locator(".answer-tokens").first
        selected = page.locator('.of-answer[aria-selected="true"]')
        assert selected.count() == 1
        assert box.get_attribute("aria-activedescendant") == selected.get_attribute("id")
        page.keyboard.press("Tab")  # the alternatives
        page.keyboard.press("Enter")
        page.locator(".of-answer.forced").wait_for()
        answered(page)
        page.locator(".head-cell").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert head(page, 1, 1).get_attribute("aria-pressed") == "true"


def test_in_chinese(browser, address):
    with visited(browser, address, ASKED, locale="zh-CN") as page:
        choose(page, answered(page).nth(2))
        head(page, 1, 1).click()
        page.get_by_role("button", name="关掉", exact=True).click()
        answered(page, 1)
        assert english_in(page) == []
