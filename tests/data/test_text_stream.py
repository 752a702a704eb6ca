"""Text while it comes: the pieces are decode(ids), no half character is shown, and nothing is decoded anew."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from data.config import TokenizerConfig
from data.reply import TextStream
from data.tokenizer import BOS, EOS, PAD, Tokenizer, train_tokenizer

TEXT = "Tiko 🦊 said 你好，世界。\n👩‍👩‍👧 é 🇨🇭\n"  # characters of one to four bytes, and pictures of several characters
KINDS = {
    kind: train_tokenizer(TokenizerConfig(kind=kind, vocab_size=320), [TEXT.replace("🦊", "狐")] * 5)
    for kind in ("bpe", "byte", "char")
}


def byte_fallback():
    """As Llama 2 has it: an unknown character is written in bytes, and a text's first space is left out."""
    words = [PAD, BOS, EOS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁fox", "fox", "狐"]
    vocabulary = {word: i for i, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    backend.add_special_tokens([PAD, BOS, EOS])
    return Tokenizer(backend)


def pieces(tokenizer, ids):
    stream = TextStream(tokenizer)
    return [*map(stream.add, ids)], stream.end()


@pytest.mark.parametrize("kind", KINDS)
def test_whole_characters_come_with_their_last_token(kind):
    tokenizer = KINDS[kind]
    ids = [tokenizer.bos_id, *tokenizer.encode(TEXT), tokenizer.special_id("<|im_end|>")]
    shown, rest = pieces(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids)
    assert not rest
    assert not any("\ufffd" in piece for piece in shown)
    if kind == "byte":
        assert [piece for piece in shown if piece] == list(TEXT)  # each as soon as it is whole


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(KINDS)), st.lists(st.integers(0, 319), max_size=40))
def test_any_ids_give_what_decode_gives(kind, ids):
    tokenizer = KINDS[kind]
    ids = [token % tokenizer.vocab_size for token in ids]
    shown, rest = pieces(tokenizer, ids)
    assert "".join(shown) + rest == tokenizer.decode(ids)


def test_a_character_that_was_only_begun_comes_at_the_end():
    tokenizer = KINDS["byte"]
    ids = tokenizer.encode("a🦊")[:-1]
    assert pieces(tokenizer, ids) == (["a", "", "", ""], tokenizer.decode(ids)[1:])
    assert "\ufffd" in tokenizer.decode(ids)


def test_byte_fallback_stays_in_step():
    """There a byte makes the bytes before it invalid after they were shown: nothing can take them back."""
    tokenizer = byte_fallback()
    ids = [tokenizer.backend.token_to_id(word) for word in ("▁fox", "▁", "<0xE7>", "<0x8B>", "<0x90>", "▁fox")]
    assert pieces(tokenizer, ids) == (["fox", " ", "", "", "狐", " fox"], "")
    bad = [tokenizer.backend.token_to_id(word) for word in ("<0x81>", "fox", "<0x05>", "<0xAA>", "fox", "▁fox")]
    shown, rest = pieces(tokenizer, bad)
    assert len("".join(shown) + rest) == len(tokenizer.decode(bad))
    assert shown[-1] == " fox"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_decoded_anew(kind, monkeypatch):
    tokenizer = KINDS[kind]
    stream, ids = TextStream(tokenizer), tokenizer.encode(TEXT) * 20
    with monkeypatch.context() as patched:
        patched.setattr(Tokenizer, "decode", None)
        shown = [stream.add(token) for token in ids]
    assert "".join(shown) == tokenizer.decode(ids)
