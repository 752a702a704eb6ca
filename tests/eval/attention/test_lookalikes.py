"""Look-alikes: rows that differ only in how a word is written, and a shipped model on them."""

import pytest
import torch

from configs.files import ROOT
from data import load_tokenizer
from eval.attention.__main__ import main
from eval.attention.capture import capture
from eval.attention.lookalikes import lookalike_rows
from model import load
from tests.processes import run_main

DEMO = ROOT / "pretrained" / "demo"


def test_second_blocks_are_the_first_one_its_other_forms_and_other_words():
    tokenizer = load_tokenizer(DEMO)
    same, other_form, other_word = lookalike_rows(tokenizer, 128).values()

    def words(row):
        return [tokenizer.decode([token]).strip().lower() for token in row]

    for equal, form, word in zip(same.tolist(), other_form.tolist(), other_word.tolist(), strict=True):
        assert len(equal) == 51
        assert equal[1:26] == equal[26:] == form[1:26] == word[1:26]
        assert words(form[26:]) == words(equal[26:])
        assert not {*form[26:]} & {*equal}
        assert not {*words(word[26:])} & {*words(equal)}


def test_the_demo_finds_equal_tokens_and_no_other_forms():
    done = run_main(main, DEMO, "--lookalikes")
    assert done.returncode == 0, done.stderr
    name, *scores = [cell.strip() for cell in done.stdout.splitlines()[2].split("|")[1:-1]]
    layer, head = int(name[1]), int(name[4])
    expected = []
    for rows in lookalike_rows(load_tokenizer(DEMO), 128).values():
        weights = capture(load(DEMO), rows).weights[layer, :, head]  # (B, T, T)
        # the second block begins at 26: its token i looks for token i - 24, behind its partner
        looks = [weights[:, i, i - 24].mean() for i in range(26, 50)]
        expected.append(float(torch.stack(looks).mean()))
    assert [float(score) for score in scores] == pytest.approx(expected, abs=0.006)
    assert expected[0] > 0.4
    assert max(expected[1:]) < 0.04


def test_other_options_are_not_dropped_silently():
    done = run_main(main, DEMO, "--lookalikes", "--text", "the cat")
    assert (done.returncode, "give it alone" in done.stderr) == (2, True)


def test_a_vocabulary_without_two_forms_of_a_word_is_refused(tiny_directory):
    done = run_main(main, tiny_directory, "--lookalikes")
    assert done.returncode == 2
    assert "of its vocabulary have two forms, and 4 are needed" in done.stderr
