"""Notebooks 02 and 02b: their checks refuse learners' mistakes, and the translator translates."""

from __future__ import annotations

import re

import nbformat
import pytest
import torch
import torch.nn.functional as F

from configs import IGNORED
from model import LanguageModel, ModelConfig
from model.masks import causal
from notebooks import translator as translators
from notebooks.checks import positions_and_masks as checks
from notebooks.execute import SOLUTION
from notebooks.translator import BEGIN, END, LONGEST, PADDING, Translator, masks_of, spelled, words
from tests.notebooks.making import ROOT

# answer -> (a part of the notebook's solution, what a learner writes instead)
WRONG = {
    "rotate_pair": [
        ("(a * angle.cos() - b * angle.sin()", "(a * angle.cos() + b * angle.sin()"),
        ("b * angle.cos() + a * angle.sin()", "b * angle.cos() - a * angle.sin()"),
        ("b * angle.cos() + a * angle.sin()", "b * angle.sin() + a * angle.cos()"),
        ("(a * angle.cos() - b * angle.sin()", "(a * angle.sin() - b * angle.cos()"),
        ("b * angle.cos() + a * angle.sin()", "a * angle.cos() + b * angle.sin()"),
        ("b * angle.cos() + a * angle.sin()", "b + a * angle.sin()"),
        ("(a * angle.cos() - b * angle.sin()", "(a - b * angle.sin()"),
        ("b * angle.cos() + a * angle.sin()", "b * angle.cos()"),
        ("b * angle.cos() + a * angle.sin()", "a * angle.sin()"),
        ("(a * angle.cos() - b * angle.sin()", "(a * angle.cos()"),
        (", b * angle.cos() + a * angle.sin())", ")"),
        ("lambda a, b, angle: (", "lambda b, a, angle: ("),
        ("lambda a, b, angle: (", "lambda a, b, angle: print("),
    ],
    "my_rope": [
        ("torch.arange(0, D, 2) / D", "torch.arange(D // 2) / D"),
        ("torch.arange(0, D, 2) / D", "2 * torch.arange(0, D, 2) / D"),
        ("(-torch.arange(0, D, 2) / D)", "(torch.arange(0, D, 2) / D)"),
        ("10_000", "1_000"),
        ("positions[:, None]", "torch.arange(x.shape[2])[:, None]"),
        ("positions[:, None]", "(positions[:, None] + 1)"),
        ("a, b = x.chunk(2, dim=-1)", "a, b = x[..., ::2], x[..., 1::2]"),
        ("a, b = x.chunk(2, dim=-1)", "b, a = x.chunk(2, dim=-1)"),
        ("a * angles.cos() - b * angles.sin()", "a * angles.cos() + b * angles.sin()"),
        ("b * angles.cos() + a * angles.sin()", "b * angles.cos() - a * angles.sin()"),
        ("b * angles.cos() + a * angles.sin()", "b * angles.cos() + first * angles.sin()"),
        ("torch.cat((first, second), dim=-1)", "torch.cat((second, first), dim=-1)"),
        ("torch.cat((first, second), dim=-1)", "torch.stack((first, second), dim=-1).flatten(-2)"),
        ("torch.cat((first, second), dim=-1)", "torch.cat((first, second), dim=-2)"),
        ("return torch", "result = torch"),
        ("a, b = x.chunk(2, dim=-1)", "a, b = x.mul_(0.5).chunk(2, dim=-1)"),
    ],
    "my_sinusoidal": [
        ("torch.arange(0, size, 2) / size", "torch.arange(size // 2) / size"),
        ("torch.arange(0, size, 2) / size", "torch.arange(0, size, 2)"),
        ("(-torch.arange(0, size, 2) / size)", "(torch.arange(0, size, 2) / size)"),
        ("10_000", "1_000"),
        ("positions[:, None]", "(positions[:, None] + 1)"),
        ("positions[:, None]", "torch.arange(len(positions))[:, None]"),
        ("(angles.sin(), angles.cos())", "(angles.cos(), angles.sin())"),
        ("(angles.sin(), angles.cos())", "(angles.sin(), angles.sin())"),
        ("(angles.sin(), angles.cos())", "(angles.sin(), -angles.cos())"),
        ("(angles.sin(), angles.cos()), dim=1", "(angles.sin(), angles.cos()), dim=0"),
        ("torch.cat((angles.sin(), angles.cos()), dim=1)", "angles.sin()"),
        ("torch.cat((angles.sin(), angles.cos()), dim=1)", "angles.sin() + angles.cos()"),
        ("torch.cat((angles.sin(), angles.cos()), dim=1)", "torch.stack((angles.sin(), angles.cos()), 2).flatten(1)"),
        ("return torch", "result = torch"),
    ],
    "prefix_mask": [
        ("causal(queries, keys) | (keys < prompt)", "causal(queries, keys)"),
        ("causal(queries, keys) | (keys < prompt)", "(keys < prompt)"),
        ("| (keys < prompt)", "& (keys < prompt)"),
        ("| (keys < prompt)", "^ (keys < prompt)"),
        ("keys < prompt", "keys <= prompt"),
        ("keys < prompt", "keys > prompt"),
        ("keys < prompt", "keys < prompt - 1"),
        ("keys < prompt", "queries < prompt"),
        ("keys < prompt", "keys < 3"),
        ("causal(queries, keys)", "causal(keys, queries)"),
        ("causal(queries, keys) | (keys < prompt)", "(queries > keys) | (keys < prompt)"),
        ("causal(queries, keys) | (keys < prompt)", "(causal(queries, keys) | (keys < prompt)).float()"),
        ("causal(queries, keys) | (keys < prompt)", "~(causal(queries, keys) | (keys < prompt))"),
    ],
    "mended_mask": [
        ("(i >= j)", "(i > j)"),
        ("(i >= j)", "(i <= j)"),
        ("(i >= j) & ", ""),
        ("(i - j < window)", "(i - j <= window)"),
        ("(i - j < window)", "(i - j < window - 1)"),
        ("(i - j < window) & ", ""),
        ("(i - j < window)", "(j - i < window)"),
        ("real.bool()[None, :]", "real.bool()[:, None]"),
        (" & real.bool()[None, :]", ""),
        (" & real.bool()[None, :]", " | real.bool()[None, :]"),
        ("real.bool()[None, :]", "~real.bool()[None, :]"),
        ("real.bool()[None, :]", "real.bool()[None, :] & real.bool()[:, None]"),
        ("return (i", "mask = (i"),
    ],
    "safe_softmax": [
        ("scores.masked_fill(~mask, low)", "(scores * mask)"),
        ("torch.finfo(scores.dtype).min", "0.0"),
        ("torch.finfo(scores.dtype).min", "-1.0"),
        ("scores.masked_fill(~mask, low)", "scores"),
        ("scores.masked_fill(~mask, low)", "scores.masked_fill(mask, low)"),
        ("softmax(-1)", "softmax(0)"),
        ("weights.masked_fill(~mask.any(-1, keepdim=True), 0)", "weights"),
        ("mask.any(-1, keepdim=True)", "mask.all(-1, keepdim=True)"),
        ("~mask.any", "mask.any"),
        ("scores.masked_fill(~mask, low).softmax(-1)", "(scores + low * ~mask).softmax(-1).detach()"),
        ("scores.masked_fill(~mask, low).softmax(-1)", "scores.softmax(-1) * mask"),
        ("return weights.masked", "weights.masked"),
        (
            "weights.masked_fill(~mask.any(-1, keepdim=True), 0)",
            "(scores + torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)).softmax(-1).nan_to_num()",
        ),
    ],
    "three_masks": [
        ("source != 28", "source == 28"),
        ("source != 28", "source != 27"),
        ("source != 28", "source >= 0"),
        ("[:, None, None, :]", ""),
        ("[:, None, None, :]", "[:, None, :, None]"),
        ("[:, None, None, :]", "[:, None, None, :].float()"),
        (".tril()", ""),
        (".tril()", ".triu()"),
        (".tril()", ".tril(-1)"),
        (".tril()", ".tril(1)"),
        ("dtype=torch.bool", "dtype=torch.float"),
        ("real, decoder, real", "decoder, real, real"),
        ("real, decoder, real", "real, decoder"),
        ("real, decoder, real", "real, decoder, real & real.mT"),
        ("real, decoder, real", "real, decoder, torch.ones(1, 1, 1, 8, dtype=torch.bool)"),
        ("real, decoder, real", "torch.ones(1, 1, 1, 8, dtype=torch.bool), decoder, real"),
        ("real, decoder, real", "real, decoder, real & torch.ones(length, 8).tril().bool()"),
        ("real, decoder, real", "real & torch.ones(8, 8).tril().bool(), decoder, real"),
    ],
}

# answer -> other right answers
RIGHT = {
    "rotate_pair": [
        "def rotate_pair(a, b, angle):\n    z = torch.complex(a, b) * torch.polar(torch.ones(()), angle)\n"
        "    return z.real, z.imag",
    ],
    "my_rope": [
        "def my_rope(x, positions):\n    D = x.shape[-1]\n    exponents = torch.linspace(0, 1, D // 2 + 1)[:-1]\n"
        "    angles = torch.outer(positions, 10_000**-exponents).repeat(1, 2)\n"
        "    a, b = x[..., : D // 2], x[..., D // 2 :]\n"
        "    return x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()",
    ],
    "my_sinusoidal": [
        "def my_sinusoidal(positions, size):\n    out = torch.empty(len(positions), size)\n"
        "    for i in range(size // 2):\n        angle = positions / 10_000 ** (2 * i / size)\n"
        "        out[:, i], out[:, i + size // 2] = angle.sin(), angle.cos()\n    return out",
    ],
    "prefix_mask": ["prefix_mask = lambda queries, keys, prompt: keys <= queries.clamp(min=prompt - 1)"],
    "mended_mask": [
        "def mended_mask(window, real):\n    ones = torch.ones(len(real), len(real))\n"
        "    return ones.tril().triu(1 - window).bool() & (real == 1)",
    ],
    "safe_softmax": [
        "def safe_softmax(scores, mask):\n"
        "    return scores.masked_fill(~mask, -torch.inf).softmax(-1).masked_fill(~mask, 0)",
        "def safe_softmax(scores, mask):\n    exps = (scores - scores.max()).exp() * mask\n"
        "    return exps / exps.sum(-1, keepdim=True).clamp(min=1e-9)",
    ],
    "three_masks": [
        "def three_masks(source, length):\n    real = (source < 28)[:, None, None].expand(-1, 1, length, -1)\n"
        "    i = torch.arange(length)\n"
        "    return real[:, :, :1], (i[:, None] >= i).expand(len(source), 1, -1, -1), real",
    ],
}


def solution(name: str) -> str:
    """Return the solution of an exercise in notebook 02 or 02b."""
    for path in ("02_positions.ipynb", "02b_masks.ipynb"):
        for cell in nbformat.read(ROOT / "notebooks" / path, as_version=4).cells:
            match = SOLUTION.search(cell.source)
            if match and re.search(rf"^(?:def )?{name}\b", match[1], re.MULTILINE):
                return match[1]
    raise KeyError(name)


@pytest.fixture
def judge(monkeypatch):
    """Return a function that judges an answer in Python: "" or the sentence."""
    torch.manual_seed(0)
    shape = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    lm = LanguageModel(ModelConfig(**shape, num_key_value_heads="mha"))
    others = {"my_rope": (lm, torch.randint(16, (1, 12))), "three_masks": (Translator(),)}
    functions = {"my_rope": checks.rope, "my_sinusoidal": checks.sinusoidal}
    # the translator of this test is not trained
    monkeypatch.setattr(checks, "exact", lambda *_, **__: 1.0)

    def problem_of(name: str, code: str) -> str:
        variables = {"torch": torch, "causal": causal}
        exec(code, variables)
        check = functions.get(name) or getattr(checks, name)
        try:
            check(variables[name], *others.get(name, ()))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    return problem_of


@pytest.mark.parametrize("name", WRONG)
def test_a_check_accepts_the_solution_and_refuses_at_least_twelve_mistakes(name, judge):
    code = solution(name)
    for answer in (code, *RIGHT[name]):
        assert judge(name, answer) == "", answer
    assert len(WRONG[name]) >= 12
    for right, wrong in WRONG[name]:
        assert code.count(right) >= 1, right
        assert judge(name, code.replace(right, wrong)), wrong


# --------------------------------------------------------------------------------------------------
# the translator


def test_a_target_is_its_source_backwards_with_an_end():
    torch.manual_seed(0)
    source, target = words(50)
    assert source.shape == (50, LONGEST)
    assert target.shape == (50, LONGEST + 1)
    for word, backwards in zip(source, target, strict=True):
        length = int((word != PADDING).sum())
        assert spelled(backwards) == spelled(word)[::-1]
        assert backwards[length] == END
        assert (backwards[length + 1 :] == IGNORED).all()


def logits_of(translator: Translator, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    written = F.pad(target[:, :-1], (1, 0), value=BEGIN).clamp(min=0)
    with torch.no_grad():
        return translator(source, written, masks_of(source, written.shape[1]))


def test_a_letter_sees_no_later_letter_and_no_padding_but_all_of_the_source():
    torch.manual_seed(0)
    translator = Translator()
    source, target = words(20)
    usual = logits_of(translator, source, target)
    other = target.clone()
    other[:, 4] = (other[:, 4] + 1) % 26
    changed = (logits_of(translator, source, other) - usual).abs().amax(dim=(0, 2)) > 1e-5
    # the decoder reads letter 4 one place later
    assert changed.tolist() == [False] * 5 + [True] * 4
    weights = translator.cross.weights  # (B, T, S)
    assert torch.allclose(weights.sum(-1), torch.ones(20, LONGEST + 1))
    assert ((weights > 0) == (source != PADDING)[:, None]).all()
    last = (source != PADDING).sum(1, keepdim=True) - 1
    other = source.scatter(1, last, (source.gather(1, last) + 1) % 26)
    changed = (logits_of(translator, other, target) - usual).abs().amax(2) > 1e-5  # (B, T)
    assert changed.all(), "each written letter depends on the last letter of the source"


@pytest.mark.slow
def test_it_writes_99_words_of_100_backwards_by_its_cross_attention():
    translator, losses = translators.train()
    assert translators.exact(translator) >= 0.99
    source, _ = words(200)
    translators.generate(translator, source)
    along = []
    for word, weights in zip(source, translator.cross.weights, strict=True):
        length = int((word != PADDING).sum())
        along.append(weights[:length, :length].flip(1).diagonal().mean())
    # 0.19 for a map that reads all letters of a word alike
    assert torch.stack(along).mean() > 0.6, "the map is no anti-diagonal"
    peeking, its_losses = translators.train(without_mask)
    assert its_losses[-1] < losses[-1]
    assert translators.exact(peeking) < 0.1
    # the control: without what it reads from the encoder, it writes nothing right
    torch.nn.init.zeros_(translator.cross.o_proj.weight)
    assert translators.exact(translator) < 0.01


def without_mask(source: torch.Tensor, length: int) -> translators.Masks:
    everything = torch.ones(length, length, dtype=torch.bool)
    return masks_of(source, length)._replace(decoder=everything)
