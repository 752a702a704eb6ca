"""Exact answers: what is right, what chance gives, and that the model is asked just as it was trained."""

import re
from dataclasses import replace
from functools import partial

import pytest

from data.chat import TRAINED, encode_conversations, prompt_ids
from data.config import StoryworldSource, TokenizerConfig
from data.reading.records import conversation_of
from data.storyworld import converse, interview
from data.storyworld.names import held_out_names, name_set
from data.storyworld.questions import KINDS
from data.tokenizer import train_tokenizer
from eval import questions
from eval.questions import Question, ask, figures, guesses, held_out_questions, is_right, questions_in, table_of_classes
from model import LanguageModel
from tests.conftest import tiny_config
from tests.eval import scoring
from tests.train.helpers import metrics, pretrain, write_config

command = partial(scoring.command, main=questions.main)
SOURCE = StoryworldSource(validation_documents=12)


def one(kind: str, said: str, reply: str, answer: str, *candidates: str) -> Question:
    return Question(kind, ({"role": "user", "content": said},), reply, answer, candidates)


HAS = one(
    "who_has", "Tiko gave Belna the kite. Belna lost it. Who had it first?", "Tiko had it.", "Tiko", "Tiko", "Belna"
)
ALSO = one("who_has", "Tiko gave Belna the kite. Who had it in the end?", "Belna", "Belna", "Tiko", "Belna")
SAW = one(
    "where", "On the hill, then to the river. Where?", "By the river.", "by the river", "on the hill", "by the river"
)


@pytest.fixture(scope="module")
def tokenizer():
    texts = [message["content"] for i in range(12) for message in converse(0, i, "validation")["conversations"]]
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=512), texts)


# The scorer


def test_a_reply_is_right_to_the_letter_or_not_at_all():
    assert is_right(HAS, " Tiko had it.\n")
    wrong = "Belna had it.", "Tiko had it", "tiko had it.", "Tiko had it. Belna had it.", "", None
    assert not any(is_right(HAS, reply) for reply in wrong)


def test_classes_are_counted_apart_and_together_and_chance_is_one_of_the_candidates():
    found = figures([HAS, SAW, ALSO], ["Tiko had it.", "On the hill.", "Tiko"])
    assert {name: value for name, value in found.items() if name.startswith(("exact", "asked"))} == {
        **{"exact_match": 1 / 3, "asked": 3},
        **{"exact_match_who_has": 0.5, "asked_who_has": 2, "exact_match_where": 0.0, "asked_where": 1},
    }
    assert figures([HAS, SAW], [None, "By the river."])["asked"] == 1  # what could not be asked does not count
    three = replace(HAS, candidates=("Tiko", "Belna", "Jurim"))
    found = figures([HAS, three, SAW, SAW], ["x"] * 4)
    assert found["chance_who_has"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert found["chance"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 2 + 1 / 2) / 4)


def test_the_best_guess_is_what_looking_without_reading_gives():
    assert figures([HAS, ALSO], ["x", "x"])["guess_who_has"] == 1 / 2  # no fixed rule has both
    assert figures([HAS, HAS], ["x", "x"])["guess_who_has"] == 1.0  # "always Tiko" has both
    no = [one("yes_no", f"Was it {i}?", "No.", "no" if i else "yes", "yes", "no") for i in range(10)]
    assert figures(no, ["x"] * 10)["guess_yes_no"] == 0.9
    river = replace(SAW, messages=({"role": "user", "content": "To the river, off the hill, to the river."},))
    assert guesses(river)[4] == "by the river"  # most often


def test_held_out_conversations_can_hardly_be_guessed():
    """What the printed chance levels rest on: all classes, and no guess that would look like reading."""
    asked = list(held_out_questions(SOURCE.model_copy(update={"validation_documents": 300})))
    found = figures(asked, [""] * len(asked))
    for kind in KINDS:
        assert found[f"exact_match_{kind}"] == 0
        assert found[f"asked_{kind}"] > 20
        assert 0.3 < found[f"chance_{kind}"] <= 0.5
        assert found[f"guess_{kind}"] < (0.9 if kind == "who_did" else 0.75), kind


# The prompt


def test_a_question_is_asked_with_the_tokens_that_came_before_its_answer_in_training(tokenizer):
    asked = list(held_out_questions(SOURCE))
    found = 0
    for index in range(SOURCE.validation_documents):
        conversation = converse(SOURCE.seed, index, "validation", SOURCE.level, held_out_names=False)
        ((ids, flags),) = encode_conversations(tokenizer, [conversation_of(conversation)])
        for _ in conversation["meta"]["questions"]:
            question = asked[found]
            prompt = prompt_ids(tokenizer, question.messages)
            answer = [*tokenizer.encode(question.reply), tokenizer.special_id("<|im_end|>")]
            assert ids[: len(prompt) + len(answer)] == prompt + answer
            trained = (flags & TRAINED)[len(prompt) - 1 : len(prompt) + len(answer) + 1].tolist()
            assert trained == [0] + [TRAINED] * len(answer) + [0]
            found += 1
    assert found == len(asked) > SOURCE.validation_documents / 2
    assert {len(question.messages) for question in asked} > {1, 3}  # later turns with what was said before


def test_the_same_ones_are_held_out_whatever_is_trained_on():
    other = SOURCE.model_copy(update={"chats": "questions", "documents": 5})
    assert list(held_out_questions(other)) == list(held_out_questions(SOURCE)) != []


def test_names_are_of_the_form_that_was_asked_for():
    seen = {new: set() for new in (False, True)}
    for new, words in seen.items():
        for one in held_out_questions(SOURCE, new_names=new):
            words.update(re.findall(r"[A-Z][a-z]+", " ".join(message["content"] for message in one.messages)))
    assert seen[True] & set(held_out_names())
    assert not seen[True] & name_set()
    assert seen[False] & name_set()
    assert not seen[False] & set(held_out_names())


# The model


@pytest.mark.slow
def test_a_model_that_knows_two_conversations_by_heart_answers_all_their_questions(tokenizer):
    lm = LanguageModel(tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=1024))
    pairs = [interview(0, index, "validation") for index in (4, 5)]  # sentences
    asked = [question for pair in pairs for question in questions_in(pair)]
    assert len(asked) == 16
    assert figures(asked, ask(lm, tokenizer, asked))["exact_match"] == 0
    rows = encode_conversations(tokenizer, [conversation_of(pair) for pair in pairs])
    scoring.learned(lm, [(ids, (flags & TRAINED).astype(bool)) for ids, flags in rows], steps=100, lr=1e-2)
    lm.train()
    replies = ask(lm, tokenizer, asked)
    assert figures(asked, replies)["exact_match"] == 1, replies
    assert lm.training  # as it was found
    assert [reply for question in asked[:3] for reply in ask(lm, tokenizer, [question])] == replies[:3]  # alone
    assert figures(asked, [replies[-1], *replies[:-1]])["exact_match"] < 0.5  # the right replies, to other questions

    lm.config = lm.config.model_copy(update={"max_position_embeddings": 300})
    assert [reply is None for reply in ask(lm, tokenizer, asked)] == [
        len(prompt_ids(tokenizer, one.messages)) + len(tokenizer.encode(one.reply)) + 1 > 300 for one in asked
    ]


# The hook, the report, the command


def test_a_run_is_asked_before_and_after_and_by_the_command(tmp_path, capsys):
    source = {"kind": "storyworld", "documents": 30, "validation_documents": 8, "chats": "questions"}
    config = write_config(
        tmp_path,
        model={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 1024},
        data={
            "source": source,
            "records": "conversations",
            "tokenizer": {"kind": "bpe", "vocab_size": 512, "train_bytes": 20000},
            "sequence_length": 1024,
            "rows_joined": 1,
        },
        train={"max_steps": 4, "tokens_per_step": 2048},
        eval={"every": 0, "questions": 5, "sample_tokens": 4, "attention": {"every": 0}},
    )
    pretrain(config)
    run = tmp_path / "runs/tiny"
    lines, new = metrics(run, "questions"), metrics(run, "questions_new_names")
    assert [line["step"] for line in lines] == [line["step"] for line in new] == [0, 4]
    for line in lines:
        assert line["asked"] == 5 == sum(line.get(f"asked_{kind}", 0) for kind in KINDS)
    report = (run / "report.md").read_text(encoding="utf-8")
    assert table_of_classes({"before": lines[0], "after": lines[1], "after, names of a new form": new[1]}) in report

    checkpoint = next(run.glob("checkpoints/step_*4"))  # it knows the stories of its run as well
    code, out, _ = command(capsys, checkpoint, "--documents", 6, "--show", 1, "--by-plot")
    asked = list(held_out_questions(SOURCE.model_copy(update={"validation_documents": 6})))
    assert code == 0
    assert f"| all | {len(asked)} | 0.0% |" in " ".join(out.split())
    assert f"right: {asked[0].reply}" in out
    rows = [line.split("|")[2] for line in out.partition("By plot")[2].splitlines() if "%" in line]
    assert sum(map(int, rows)) == len(asked)

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("data: {source: {kind: files, path: x.txt}}\n")
    code, out, err = command(capsys, tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "only the storyworld has known answers" in err
