"""Tokenizers: exact round trips, special strings are plain text, transformers gives the same ids."""

import pytest
from transformers import AutoTokenizer

from configs.loader import InputError
from data.config import TokenizerConfig
from data.tokenizer import SPECIAL_TOKENS, load_tokenizer, train_tokenizer

CORPUS = ["Once upon a time, there was a fox named Tiko.\n", "你好，世界。1234 emoji 🦊!\n\ttabs  and  spaces"] * 20
TEXTS = [*CORPUS[:2], "fox 2026", " <|bos|> is text here", "a<|im_end|>b", "  leading", "trailing \n\n", ""]


@pytest.fixture(params=["bpe", "char", "byte"])
def tokenizer(request):
    return train_tokenizer(TokenizerConfig(kind=request.param, vocab_size=384), CORPUS)


def test_special_tokens_come_first_and_the_size_is_a_multiple_of_64(tokenizer):
    assert [tokenizer.backend.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    assert tokenizer.vocab_size % 64 == 0
    assert tokenizer.backend.id_to_token(tokenizer.vocab_size - 1) is not None


@pytest.mark.parametrize("text", [*CORPUS[:2], "  fox 2", "Tiko\n\n"])
def test_known_text_comes_back_exactly(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_byte_level_tokenizers_know_every_text(kind):
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=320), ["only english"])
    for text in [*TEXTS, "ß ñ 日本語 \u200d\ufeff \x00 \x7f"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_strings_in_a_text_are_plain_text(tokenizer):
    ids = tokenizer.encode("<|bos|><|im_start|>")
    assert not set(ids) & {tokenizer.bos_id, tokenizer.eos_id, *range(4, len(SPECIAL_TOKENS))}


def test_a_character_never_seen_becomes_the_unknown_token():
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["abc"])
    assert tokenizer.encode("aXb")[1] == SPECIAL_TOKENS.index("<|unk|>")


def test_documents_have_a_first_and_a_last_token(tokenizer):
    ids = tokenizer.encode_documents(["fox"])[0]
    assert (ids[0], ids[-1]) == (tokenizer.bos_id, tokenizer.eos_id)
    assert ids[1:-1] == tokenizer.encode("fox")


def test_transformers_reads_the_directory_and_gives_the_same_ids(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in [t for t in TEXTS if "<|" not in t]:
        assert theirs(text).input_ids == tokenizer.encode(text)
        assert theirs.decode(theirs(text).input_ids, skip_special_tokens=True) == tokenizer.decode(
            tokenizer.encode(text)
        )
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (
        tokenizer.bos_id,
        tokenizer.eos_id,
        tokenizer.pad_id,
    )
    assert len(theirs) == tokenizer.vocab_size
    chat = theirs.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert chat == "<|bos|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    again = load_tokenizer(tmp_path)
    assert again.encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])


def test_labels_show_spaces_line_ends_and_parts_of_characters():
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    assert tokenizer.token_labels([tokenizer.bos_id, *tokenizer.encode("a \né")]) == [
        "<bos>",
        "a",
        "␣",
        "⏎",
        "⟨C3⟩",
        "⟨A9⟩",
    ]
    merged = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=320), ["aé"] * 9)
    assert "".join(merged.token_labels(merged.encode("aß"))) == "a⟨C3⟩⟨9F⟩"
    replacement = train_tokenizer(TokenizerConfig(kind="char"), ["\ufffd"])
    assert replacement.token_labels(replacement.encode("\ufffd")) == ["\ufffd"]
    chinese = train_tokenizer(TokenizerConfig(kind="char"), ["你好"])
    assert chinese.token_labels(chinese.encode("你好")) == ["你", "好"]


def test_a_path_without_a_tokenizer_says_so(tmp_path):
    with pytest.raises(InputError, match="holds no tokenizer.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="is not a tokenizer.json"):
        load_tokenizer(tmp_path)
