"""An answer taken apart: what the template wrote comes back, in pieces too, and nothing is lost."""

import json
from itertools import chain

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from data.chat import encode_conversations, prompt_ids, segments
from data.config import TokenizerConfig
from data.reading.messages import Message
from data.reading.records import checked_conversation, conversation_of
from data.reply import Reply, TextStream, read_call, read_reply
from data.tokenizer import Tokenizer, train_tokenizer
from tests.data.test_chat import STEADY, anything, conversations, sentencepiece_like, thoughts

CALL = '{"name": "weather", "arguments": {"city": "北京"}}'


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=400), ["Tiko saw the kite. 狐狸 🦊 sang."] * 5)


def ids_of(tokenizer, *parts):
    """Texts, and special tokens by their names, as ids."""
    known = {part: tokenizer.backend.token_to_id(part) for part in parts if part.startswith("<")}
    return list(chain.from_iterable([known[part]] if known.get(part) else tokenizer.encode(part) for part in parts))


def in_pieces(reply, ids):
    """(thoughts, content) as they come, and after the last token."""
    return [*map(reply.add, ids), reply.end()]


@settings(STEADY, max_examples=200)
@given(conversations(anything, anything | thoughts))
def test_what_was_rendered_comes_back_and_sent_back_it_is_training_s_ids(tokenizer, record):
    """As a client has it: every answer of the model in OpenAI's form, as JSON, in the messages of
    the next request.
    """
    conversation = conversation_of(record)
    ((trained, _),) = encode_conversations(tokenizer, [conversation])
    messages = []
    for number, message in enumerate(conversation.messages):
        if message.role != "assistant":
            messages.append({"role": message.role, "content": message.content})
            continue
        before = conversation.messages[:number] or [Message("system", "")]
        ((ids, _),) = encode_conversations(tokenizer, [checked_conversation([*before, message])])
        prompt = prompt_ids(tokenizer, before)
        answer = ids[len(prompt) : -2]
        reply = Reply(tokenizer, prompt, tools=True)
        reasoning, content = map("".join, zip(*in_pieces(reply, answer), strict=True))
        assert (reasoning, content) == (reply.reasoning_content, reply.content)
        assert (reasoning, content) == (message.reasoning_content, message.content)
        for call, given_call in zip(reply.tool_calls, message.tool_calls, strict=True):
            arguments = given_call["arguments"]
            assert call["name"] == given_call["name"]
            assert json.loads(call["arguments"]) == (json.loads(arguments) if isinstance(arguments, str) else arguments)
        # an empty thought is none, so a literal one after it would be read as the thoughts of the
        # message
        assume(reasoning or not content.startswith("<think>"))
        calls = [{"id": "call_1", "type": "function", "function": call} for call in reply.tool_calls]
        sent = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls}
        messages.append(json.loads(json.dumps(sent)))
    sent_back = checked_conversation(messages, record.get("tools", ()))
    assert segments(sent_back) == segments(conversation)
    assert encode_conversations(tokenizer, [sent_back])[0][0] == trained


@pytest.mark.parametrize(
    ("answer", "expected"),  # reasoning_content, content, and the calls that can be read
    [
        (["<think>", "\nHm.\n", "</think>", "\n\nYes."], ("Hm.", "Yes.", 0)),
        (["<think>", "Hm.", "</think>", "Yes."], ("Hm.", "Yes.", 0)),  # another template's
        (["<think>", "\nHm. It"], ("Hm. It", "", 0)),  # cut
        (["<think>", "A", "<think>", "B", "<tool_call>", "\n", "</think>", "C"], ("A<think>B<tool_call>", "C", 0)),
        (["Look.\n", "<tool_call>", f"\n{CALL}\n", "</tool_call>"], ("", "Look.", 1)),
        (["<tool_call>", CALL, "</tool_call>", "\n", "<tool_call>", CALL, "</tool_call>"], ("", "", 2)),
        (["A\n", "<tool_call>", "\n{no JSON\n", "</tool_call>"], ("", "A\n<tool_call>\n{no JSON\n</tool_call>", 0)),
        (["<tool_call>", "[" * 10_000, "</tool_call>"], ("", f"<tool_call>{'[' * 10_000}</tool_call>", 0)),
        (["Look.\n", "<tool_call>", f"\n{CALL}"], ("", f"Look.\n<tool_call>\n{CALL}", 0)),  # cut
        (["<tool_call>", "a", "<tool_call>", CALL, "</tool_call>"], ("", "<tool_call>a", 1)),
    ],
)
def test_whatever_stands_out_of_place_stays_text(tokenizer, answer, expected):
    ids = ids_of(tokenizer, *answer)
    reply = Reply(tokenizer, tools=True)
    reasoning, content = map("".join, zip(*in_pieces(reply, ids), strict=True))
    assert (reasoning, content, len(reply.tool_calls)) == expected
    whole = read_reply(tokenizer, [*ids, *ids_of(tokenizer, "<|im_end|>", "\n")], tools=True)
    assert (whole.message, whole.calls) == (reply.message, reply.calls)
    assert not read_reply(tokenizer, ids).calls  # nobody offered tools
    text = Reply(tokenizer, is_chat=False)  # as a text's continuation
    assert "".join(new.content for new in in_pieces(text, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("opened", "written", "expected"),
    [
        (["<think>", "\n"], "Hm.\n", ("Hm.", "Yes.")),
        (["<think>", "\n"], "\nHm.", ("\nHm.", "Yes.")),  # the thoughts' own line end
        (["<think>", "\nI see"], " it.\n", (" it.", "Yes.")),  # an answer that is continued
        # an earlier turn's
        (["<think>", "\nHm.\n", "</think>", "\n\n", "<|im_end|>"], None, ("", "\n\nYes.")),
    ],
)
def test_thoughts_may_be_opened_by_the_prompt(tokenizer, opened, written, expected):
    answer = [written, "</think>", "\n\nYes."] if written else ["\n\nYes." if opened[-1][0] == "<" else "Yes."]
    prompt = ids_of(tokenizer, "<|im_start|>", "assistant\n", *opened)
    reply = read_reply(tokenizer, ids_of(tokenizer, *answer), prompt)
    assert (reply.reasoning_content, reply.content) == expected


@settings(deadline=None, max_examples=150)
@given(
    st.text(st.sampled_from("Tiko a.狐🦊\n"), max_size=30),
    st.lists(st.text(st.sampled_from("Tiko 🦊"), min_size=1, max_size=4), max_size=3),
)
def test_content_ends_at_the_first_stop_and_thoughts_do_not(tokenizer, text, stops):
    # "ab" ends before "abc"
    stops = [one for one in stops if not any(other in one for other in stops if other != one)]
    for thought in ([], ["<think>", "\nTiko 🦊\n", "</think>", "\n\n"]):
        reply = Reply(tokenizer, stops=stops, tools=True)
        shown = []
        for token in [*ids_of(tokenizer, *thought), *tokenizer.encode(text)]:
            shown.append(reply.add(token))
            if reply.stopped:
                break
        places = [at for stop in stops if (at := text.find(stop)) >= 0]
        content = "".join(new.content for new in [*shown, reply.end()])
        assert content == text[: min(places, default=len(text))]
        assert reply.stopped == bool(places)


def test_arguments_keep_their_letters_as_they_were_written():
    for text, arguments in (
        (CALL.replace("北京", r"\u5317\u4eac"), r'{"city": "\u5317\u4eac"}'),
        ('{"arguments": {"city":"北京"}, "name": "weather"}', '{"city": "北京"}'),
        # as OpenAI writes them
        ('{"name": "weather", "arguments": "{\\"city\\": \\"北京\\"}"}', '{"city": "北京"}'),
        ('{"name": "weather"}', "{}"),
    ):
        assert read_call(text) == {"name": "weather", "arguments": arguments}


# --------------------------------------------------------------------------------------------------
# text while it comes: the pieces are decode(ids), no half character is shown, and nothing is
# decoded anew


# characters of one to four bytes, and pictures of several characters
TEXT = "Tiko 🦊 said 你好，世界。\n👩‍👩‍👧 é 🇨🇭\n"
KINDS = {
    kind: train_tokenizer(TokenizerConfig(kind=kind, vocab_size=320), [TEXT.replace("🦊", "狐")] * 5)
    for kind in ("bpe", "byte", "char")
}


def pieces(tokenizer, ids):
    stream = TextStream(tokenizer)
    return [*map(stream.add, ids)], stream.end()


@pytest.mark.parametrize("kind", KINDS)
def test_whole_characters_come_with_their_last_token_and_one_that_was_only_begun_at_the_end(kind):
    tokenizer = KINDS[kind]
    ids = [tokenizer.bos_id, *tokenizer.encode(TEXT), tokenizer.special_id("<|im_end|>")]
    shown, rest = pieces(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids)
    assert not rest
    assert not any("\ufffd" in piece for piece in shown)
    if kind == "byte":
        assert [piece for piece in shown if piece] == list(TEXT)  # each as soon as it is whole
        ids = tokenizer.encode("a🦊")[:-1]
        assert pieces(tokenizer, ids) == (["a", "", "", ""], tokenizer.decode(ids)[1:])


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(KINDS)), st.lists(st.integers(0, 319), max_size=40))
def test_any_ids_give_what_decode_gives(kind, ids):
    tokenizer = KINDS[kind]
    ids = [token % tokenizer.vocab_size for token in ids]
    shown, rest = pieces(tokenizer, ids)
    assert "".join(shown) + rest == tokenizer.decode(ids)


def test_byte_fallback_stays_in_step():
    """There a byte makes the bytes before it invalid after they were shown: nothing can take them
    back.
    """
    tokenizer = Tokenizer(sentencepiece_like("prepend"), dict.fromkeys(("pad_token", "bos_token", "eos_token"), "<s>"))
    ids = [tokenizer.backend.token_to_id(word) for word in ("▁hi", "▁", "<0xE7>", "<0x8B>", "<0x90>", "▁hi")]
    assert pieces(tokenizer, ids) == (["hi", " ", "", "", "狐", " hi"], "")
    bad = [tokenizer.backend.token_to_id(word) for word in ("<0x81>", "hi", "<0x05>", "<0xAA>", "hi", "▁hi")]
    shown, rest = pieces(tokenizer, bad)
    assert len("".join(shown) + rest) == len(tokenizer.decode(bad))
    assert shown[-1] == " hi"
