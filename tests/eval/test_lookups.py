"""Right answers are counted right, whatever the tokenizer; where a head looks is summed over the
right words.
"""

import json

import pytest
import torch

from data.config import StoryworldSource, TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.attention.capture import capture
from eval.attention.controls import ablated
from eval.lookups import figures, half_at, held_out, lookups, main, right
from model import LanguageModel, ModelConfig
from storyworld import recall
from tests.conftest import random_model
from tests.eval.scoring import command
from tests.train.helpers import metrics, pretrain, write_config

SHAPE = {"people": 4, "facets": 2, "values": 3, "questions": 10, "several": 0.5}
SOURCE = StoryworldSource(recall=SHAPE)
BYTES = train_tokenizer(TokenizerConfig(kind="byte"), [])
DOCUMENTS = [recall(0, i, SOURCE.recall, held_out=True) for i in range(5)]
EXAM = held_out(SOURCE, BYTES, 5)


class Knows(LanguageModel):
    """Says each next token of the exam for certain, but for those in `errs`."""

    errs: torch.Tensor

    def __call__(self, input_ids, **_):
        said = torch.where(self.errs, (EXAM.ids + 1) % 256, EXAM.ids)
        return torch.nn.functional.one_hot(torch.roll(said, -1, dims=1), self.config.vocab_size).float()


def test_the_tokens_of_an_exam_are_those_of_the_documents():
    for row, document in enumerate(DOCUMENTS):
        ids = [BYTES.bos_id, *BYTES.encode(document.text)]
        assert EXAM.ids[row, : len(ids)].tolist() == ids
        assert set(EXAM.ids[row, len(ids) :].tolist()) <= {BYTES.pad_id}
    for row, first, last, asked in zip(EXAM.row, EXAM.first, EXAM.last, EXAM.questions, strict=True):
        assert BYTES.decode(EXAM.ids[row, first : last + 1].tolist()) == f" {DOCUMENTS[row].words[asked.word]}"


def test_an_answer_is_right_if_each_of_its_tokens_is():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    lm = Knows(ModelConfig(vocab_size=BYTES.vocab_size, **sizes))
    lm.errs = torch.zeros_like(EXAM.ids, dtype=torch.bool)
    assert right(lm, EXAM).all()
    lm.errs[EXAM.row[3], EXAM.last[3]] = True  # the last letter of one answer
    lm.errs[EXAM.row[7], EXAM.first[7] - 1] = True  # a letter before another one
    found = right(lm, EXAM)
    spans = zip(EXAM.row, EXAM.first, EXAM.last, strict=True)
    assert found.tolist() == [not lm.errs[row, first : last + 1].any() for row, first, last in spans]
    assert (found[3], found[7]) == (False, True)


def test_the_figures_are_shares_of_each_sort_of_question():
    answers = torch.tensor([question.needs == 2 for question in EXAM.questions])
    found = figures(EXAM, answers)
    assert (found["needs_2"], found["needs_1"], found["one"], found["chance"]) == (1.0, 0.0, 0.0, 0.25)
    several = sum(question.kind == "several" for question in EXAM.questions)
    assert found["several"] == pytest.approx(answers.sum().item() / several)
    assert found["accuracy"] == pytest.approx(answers.float().mean().item())
    near = figures(EXAM, torch.tensor([question.distance <= 8 for question in EXAM.questions]))
    assert (near["distance_8"], near["distance_16"]) == (1.0, 0.0)


def test_attention_is_summed_over_each_sort_of_person_and_every_head_is_ablated():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    lm = random_model(ModelConfig(vocab_size=BYTES.vocab_size, **sizes))
    sums = {}
    weights = capture(lm, EXAM.ids).weights
    several = [i for i, asked in enumerate(EXAM.questions) if asked.kind == "several"]
    for i in several:
        document = DOCUMENTS[int(EXAM.row[i])]
        *clues, name = document.words[EXAM.questions[i].word - 2 : EXAM.questions[i].word + 1]
        text = ""
        for person in range(4):
            fact = document.words[3 * person : 3 * person + 3]
            begin = len(text) + 1
            text = text + "".join(f" {word}" for word in fact)
            sort = "right" if fact[0] == name else bool({*clues} & {*fact})
            share = weights[:, int(EXAM.row[i]), :, int(EXAM.first[i]) - 1, begin : len(text) + 1].sum(-1)
            sums.setdefault(sort, []).append(share)
    attention, without = lookups(lm, EXAM)
    for place, sort in enumerate(("right", True, False)):
        assert torch.allclose(attention[..., place], torch.stack(sums[sort]).mean(0), atol=1e-5)
    assert without.shape == (2, 4)
    with ablated(lm, [(1, 2)]):
        assert without[1, 2] == right(lm, EXAM)[several].float().mean()


@pytest.mark.slow
def test_a_run_asks_while_it_learns_and_says_when_half_was_right(tmp_path):
    source = {"kind": "storyworld", "documents": 40, "validation_documents": 8, "recall": SHAPE}
    changes = {"data": {"source": source}, "eval": {"hooks": ["validation", "recall"], "every": 2}}
    pretrain(write_config(tmp_path, train={"max_steps": 4}, **changes))
    run = tmp_path / "runs" / "tiny"
    lines = metrics(run, "recall")
    assert [line["step"] for line in lines] == [0, 2, 4]
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))["recall"]
    assert (result["accuracy"], result["half_at_step"]) == (lines[-1]["accuracy"], None)
    lines = [{"step": step, "accuracy": accuracy} for step, accuracy in ((0, 0.0), (20, 0.5), (40, 0.6), (60, 0.4))]
    assert (half_at(lines), half_at(lines[:2])) == (40, None)
    code, out, _ = command(run, "--documents", 2, main=main)
    assert (code, out.count("| layer ")) == (0, 8)
