"""Right answers are counted right, whatever the tokenizer; the phase change is the first look over one half."""

import json

import pytest
import torch
from eval.recall import exam, figures, half_at, right

from data.config import TokenizerConfig
from data.storyworld import recall
from data.tokenizer import train_tokenizer
from model import LanguageModel, ModelConfig
from tests.train.helpers import metrics, pretrain, write_config

SHAPE = {"people": 4, "facets": 2, "values": 3, "questions": 10, "several": 0.5}
BYTES = train_tokenizer(TokenizerConfig(kind="byte"), [])
DOCUMENTS = [recall(0, i, held_out=True, **SHAPE) for i in range(5)]


class Knows(LanguageModel):
    """Says each next token of `ids` for certain, but for those in `errs`."""

    ids: torch.Tensor
    errs: torch.Tensor

    def forward(self, input_ids, **_):
        said = torch.where(self.errs, (self.ids + 1) % 256, self.ids)
        following = torch.roll(said, -1, dims=1)
        return torch.nn.functional.one_hot(following, self.config.vocab_size).float()


def oracle(of, errs):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    lm = Knows(ModelConfig(vocab_size=BYTES.vocab_size, **sizes))
    lm.ids, lm.errs = of.ids, errs
    return lm


def test_the_tokens_of_an_exam_are_those_of_the_documents():
    of = exam(DOCUMENTS, BYTES, 4)
    for row, document in enumerate(DOCUMENTS):
        ids = [BYTES.bos_id, *BYTES.encode(document.text)]
        assert of.ids[row, : len(ids)].tolist() == ids
        assert set(of.ids[row, len(ids) :].tolist()) <= {BYTES.pad_id}
    for row, first, last, asked in zip(of.row, of.first, of.last, of.questions, strict=True):
        assert BYTES.decode(of.ids[row, first : last + 1].tolist()) == f" {DOCUMENTS[row].words[asked.word]}"


def test_an_answer_is_right_if_each_of_its_tokens_is():
    of = exam(DOCUMENTS, BYTES, 4)
    errs = torch.zeros_like(of.ids, dtype=torch.bool)
    assert right(oracle(of, errs), of).all()
    errs[of.row[3], of.last[3]] = True  # the last letter of one answer
    errs[of.row[7], of.first[7] - 1] = True  # a letter before another one
    found = right(oracle(of, errs), of)
    expected = [i for i in range(len(found)) if i != 3 and not errs[of.row[i], of.first[i] : of.last[i] + 1].any()]
    assert found.nonzero().flatten().tolist() == expected
    assert found[7]
    assert not found[3]


def test_the_figures_are_shares_of_each_sort_of_question():
    of = exam(DOCUMENTS, BYTES, 4)
    answers = torch.tensor([question.needs == 2 for question in of.questions])
    found = figures(of, answers)
    assert found["needs_2"] == 1.0
    assert found["needs_1"] == found["one"] == 0.0
    assert found["several"] == pytest.approx(answers.sum().item() / sum(one.kind == "several" for one in of.questions))
    assert found["accuracy"] == pytest.approx(answers.float().mean().item())
    assert found["chance"] == 0.25
    near = figures(of, torch.tensor([question.distance <= 8 for question in of.questions]))
    assert (near["distance_8"], near["distance_16"]) == (1.0, 0.0)


@pytest.mark.slow
def test_a_run_asks_while_it_learns_and_says_when_half_was_right(tmp_path):
    source = {"kind": "storyworld", "documents": 40, "validation_documents": 8, "recall": SHAPE}
    changes = {"data": {"source": source}, "eval": {"hooks": ["validation", "recall"], "every": 2}}
    pretrain(write_config(tmp_path, train={"max_steps": 4}, **changes))
    run = tmp_path / "runs" / "tiny"
    looks = metrics(run, "recall")
    assert [look["step"] for look in looks] == [0, 2, 4]
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["recall"]["accuracy"] == looks[-1]["accuracy"]
    assert result["recall"]["half_at_step"] is None
    assert "## Recall of facts" in (run / "report.md").read_text(encoding="utf-8")
    assert "floor" not in result  # that of stories, which it does not read
    looks = [{"step": step, "accuracy": accuracy} for step, accuracy in ((0, 0.0), (20, 0.5), (40, 0.6), (60, 0.4))]
    assert (half_at(looks), half_at(looks[:2])) == (40, None)
