"""Pieces of text: whole characters, nothing of a stop text, no tool calls; joined, they are the text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from serve.text import Piecewise


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=400), ["Tiko saw the kite. 狐狸 🦊 sang."] * 5)


def pieces(tokenizer, text, stops=(), has_tools=False):
    written, shown = Piecewise(tokenizer, stops, has_tools), []
    for token in tokenizer.encode(text):
        shown.append(written.add(token))
        if written.stopped:
            break
    return [*shown, written.end()], written


@settings(deadline=None, max_examples=150)
@given(
    st.text(st.sampled_from("Tiko a.狐🦊\n"), max_size=30),
    st.lists(st.text(st.sampled_from("Tiko 🦊"), min_size=1, max_size=4), max_size=3),
)
def test_what_is_shown_is_the_text_up_to_the_first_stop(tokenizer, text, stops):
    stops = [one for one in stops if not any(other in one for other in stops if other != one)]  # "ab" ends before "abc"
    shown, written = pieces(tokenizer, text, stops)
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    assert "".join(shown) == text[: min(places, default=len(text))]
    assert written.stopped == bool(places)


def test_half_a_character_waits_for_its_other_half(tokenizer):
    shown, _ = pieces(tokenizer, "a🐙b")  # an octopus was not in the text: it is four bytes
    assert "".join(shown) == "a🐙b"
    assert not any("\ufffd" in piece for piece in shown)


def test_a_tool_call_is_no_text(tokenizer):
    call = json.dumps({"name": "add", "arguments": {"a": 1}})
    ids = [*tokenizer.encode("Let me see."), tokenizer.special_id("<tool_call>"), *tokenizer.encode(f"\n{call}\n")]
    ids += [tokenizer.special_id("</tool_call>"), tokenizer.special_id("<tool_call>"), *tokenizer.encode("no JSON")]
    written = Piecewise(tokenizer, has_tools=True)
    assert "".join(map(written.add, ids)) + written.end() == "Let me see."
    (found,) = written.tool_calls()
    assert found["type"] == "function"
    assert found["function"] == {"name": "add", "arguments": '{"a": 1}'}
    without = Piecewise(tokenizer)
    for token in ids:
        without.add(token)
    assert without.tool_calls() == []


def test_an_answer_is_decoded_once(tokenizer, monkeypatch):
    written, ids = Piecewise(tokenizer, ["never"]), tokenizer.encode("Tiko 🦊 saw 你好。\n" * 20)
    with monkeypatch.context() as patched:
        patched.setattr(type(tokenizer), "decode", None)
        shown = "".join(map(written.add, ids))
    assert shown + written.end() == "Tiko 🦊 saw 你好。\n" * 20
