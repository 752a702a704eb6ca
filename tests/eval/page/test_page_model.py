"""The page computes: its tokenizer and its network give what ours give, on any text."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.command import InputError
from data import load_tokenizer
from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.attention import capture, snapshots
from eval.attention.__main__ import main
from eval.attention.controls import ablated
from eval.attention.inside import direct_logit_attribution
from eval.attention.probes import probe_from_text
from eval.config import AttentionConfig
from eval.page.page_model import described, packed, read_models, rounded
from eval.page.viewer import write_viewer
from model import LanguageModel, ModelConfig, load, save
from storyworld import tell
from tests.eval.page.viewer_helpers import chromium, snapshot, watched
from tests.processes import run_main

PRETRAINED = "pretrained/demo"
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


def unpacked(network, raw):
    """The model whose weights the page has at a step."""
    shapes = dict(network["shapes"])
    state = {}
    for name, shape in shapes.items():
        scales = np.frombuffer(raw[: 4 * shape[0]], np.float32)
        raw = raw[4 * shape[0] :]
        state[name] = torch.tensor(scales)
        if len(shape) > 1:
            codes = np.frombuffer(raw[: shape[0] * shape[1]], np.int8)
            raw = raw[shape[0] * shape[1] :]
            state[name] = torch.tensor(codes.reshape(shape) * scales[:, None])
    sizes = {"vocab_size": len(network["tokens"]), "intermediate_size": shapes["model.layers.0.mlp.up_proj.weight"][0]}
    lm = LanguageModel(ModelConfig(**network["config"], **sizes))
    lm.load_state_dict(state)
    return lm


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with 14 checkpoints, no two alike."""
    (lm, tokenizer), run = model_of("bpe", rms_norm_eps=1e-3), tmp_path_factory.mktemp("run")
    for step in range(14):
        lm.model.norm.weight.data.fill_(step)
        checkpoint = run / f"checkpoints/step_{step:08}"
        save(lm, checkpoint)
        tokenizer.save(checkpoint)
    return run


def test_the_page_has_the_rounded_weights_of_the_steps_that_were_asked_for(run):
    network, weights = read_models(run, [5, 2])
    assert list(weights) == [2, 5]
    for step, raw in weights.items():
        lm = unpacked(network, raw)
        expected = rounded(load(run / f"checkpoints/step_{step:08}"))
        assert lm.config.rms_norm_eps == expected.config.rms_norm_eps
        for name, weight in expected.state_dict().items():
            assert torch.equal(lm.state_dict()[name], weight), name
    every = list(read_models(run)[1])
    assert (len(every), every[0], every[-1]) == (12, 0, 13)
    with pytest.raises(InputError, match="there are 0, 1, 2"):
        read_models(run, [14])


@pytest.mark.parametrize(
    ("key", "value"), [("sliding_window", 8), ("qk_norm", "whole"), ("norm_position", "after"), ("num_experts", 4)]
)
def test_a_model_that_the_page_cannot_compute_is_refused_by_the_name_of_the_key(key, value):
    with pytest.raises(InputError, match=f"because of model.{key}$"):
        described(*model_of("char", **{key: value}, loadable_elsewhere=False))


def test_a_run_that_looked_at_some_heads_alone_gets_no_page_that_computes(run, tmp_path):
    lm = load(run / "checkpoints/step_00000001")
    tokenizer = load_tokenizer(run / "checkpoints/step_00000001")
    probes = [probe_from_text(tokenizer, "the cat", 64)]
    for heads, code in ((None, 0), ([1], 2)):
        look = snapshots.take_snapshot(lm, probes, AttentionConfig(heads=heads), (1, 0, 0.0))
        snapshots.write(look, run / "attention")
        done = run_main(main, run, "--compute", "1", "--out", tmp_path)
        assert done.returncode == code, done.stderr
    assert "eval.attention.heads" in done.stderr


def agrees(page, lm, step, words, off=()):
    """Maps and logits of the page's first run are those of lm, without the heads that are off, and
    so is what each head adds to the logit of a token.

    Gives the ids.
    """
    ask = """([words, step, off]) => { const { own } = headlight.runs[0]; const ids = own.tokenizer.encode(words);
        const { weights, logits } = own.network(step).forward(ids, new Set(off));
        const pushes = own.pushes(step, words, off, null, 7);
        return [ids, Array.from(weights), Array.from(logits), pushes]; }"""
    ids, weights, logits, pushes = page.evaluate(ask, [words, step, [f"{layer}.{head}" for layer, head in off]])
    with ablated(lm, off):
        maps = capture(lm, torch.tensor([ids])).weights[:, 0]
        assert torch.allclose(torch.tensor(weights, dtype=torch.float).view_as(maps), maps, atol=1e-4), words
        assert torch.allclose(torch.tensor(logits, dtype=torch.float), lm(torch.tensor([ids]))[0, -1], atol=1e-3), words
        heads = direct_logit_attribution(lm, torch.tensor([ids]), 7).heads[:, :, 0, -1]
        assert torch.allclose(torch.tensor(pushes), heads, atol=1e-3), words
    return ids


def test_in_stories_the_pages_weights_move_the_likeliest_tokens_share_by_three_points_at_most():
    lm = load(PRETRAINED)
    coarse = rounded(load(PRETRAINED))
    tokenizer = load_tokenizer(PRETRAINED)
    for index in range(4):
        text = tell(0, index, "validation").text
        ids = torch.tensor([tokenizer.first_ids + tokenizer.backend.encode(text, add_special_tokens=False).ids[:64]])
        share, best = lm(ids).softmax(-1).max(-1, keepdim=True)
        assert (coarse(ids).softmax(-1).gather(-1, best) - share).abs().max() < 0.03


@pytest.mark.slow
def test_a_page_with_one_step_opens_on_a_text_of_all_steps_and_reads_yours_at_a_click(tmp_path):
    lm, tokenizer = model_of("bpe")
    raw = b"".join(array.tobytes() for array in packed(lm))
    networks = {"r": (described(lm, tokenizer), {7: raw})}
    path = write_viewer([("r", [snapshot(3), snapshot(7)])], tmp_path / "page.html", networks=networks)
    with chromium() as browser, watched(browser, path.as_uri(), [path.as_uri()]) as page:
        assert page.input_value("#probe") == "repeated_2"
        assert not page.is_visible("#words")
        page.select_option("#probe", "own")
        page.type("#words", " Tiko")
        assert page.input_value("#words").endswith(" Tiko")
        assert not page.is_visible("#of-name")  # its example is gone
        page.click(".own-off")
        page.wait_for_selector(".next-title .soft:not(:empty)")
        assert "→" in page.text_content(".next")
        page.click(".own-all")
        assert "→" not in page.text_content(".next")


@pytest.mark.slow
def test_at_temperature_0_the_page_continues_a_text_as_the_model_does():
    lm = rounded(load(PRETRAINED))
    tokenizer = load_tokenizer(PRETRAINED)
    begin = "A fox named Belna met a bird. Then"
    path = (Path(__file__).resolve().parents[3] / "docs/demo_viewer.html").as_uri()
    with chromium() as browser, watched(browser, path, [path]) as page:
        page.fill("#words", begin)
        page.click("#continue")
        while len(page.input_value("#words")) < 70:
            page.wait_for_timeout(50)
        page.click("#continue")
        written = page.input_value("#words")
        titles = [token.get_attribute("title") for token in page.query_selector_all(".tokens .token")]
    words = begin
    ids = tokenizer.first_ids + tokenizer.backend.encode(begin, add_special_tokens=False).ids
    with torch.no_grad():
        while len(words) < len(written):
            ids.append(int(lm(torch.tensor([ids]))[0, -1].argmax()))
            words = tokenizer.decode(ids[1:])
    assert words == written
    with torch.no_grad():
        shares = lm(torch.tensor([ids]))[0, :-1].log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    bits = (-shares / math.log(2)).tolist()
    for title, expected in zip(titles[1:], bits, strict=True):
        assert float(title.split()[0]) == pytest.approx(expected, rel=0.01, abs=0.005), title  # three digits


def test_a_run_s_page_has_its_model_if_that_is_small_and_all_heads_were_measured(tmp_path):
    lm, tokenizer = model_of("bpe")
    for step in (3, 7):
        folder = tmp_path / "r/checkpoints" / f"step_{step:08d}"
        save(lm, folder)
        tokenizer.save(folder)
    whole = [snapshot(7)]
    about, weights = read_models(tmp_path / "r", snapshots=whole)
    assert list(weights) == [3, 7]
    assert about["config"]["num_attention_heads"] == 4
    assert list(read_models(tmp_path / "r", most_bytes=lm.num_parameters() * 1.5)[1]) == [7]  # the newest
    with pytest.raises(InputError, match="a page with the model would have"):
        read_models(tmp_path / "r", most_bytes=lm.num_parameters())
    with pytest.raises(InputError, match="a snapshot has only some"):
        read_models(tmp_path / "r", snapshots=[replace(snapshot(7), heads=[0])])


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
