"""The page computes: its tokenizer and its network give what ours give, on any text."""

import pytest
import torch

from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.attention import capture
from eval.attention.controls import ablated
from eval.attention.page_model import described, packed, rounded
from eval.attention.viewer import write_viewer
from model import LanguageModel, ModelConfig
from tests.eval.viewer_helpers import chromium, snapshot, watched

TEXTS = [
    *("A fox named Tiko. Tiko saw", "Once there was", "", " ", "a", "the  end\n\n  of\tthe story  "),
    *("It's 12 o'clock, isn't it?", "3.14159 and 2,718  5", "naïve café", "你好，世界。床前明月光", "😀 x² ½ Ⅷ"),
    *("Привет, мир!", "don't 'quote' \"me\"", "UPPER lower MiXeD", "a\u00a0b\u2003c\u3000d", "tab\tand\r\nline"),
    *("<|bos|> is only text", "!!! ??? ... --- ###", "ko ko ko ko ko ko", "e\u0301 ﬁ ǅ"),
]
LEARN = ["A fox named Tiko saw the end of the story. It's 12 o'clock, 你好。"] * 3 + TEXTS


def model_of(kind, **changes):
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=384 if kind == "bpe" else None), LEARN)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    lm = LanguageModel(ModelConfig(**sizes | changes, intermediate_size=48, vocab_size=tokenizer.vocab_size))
    with torch.no_grad():  # an untrained layer adds nothing
        for weight in lm.parameters():
            if weight.ndim > 1:
                weight.normal_(std=weight.shape[1] ** -0.5)
    return lm, tokenizer


def agrees(page, lm, step, words, off=()):
    """Maps and logits of the page's first run are those of lm, without the heads that are off. Gives the ids."""
    ask = """([words, step, off]) => { const { own } = headlight.runs[0]; const ids = own.tokenizer.encode(words);
        const { weights, logits } = own.network(step).forward(ids, new Set(off));
        return [ids, Array.from(weights), Array.from(logits)]; }"""
    ids, weights, logits = page.evaluate(ask, [words, step, [f"{layer}.{head}" for layer, head in off]])
    with ablated(lm, off):
        maps = capture(lm, torch.tensor([ids])).weights[:, 0]
        assert torch.allclose(torch.tensor(weights, dtype=torch.float).view_as(maps), maps, atol=1e-4), words
        assert torch.allclose(torch.tensor(logits, dtype=torch.float), lm(torch.tensor([ids]))[0, -1], atol=1e-3), words
    return ids


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("bpe", {}),
        ("bpe", {"num_key_value_heads": 1, "qk_norm": False}),
        ("char", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    ],
    ids=["bpe", "MQA", "char, tied"],
)
def test_maps_and_probabilities_in_the_page_are_those_of_capture_on_twenty_texts(tmp_path, kind, changes):
    lm, tokenizer = model_of(kind, **changes)
    raw = b"".join(array.tobytes() for array in packed(lm))
    networks = {"r": (described(lm, tokenizer), {7: raw})}
    path = write_viewer([("r", [snapshot(7)])], tmp_path / "page.html", networks=networks)
    rounded(lm)
    with chromium() as browser, watched(browser, path.as_uri(), [path.as_uri()]) as page:
        for words in TEXTS:
            expected = tokenizer.first_ids + tokenizer.backend.encode(words, add_special_tokens=False).ids
            assert agrees(page, lm, 7, words) == expected, words
        agrees(page, lm, 7, TEXTS[0], [(1, 2), (0, 0)])
