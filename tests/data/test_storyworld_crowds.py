"""One sentence of a story that is said of four people: each has a part, and answers are as it was told."""

import pytest

from data.storyworld.crowds import ASKED, CROWDS, ask_crowd, crowd
from data.storyworld.names import held_out_names, name_set
from data.storyworld.questions import questions_about


@pytest.mark.parametrize("plot", CROWDS)
def test_of_a_crowd_each_has_a_part_and_is_asked_about(plot):
    stories = [story for story in (crowd(0, index) for index in range(60)) if story.plot == plot]
    assert len(stories) >= 8
    for story in stories:
        assert len(story.people) == (5 if plot == "soup" else 4)
        answers = {question.answer for kind in ("who_has", "who_wanted") for question in questions_about(story, kind)}
        assert len(answers & set(story.people.values())) >= 4
        assert set(story.people.values()) <= name_set()


def test_what_a_crowd_is_asked_is_answered_as_it_was_told():
    held_out = set(held_out_names())
    for split in ("train", "validation"):
        for index in range(30):
            talk, story = ask_crowd(1, index, split), crowd(1, index, split)
            assert set(story.people.values()) <= (held_out if split == "validation" else name_set())
            right = {question.text: question for question in questions_about(story)}
            messages, noted = talk["conversations"], talk["meta"]["questions"]
            assert 1 <= len(noted) <= ASKED.most
            for one in noted:
                user, reply = (messages[one["message"] + at]["content"] for at in (-1, 0))
                (question,) = [right[text] for text in right if text in user and right[text].kind == one["kind"]]
                assert reply in (question.reply(True), question.reply(False))
                assert one["answer"] == question.answer
            texts = [message["content"] for message in messages[::2]]
            assert len(set(texts)) == len(texts)
