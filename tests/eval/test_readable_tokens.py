"""The labels of tokens in pictures: every character is shown whole, however it is cut."""

import re

from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.attention.probes import probe_from_text, readable_tokens

CHINESE = "小猫看见一只鸟。鸟飞走了，小猫很伤心。"


def test_chinese_is_whole_however_it_is_cut():
    byte = train_tokenizer(TokenizerConfig(kind="byte"), [])
    ids = byte.encode("a你好 b")
    assert readable_tokens(byte, ids) == ["a", "⟨E4⟩", "⟨BD⟩", "你", "⟨E5⟩", "⟨A5⟩", "好", "␣", "b"]
    assert readable_tokens(byte, [byte.bos_id, *byte.encode("你")[:2], byte.eos_id, byte.encode("你")[2]]) == [
        "<bos>",
        "⟨E4⟩",
        "⟨BD⟩",
        "<eos>",
        "⟨A0⟩",  # the character was cut by the end of the document: it is none
    ]
    assert readable_tokens(byte, byte.encode("好")[1:] + byte.encode("你")) == ["⟨A5⟩", "⟨BD⟩", "⟨E4⟩", "⟨BD⟩", "你"]
    char = train_tokenizer(TokenizerConfig(kind="char"), [CHINESE, "é\ufffd"])
    assert readable_tokens(char, char.encode("小猫é\ufffd")) == ["小", "猫", "é", "\ufffd"]
    bpe = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=320), [CHINESE * 20])
    labels = probe_from_text(bpe, CHINESE, 256).labels[0][1:]
    shown = "".join(re.sub("⟨..⟩", "", label) for label in labels)
    assert shown == CHINESE
