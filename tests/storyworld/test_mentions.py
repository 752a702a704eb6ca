"""Antecedents: labels that are true, in characters and in the tokens of every kind of tokenizer;
and repeats.
"""

import re
from collections import Counter
from itertools import pairwise

import pytest

from data.config import TokenizerConfig
from data.tokenizer import Tokenizer, train_tokenizer
from storyworld import Antecedent, Story, align, antecedents, repeated, tell
from tests.storyworld.helpers import people, tell_many

HE_OR_SHE = re.compile(r"(?i:he|him|his|himself|she|her|herself)")


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return tell_many(9, 600) + [tell(9, index, held_out_names=True) for index in range(100)]


@pytest.fixture(scope="module", params=["bpe", "char", "byte"])
def tokenizer(request, stories) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=request.param, vocab_size=512), [story.text for story in stories[:300]])


# In characters


def test_copies_copy_and_pronouns_refer_to_a_name(stories):
    kinds = Counter()
    for story in stories:
        for start, end, entity, form in story.mentions:
            assert story.text[start:end] == story.entities[entity][form]
        for one in antecedents(story):
            here = story.text[one.start : one.end]
            there = story.text[one.earlier_start : one.earlier_end]
            assert one.earlier_end <= one.start
            kinds[one.kind] += 1
            refers = HE_OR_SHE.fullmatch(here) and there in people(story)
            assert refers if one.kind == "refers" else here == there
    assert kinds["copies"] > 10 * len(stories)
    assert kinds["refers"] > len(stories) / 2


def test_every_name_but_the_first_has_its_latest_mention_as_antecedent(stories):
    """Found again with a regular expression, for names and for things that are told once with an
    article.
    """
    for story in stories:
        labels = {(one.start, one.end): (one.earlier_start, one.earlier_end) for one in antecedents(story)}
        for name in story.people.values():
            spans = [match.span() for match in re.finditer(rf"\b{name}\b", story.text)]
            assert spans[0] not in labels
            for earlier, span in pairwise(spans):
                assert labels[span] == earlier


# In tokens


def test_aligned_tokens_of_copies_are_the_same_tokens(stories, tokenizer):
    same = differently_cut = 0
    for story in stories[:200]:
        encoding = tokenizer.backend.encode(story.text, add_special_tokens=False)
        copies = [one for one in antecedents(story) if one.kind == "copies"]
        for token, sources in align(copies, encoding.offsets):
            assert sources
            assert all(source < token for source in sources)
            if [encoding.ids[source] for source in sources] == [encoding.ids[token]]:
                same += 1
            else:  # "Tiko" at the very start has no space before it, or stands in quotes
                differently_cut += 1
    assert same > 5000
    assert differently_cut < 0.03 * same


# é takes two bytes in "éa éa"
SHARED = [(0, 0), (0, 1), (0, 1), (1, 2), (2, 3), (3, 4), (3, 4), (4, 5)]
TIKO = [(0, 1), (1, 3), (3, 4), (4, 8), (8, 11), (11, 13)]  # "T" "ik" "o" " and" " Ti" "ko"
THRICE = [(0, 2), (2, 4), (4, 6)]


@pytest.mark.parametrize(
    ("offsets", "labels", "pairs"),
    [
        (SHARED, [Antecedent(3, 5, 0, 2, "copies")], [(5, [1]), (6, [2]), (7, [3])]),
        (SHARED, [Antecedent(3, 5, 0, 2, "refers")], [(5, [1, 2, 3]), (6, [1, 2, 3]), (7, [1, 2, 3])]),
        # those with the same characters
        (TIKO, [Antecedent(9, 13, 0, 4, "copies")], [(4, [0, 1]), (5, [1, 2])]),
        # joined
        (THRICE, [Antecedent(4, 6, 0, 2, "copies"), Antecedent(4, 6, 2, 4, "copies")], [(2, [0, 1])]),
    ],
)
def test_tokens_go_with_tokens(offsets, labels, pairs):
    assert align(labels, offsets) == pairs


# Repeats


def test_repeated_documents_repeat_exactly():
    for index in range(100):
        document = repeated(0, index)
        assert document == repeated(0, index)
        assert document.text == "".join(f" {word}" for word in document.words) * document.times
        assert len(set(document.words)) == len(document.words) == 25
        assert document.times in (2, 3, 4)
    assert repeated(0, 1) != repeated(0, 2) != repeated(1, 2)
    assert {repeated(0, index).times for index in range(50)} == {2, 3, 4}
