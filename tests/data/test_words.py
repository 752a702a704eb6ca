"""The longest word: in tokenizer.json, the same for transformers, and nothing that ordinary text would notice."""

import json
import time
from collections.abc import Callable
from functools import cache
from random import Random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from data.config import DataConfig, FilesSource, TokenizerConfig
from data.prepare import prepare
from data.reading.documents import read
from data.storyworld import tell_many
from data.tokenizer import Tokenizer, train_tokenizer
from data.words import FAR, LONGEST, cut, pre_tokenizer


def drawn(alphabet: str) -> Callable[[int], str]:
    """A function of a number of bytes: that much text, drawn from the alphabet."""
    return lambda size: "".join(Random(size).choices(alphabet, k=size // len(alphabet[-1].encode())))


TEXTS: dict[str, Callable[[int], str]] = {
    "one letter": drawn("a"),
    "DNA": drawn("ACGT"),
    "letters": drawn("abcdefghijklmnopqrstuvwxyz"),
    "Chinese": drawn("".join(map(chr, range(0x4E00, 0x9FA5)))),
    "Thai": drawn("กขคงจฉชซญดตถทธนบปผพฟมยรลวสหอฮ"),
    "digits": drawn("0123456789"),
    "punctuation": drawn("!?.,;:'"),
    "apostrophes": drawn("'sstrevmld"),
    "spaces": lambda size: " " * size + "x",
    "line ends": lambda size: "\n" * size + "x",
    "white space": lambda size: drawn(" \t\r\n\u2028\u3000")(size) + "x",
    "emoji": drawn("🦊🏳🌈👩👧👦"),
    "combining marks": lambda size: "e" + "\u0301" * (size // 2),
    "base64": drawn("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"),
}


def prose(size: int) -> str:
    """Stories of the built-in world."""
    text = "\n".join(story.text for story in tell_many(0, 0, size // 400))
    return text[:size]


KINDS = ["bpe", "byte", "char"]
ALPHABET = "a'sréZ 中07½!|\n\t\u3000🦊\u0301"


@cache
def trained(kind):
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=512), [prose(20_000), *ALPHABET])


def unlimited():
    """What our tokenizers did before words had a longest one: GPT-2's pattern as it is."""
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    return tokenizers.pre_tokenizers.Sequence([digits, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])


@given(st.text(alphabet=ALPHABET, max_size=60))
@settings(derandomize=True, max_examples=500, deadline=None)
def test_words_of_ordinary_length_are_those_of_gpt2(text):
    assert pre_tokenizer().pre_tokenize_str(text) == unlimited().pre_tokenize_str(text)


def test_a_word_has_at_most_the_longest_length_and_the_space_before_it():
    for text in TEXTS.values():
        words = pre_tokenizer().pre_tokenize_str("x " + text(20_000))
        assert max(end - start for _, (start, end) in words) <= LONGEST + 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEXTS)
def test_transformers_gives_a_saved_tokenizer_s_ids_for_long_words(kind, name, tmp_path):
    tokenizer = trained(kind)
    tokenizer.save(tmp_path)
    text = f"fox {TEXTS[name](6_000)} fox"
    assert AutoTokenizer.from_pretrained(tmp_path)(text).input_ids == [tokenizer.bos_id, *tokenizer.encode(text)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEXTS)
def test_the_pieces_of_a_text_without_spaces_have_its_ids(kind, name):
    tokenizer = trained(kind)
    text = TEXTS[name](8 * FAR)[: 2 * FAR]
    pieces = tokenizer.pieces(text, FAR // 4)
    assert "".join(pieces) == text
    assert len(pieces) > 1 or kind == "bpe" or len(text) <= FAR * 5 // 4
    whole = tokenizer.backend.encode(text, add_special_tokens=False).ids
    assert [i for piece in pieces for i in tokenizer.encode(piece)] == whole == tokenizer.encode(text)


def test_a_tokenizer_of_others_takes_a_long_word_whole():
    others = tokenizers.Tokenizer.from_str(trained("bpe").backend.to_str())
    others.pre_tokenizer = unlimited()
    text = "a" * 3 * FAR
    assert Tokenizer(others).pieces(text) == [text]
    assert Tokenizer(others).encode(text) == others.encode(text).ids


def test_cutting_takes_time_linear_in_the_text():
    def seconds(size):
        before = time.process_time()
        cut(" " * size, 1000, anywhere=True)
        return time.process_time() - before

    assert seconds(8_000_000) < 100 * max(seconds(800_000), 0.01)  # ten times as much, with room for noise


@pytest.mark.slow
def test_a_long_document_is_prepared_in_pieces_and_stays_one_document(tmp_path):
    texts = ["ab" * 2_000_000, *(f"fox {i}" for i in range(50))]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = TokenizerConfig(kind="bpe", vocab_size=512)
    config = DataConfig(source=FilesSource(kind="files", path=str(tmp_path / "a.jsonl")), tokenizer=tokenizer)
    data = prepare(config, tmp_path / "out", show_progress=False)
    expected = {"train": [], "validation": []}
    for document in read(config):
        expected[document.split] += data.tokenizer.encode_documents([document.content])[0]
    for split, ids in expected.items():
        stream = data.stream(split)
        assert stream.read(0, len(stream)).tolist() == ids
    assert sum(data.manifest[split]["documents"] for split in expected) == len(texts)
