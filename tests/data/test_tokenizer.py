"""Tokenizers: exact round trips, special strings are plain text, transformers gives the same ids."""

import json

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import models
from transformers import AutoTokenizer

from configs.command import InputError
from data.chat import prompt_ids
from data.config import TokenizerConfig
from data.tokenizer import LONGEST, SPECIAL_TOKENS, Tokenizer, cut, load_tokenizer, pre_tokenizer, train_tokenizer
from tests.data.test_chat import sentencepiece_like

CORPUS = ["Once upon a time, there was a fox named Tiko.\n", "你好，世界。1234 emoji 🦊!\n\ttabs  and  spaces"] * 20
TEXTS = [*CORPUS[:2], "fox 2026", " <|bos|> is text here", "a<|im_end|>b", "  leading", "trailing \n\n", ""]


@pytest.fixture(params=["bpe", "char", "byte"])
def tokenizer(request):
    return train_tokenizer(TokenizerConfig(kind=request.param, vocab_size=384), CORPUS)


@pytest.fixture(scope="module", params=["bpe", "byte"])
def saved(request, tmp_path_factory):
    """A byte-level tokenizer, and transformers' reading of its directory."""
    folder = tmp_path_factory.mktemp(request.param)
    corpus = [*CORPUS, "def f(x):\n    return x  # 数字 42\n", "Ελληνικά, русский, العربية, हिन्दी, 日本語, 한국어"] * 5
    tokenizer = train_tokenizer(TokenizerConfig(kind=request.param, vocab_size=1024), corpus)
    tokenizer.save(folder)
    return tokenizer, AutoTokenizer.from_pretrained(folder)


HARD = ["你好，世界。中文分词，没有空格；标点！", "🦊🏳️‍🌈👩‍👩‍👧‍👦 e\u0301 \u200d \ufeff \u2028", " ", "   ", "\n\n\n"]
HARD += ["\r\n\t \n x  y   z\n ", "\x00\x7f\x80\uffff\U0010ffff", "don't we'll I'M 12345 3.14 x=1_000"]


# what looks like a special token is one for transformers, and hypothesis knows the constants of
# this project
@given(text=st.text().filter(lambda text: not any(token in text for token in SPECIAL_TOKENS)) | st.sampled_from(HARD))
@settings(
    derandomize=True, max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_text_has_transformers_ids_and_comes_back_exactly(saved, text):
    tokenizer, theirs = saved
    ids = tokenizer.encode(text)
    assert [tokenizer.bos_id, *ids] == theirs(text).input_ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode()


def test_every_kind_of_tokenizer_knows_the_bytes_of_each_token():
    roles = dict.fromkeys(("pad_token", "bos_token", "eos_token"), "<s>")
    # as Llama 2, Mistral and Gemma have it
    fallback = Tokenizer(sentencepiece_like("prepend"), roles)
    assert not fallback.can_cut  # it adds spaces
    text = "hi é 你 hi🦊"
    byte, char = (train_tokenizer(TokenizerConfig(kind=kind), [text]) for kind in ("byte", "char"))
    for tokenizer in (fallback, byte, char):
        ids = tokenizer.encode(text)
        own = [tokenizer.decode_bytes([token]) for token in ids]
        assert b"".join(own).decode().strip() == text
        assert tokenizer.decode_bytes([tokenizer.bos_id]) == b""
        assert b"\xbd" in own or tokenizer.decode(ids[-1:]) == "🦊"
    assert char.encode("hXi")[1] == SPECIAL_TOKENS.index("<|unk|>")  # never seen


@given(st.text(alphabet="ab \n\t0'é你🦊<|>", max_size=80), st.integers(1, 9))
@settings(derandomize=True, max_examples=300, deadline=None)
def test_the_ids_of_the_pieces_of_a_text_are_the_ids_of_the_text(saved, text, length):
    tokenizer = saved[0]
    pieces = cut(text, length)
    assert tokenizer.can_cut
    assert "".join(pieces) == text
    assert [i for piece in pieces for i in tokenizer.encode(piece)] == tokenizer.encode(text)


@given(st.text(alphabet="a'sréZ 中07½!|\n\t\u3000🦊\u0301", max_size=60))
@settings(derandomize=True, max_examples=500, deadline=None)
def test_words_of_ordinary_length_are_those_of_gpt2(text):
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2 = tokenizers.pre_tokenizers.Sequence([digits, byte_level])
    assert pre_tokenizer().pre_tokenize_str(text) == gpt2.pre_tokenize_str(text)


@pytest.mark.parametrize("unit", ["a", "中", " ", "!", "é7"])
def test_a_long_word_is_cut_and_transformers_cuts_it_alike(saved, unit):
    tokenizer, theirs = saved
    text = f"fox {unit * 6_000} fox"
    assert max(end - start for _, (start, end) in pre_tokenizer().pre_tokenize_str(text)) <= LONGEST + 1
    assert theirs(text).input_ids == [tokenizer.bos_id, *tokenizer.encode(text)]


# Pretrained ones


def gpt2_like(folder, **roles):
    """A byte-level tokenizer.json as others save it: one special token, no padding token, 300 and
    odd ids, and a first token of its own.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=301, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    first = {"single": "<|endoftext|> $A", "special_tokens": [("<|endoftext|>", 0)]}
    backend.post_processor = tokenizers.processors.TemplateProcessing(**first)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return backend


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({}, ("<|pad|>", "<|bos|>", "<|eos|>")),
        ({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}, ("<|pad|>", "<|bos|>", "<|endoftext|>")),
        (
            {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>", "bos_token": None},
            ("<|endoftext|>", "<|bos|>", "<|im_end|>"),
        ),
    ],
)
def test_a_pretrained_tokenizer_keeps_its_ids_and_gets_what_it_lacks(tmp_path, roles, expected):
    theirs = gpt2_like(tmp_path, **roles)
    tokenizer = train_tokenizer(TokenizerConfig(kind="pretrained", path=str(tmp_path)), [])
    assert tuple(tokenizer.roles[role] for role in ("pad_token", "bos_token", "eos_token")) == expected
    assert tokenizer.vocab_size % 64 == 0
    for text in [*CORPUS, *HARD]:
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False).ids
    for token, token_id in theirs.get_vocab().items():
        assert tokenizer.backend.token_to_id(token) == token_id
    assert tokenizer.encode("<|bos|><|im_start|>")[0] not in tokenizer.special_ids
    larger = train_tokenizer(TokenizerConfig(kind="pretrained", path=str(tmp_path), vocab_size=1000), [])
    assert larger.vocab_size == 1024
    # no model has rows for so many
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 10**30}))
    assert train_tokenizer(TokenizerConfig(kind="pretrained", path=str(tmp_path)), []).vocab_size == 320
    (tmp_path / "config.json").unlink()
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    hub = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert (again.pad_id, again.bos_id, again.eos_id) == (hub.pad_token_id, hub.bos_token_id, hub.eos_token_id)
    assert hub(CORPUS[1]).input_ids == [again.bos_id, *again.encode(CORPUS[1])]


def test_a_tokenizer_is_refused_that_has_gaps_or_knows_its_special_tokens_as_text(tmp_path):
    """A Unigram model finds the pieces <s> and </s> in what a person typed."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *((letter, -1.0) for letter in "▁abcxy<>/|")]
    unigram = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    unigram.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    unigram.add_special_tokens(["<s>", "</s>"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    gaps = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "</s>": 70_000}, "<s>"))
    for backend, reason in ((unigram, "would get the id of the special token"), (gaps, "gaps")):
        backend.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(InputError, match=reason):
            train_tokenizer(TokenizerConfig(kind="pretrained", path=str(tmp_path)), [])


@pytest.mark.parametrize(("name", "content"), [("tokenizer_config.json", "["), ("tokenizer.json", "{}")])
def test_a_damaged_directory_is_one_clear_line(tokenizer, tmp_path, name, content):
    tokenizer.save(tmp_path)
    (tmp_path / name).write_text(content)
    for path in (tmp_path, tmp_path.parent):  # where there is none at all
        for read in (
            load_tokenizer,
            lambda path: train_tokenizer(TokenizerConfig(kind="pretrained", path=str(path)), []),
        ):
            with pytest.raises(InputError, match=name if path == tmp_path else "tokenizer.json"):
                read(path)


def test_transformers_reads_the_directory_and_gives_the_ids_of_training(tokenizer, tmp_path):
    """Every document of training begins with the bos token, so a text does; a rendered chat has one
    already.
    """
    tokenizer.save(tmp_path, context_length=100)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert theirs.model_max_length == 100
    for text in [t for t in TEXTS if "<|" not in t]:
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids
        assert theirs(text).input_ids == [tokenizer.bos_id, *ids]
        assert theirs(text, add_special_tokens=False).input_ids == ids
        assert theirs.decode(theirs(text).input_ids, skip_special_tokens=True) == tokenizer.decode(ids)
    assert [tokenizer.backend.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    assert tokenizer.vocab_size % 64 == 0
    ours = tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.vocab_size
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id, len(theirs)) == ours
    messages = [{"role": "user", "content": "hi"}]
    encoded = theirs.apply_chat_template(messages, add_generation_prompt=True)
    assert encoded["input_ids"] == prompt_ids(tokenizer, messages)
    chat = tokenizer.decode(encoded["input_ids"], skip_special_tokens=False)
    assert chat == "<|bos|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_what_transformers_saves_is_the_same_tokenizer(kind, tmp_path):
    """It adds how it padded last, how it cut, and (to a file without one) a post-processor: none of
    it decides ids.
    """
    ours = train_tokenizer(TokenizerConfig(kind=kind), CORPUS)
    ours.save(tmp_path / "ours")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "ours")
    theirs(["fox", "fox fox"], padding=True, truncation=True, max_length=2)
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_tokenizer(tmp_path / "theirs")
    assert again.sha256() == ours.sha256()
    assert again.encode_documents(CORPUS) == ours.encode_documents(CORPUS)
    other = train_tokenizer(TokenizerConfig(kind=kind), [*CORPUS, "ẞ" * 9])
    # whose ids are the same for any text
    assert (other.sha256() == ours.sha256()) == (kind == "byte")
