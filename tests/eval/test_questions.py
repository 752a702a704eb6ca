"""Exact answers: what is right, what chance gives, and that the model is asked just as it was
trained.
"""

import re
from dataclasses import replace
from functools import partial

import pytest

from data.chat import TRAINED, encode_conversations, prompt_ids
from data.config import StoryworldSource, TokenizerConfig
from data.reading.records import conversation_of
from data.tokenizer import train_tokenizer
from eval import questions
from eval.questions import Question, ask, figures, guesses, held_out_questions, is_right, questions_in, table_of_classes
from storyworld import converse, interview
from storyworld.names import held_out_names, name_set
from storyworld.questions import KINDS
from tests.conftest import tiny_config
from tests.eval import scoring
from tests.train.helpers import metrics, pretrain, write_config

command = partial(scoring.command, main=questions.main)
SOURCE = StoryworldSource(validation_documents=12)


def one(kind: str, said: str, reply: str, answer: str, *candidates: str) -> Question:
    return Question(kind, ({"role": "user", "content": said},), reply, answer, candidates)


HAS = one("who_has", "Tiko gave Belna the kite. Who had it first?", "Tiko had it.", "Tiko", "Tiko", "Belna")
ALSO = one("who_has", "Tiko gave Belna the kite. Who had it in the end?", "Belna", "Belna", "Tiko", "Belna")
SAID = "On the hill, to the river, off the hill, to the river, to the river. Where?"
SAW = one("where", SAID, "By the river.", "by the river", "on the hill", "by the river")


@pytest.fixture(scope="module")
def tokenizer():
    texts = [message["content"] for i in range(12) for message in converse(0, i, "validation")["conversations"]]
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=512), texts)


def test_a_reply_is_right_to_the_letter_or_not_at_all():
    assert is_right(HAS, " Tiko had it.\n")
    wrong = "Belna had it.", "Tiko had it", "tiko had it.", "Tiko had it. Belna had it.", "", None
    assert not any(is_right(HAS, reply) for reply in wrong)


def test_classes_are_counted_apart_and_together_beside_chance_and_the_best_guess():
    found = figures([HAS, SAW, ALSO], ["Tiko had it.", "On the hill.", "Tiko"])
    assert (found["exact_match"], found["exact_match_who_has"], found["exact_match_where"]) == (1 / 3, 1 / 2, 0)
    assert (found["asked"], found["asked_who_has"], found["asked_where"]) == (3, 2, 1)
    # what could not be asked does not count
    assert figures([HAS, SAW], [None, "By the river."])["asked"] == 1
    found = figures([HAS, replace(HAS, candidates=("Tiko", "Belna", "Jurim")), SAW, SAW], ["x"] * 4)
    assert found["chance_who_has"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert found["chance"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 2 + 1 / 2) / 4)
    assert figures([HAS, ALSO], ["x", "x"])["guess_who_has"] == 1 / 2  # no fixed rule has both
    assert figures([HAS, HAS], ["x", "x"])["guess_who_has"] == 1  # "always Tiko" has both
    assert guesses(SAW)[4] == "by the river"  # the most frequent, whatever stands before it


def test_a_question_is_asked_with_the_tokens_that_came_before_its_answer_in_training(tokenizer):
    asked = iter(held_out_questions(SOURCE))
    lengths = set()
    for index in range(SOURCE.validation_documents):
        conversation = converse(SOURCE.seed, index, "validation", SOURCE.level, held_out_names=False)
        ((ids, flags),) = encode_conversations(tokenizer, [conversation_of(conversation)])
        for _ in conversation["meta"]["questions"]:
            question = next(asked)
            prompt = prompt_ids(tokenizer, question.messages)
            answer = [*tokenizer.encode(question.reply), tokenizer.special_id("<|im_end|>")]
            assert ids[: len(prompt) + len(answer)] == prompt + answer
            trained = (flags & TRAINED)[len(prompt) - 1 : len(prompt) + len(answer) + 1].tolist()
            assert trained == [0] + [TRAINED] * len(answer) + [0]
            lengths.add(len(question.messages))
    assert next(asked, None) is None
    assert lengths > {1, 3}  # later turns with what was said before


def test_the_same_ones_are_held_out_and_their_names_are_of_the_form_that_was_asked_for():
    other = SOURCE.model_copy(update={"chats": "questions", "documents": 5})
    assert list(held_out_questions(other)) == list(held_out_questions(SOURCE)) != []
    for new_names, form, other_form in ((False, name_set(), held_out_names()), (True, held_out_names(), name_set())):
        words = set(re.findall(r"[A-Z][a-z]+", str([*held_out_questions(SOURCE, new_names=new_names)])))
        assert words & {*form}
        assert not words & {*other_form}


@pytest.mark.slow
def test_a_model_that_knows_two_conversations_by_heart_answers_all_their_questions(tokenizer):
    pairs = [interview(0, index, "validation") for index in (4, 5)]  # sentences
    asked = [question for pair in pairs for question in questions_in(pair)]
    rows = encode_conversations(tokenizer, [conversation_of(pair) for pair in pairs])
    rows = [(ids, (flags & TRAINED).astype(bool)) for ids, flags in rows]
    config = tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=1024)
    lm = scoring.learned(config, rows, steps=100, lr=1e-2)
    replies = ask(lm, tokenizer, asked)
    assert figures(asked, replies)["exact_match"] == 1, replies
    # alone
    assert [reply for question in asked[:3] for reply in ask(lm, tokenizer, [question])] == replies[:3]
    # the right replies, to other questions
    assert figures(asked, [replies[-1], *replies[:-1]])["exact_match"] < 0.5
    lm.config = lm.config.model_copy(update={"max_position_embeddings": 300})
    lengths = [len([*prompt_ids(tokenizer, one.messages), *tokenizer.encode(one.reply)]) for one in asked]
    assert [reply is None for reply in ask(lm, tokenizer, asked)] == [length + 1 > 300 for length in lengths]


def test_a_run_is_asked_before_and_after_and_by_the_command(tmp_path):
    source = {"kind": "storyworld", "documents": 30, "validation_documents": 8, "chats": "questions"}
    data = {"source": source, "records": "conversations", "sequence_length": 1024, "rows_joined": 1}
    data["tokenizer"] = {"kind": "bpe", "vocab_size": 512, "train_bytes": 20000}
    model = {"num_hidden_layers": 1, "max_position_embeddings": 1024}
    asks = {"every": 0, "questions": 5, "sample_tokens": 4, "attention": {"every": 0}}
    train = {"max_steps": 4, "tokens_per_step": 2048}
    pretrain(write_config(tmp_path, model=model, data=data, train=train, eval=asks))
    run = tmp_path / "runs/tiny"
    lines = metrics(run, "questions")
    new = metrics(run, "questions_new_names")
    assert [line["step"] for line in lines] == [line["step"] for line in new] == [0, 4]
    assert all(line["asked"] == 5 == sum(line.get(f"asked_{kind}", 0) for kind in KINDS) for line in lines)
    report = (run / "report.md").read_text(encoding="utf-8")
    assert table_of_classes({"before": lines[0], "after": lines[1], "after, names of a new form": new[1]}) in report

    checkpoint = next(run.glob("checkpoints/step_*4"))  # it knows the stories of its run as well
    _, out, _ = command(checkpoint, "--documents", 6, "--show", 1, "--by-plot")
    asked = list(held_out_questions(SOURCE.model_copy(update={"validation_documents": 6})))
    assert f"| all | {len(asked)} | 0.0% |" in " ".join(out.split())
    assert f"right: {asked[0].reply}" in out
    rows = [line.split("|")[2] for line in out.partition("By plot")[2].splitlines() if "%" in line]
    assert sum(map(int, rows)) == len(asked)
    (run / "config.yaml").write_text("data: {source: {kind: files, path: x.txt}}\n")
    assert command(run)[0] == 2
