"""Documents that ask for what they said: every answer is decided by the facts, and no held-out list
of facts is trained on.
"""

from itertools import pairwise

import pytest
from pydantic import ValidationError

from configs import IGNORED
from data.batches import make_rows
from data.config import DataConfig, RecallDocuments, StoryworldSource, TokenizerConfig
from data.prepare import prepare
from data.reading.documents import read
from data.tokenizer import train_tokenizer
from storyworld import blocks, recall
from storyworld.recall import FACETS, BlockDocuments, recalled_names

SHAPE = {"people": 5, "facets": 3, "values": 3, "questions": 15, "several": 0.5}
DOCUMENTS = RecallDocuments(**SHAPE)


def facts(document, people=5, facets=3):
    size = 1 + facets
    return [document.words[i * size : (i + 1) * size] for i in range(people)]


def test_a_document_is_its_arguments_and_has_the_words_that_they_say():
    document = recall(0, 0, DOCUMENTS)
    assert document == recall(0, 0, DOCUMENTS)
    assert len({recall(seed, index, DOCUMENTS).text for seed in (0, 1) for index in range(20)}) == 40
    assert len(document.words) == (5 + 15) * 4
    assert document.text.split() == list(document.words)
    for index in range(20):
        known = facts(recall(0, index, DOCUMENTS))
        assert len({name for name, *_ in known}) == len({tuple(told) for _, *told in known}) == 5
        assert all(word in facet[:3] for _, *told in known for word, facet in zip(told, FACETS, strict=False))


def test_every_question_has_the_answer_that_a_reader_of_the_facts_finds():
    kinds = set()
    for index in range(30):
        document = recall(1, index, DOCUMENTS)
        known = facts(document)
        for question in document.questions:
            kinds.add((question.kind, question.needs))
            clues = [document.words[place] for place in question.clues]
            assert document.words[question.word] == document.words[question.fact]
            assert 0 < question.distance == question.word - question.fact
            # the clues fit one fact alone
            (fact,) = [fact for fact in known if set(clues) <= set(fact)]
            assert document.words[question.word] in fact
            if question.kind == "several":  # needs: the fewest clues that one person alone has
                others = [set(other[1:]) for other in known if other != fact]
                chosen = [{clue for place, clue in enumerate(clues) if bits >> place & 1} for bits in range(1, 8)]
                assert question.needs == min(len(some) for some in chosen if not any(some <= told for told in others))
    assert kinds == {("one", 1), ("several", 1), ("several", 2), ("several", 3)}


def test_no_held_out_facts_are_trained_on():
    # 1,984 lists of facts: nearly all come up
    small = RecallDocuments(people=2, facets=1, values=2, questions=1)
    lists = [{recall(0, i, small, held).words[:4] for i in range(4000)} for held in (False, True)]
    assert min(map(len, lists)) > 200
    assert not lists[0] & lists[1]
    # no name and no word is held out for good
    assert len({word for words in lists[1] for word in words}) == 32 + 2


def test_every_word_is_one_token_of_a_small_vocabulary():
    texts = [recall(0, i, RecallDocuments(values=4)).text for i in range(800)]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=448), texts)
    words = {*recalled_names(), *FACETS[0][:4], *FACETS[1][:4]}
    assert all(len(tokenizer.encode(f" {word}")) == 1 for word in words)


@pytest.mark.parametrize("wrong", [{"people": 1}, {"people": 33}, {"facets": 5}, {"values": 9}, {"facets": 1}])
def test_impossible_documents_are_an_error(wrong):
    with pytest.raises(ValidationError):
        RecallDocuments(**SHAPE | wrong)


def test_the_source_makes_them_instead_of_stories():
    source = {"kind": "storyworld", "documents": 6, "validation_documents": 4, "seed": 3, "recall": SHAPE}
    config = DataConfig.model_validate({"source": source, "tokenizer": {"kind": "byte"}})
    made = [("train", recall(3, i, DOCUMENTS).text) for i in range(6)]
    made += [("validation", recall(3, i, DOCUMENTS, held_out=True).text) for i in range(4)]
    assert sorted((one.split, one.content) for one in read(config)) == sorted(made)
    with pytest.raises(ValidationError):
        StoryworldSource(recall=SHAPE, repeats=0.1)


def test_blocks_come_again_and_again_with_other_characters_between():
    shape = BlockDocuments(shortest=3, longest=5, between=2, length=40)
    distances = set()
    for i in range(200):
        text = blocks(0, i, shape)
        assert len(text) == 40
        assert text == blocks(0, i, shape) != blocks(0, i, shape, held_out=True)
        # the first character of a block is nowhere else
        starts = [at for at, symbol in enumerate(text) if symbol == text[0]]
        assert {text[at : at + 3] for at in starts if at <= 37} == {text[:3]}
        assert len({*text[:3]}) == 3
        distances |= {after - before for before, after in pairwise(starts)}
    assert distances == {3, 4, 5, 6, 7}
    some = BlockDocuments(shortest=3, longest=5, between=0, length=40, without=[3, 5])
    assert all(blocks(0, i, some)[:4] == blocks(0, i, some)[4:8] for i in range(20))
    no_gaps = blocks(0, 1, BlockDocuments(between=0, longest=9))
    assert len(no_gaps) == 47
    assert len({*no_gaps}) <= 9


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"blocks": {"shortest": 9, "longest": 5}}, "shortest: 9 is more than longest"),
        ({"blocks": {"longest": 4, "without": [4, 2, 3]}}, "without: no length is left"),
        ({"blocks": {}, "repeats": 0.1}, "repeats must be 0.0"),
        ({"blocks": {}, "recall": SHAPE}, "recall null"),
    ],
)
def test_impossible_blocks_are_an_error(wrong, message):
    with pytest.raises(ValidationError, match=message):
        StoryworldSource(**wrong)


def test_documents_that_are_as_long_as_a_row_are_the_rows(tmp_path):
    shape = {"people": 4, "facets": 2, "values": 4, "questions": 6}
    source = {"kind": "storyworld", "documents": 300, "validation_documents": 20, "recall": shape}
    tokenizer = {"kind": "bpe", "vocab_size": 448}
    for length, aligned in ((32, True), (31, False), (16, False)):
        config = DataConfig.model_validate({"source": source, "tokenizer": tokenizer, "sequence_length": length})
        data = prepare(config, tmp_path)
        for split, count in (("train", 300), ("validation", 20)):
            rows = make_rows(config, data, split)
            starts = [rows.row(i)[0][0] == data.tokenizer.bos_id for i in range(20)]
            assert all(starts) == aligned
            if aligned:
                assert rows.per_epoch == count
                assert rows.row(3)[1].tolist() == [IGNORED, *rows.row(3)[0][1:].tolist()]
            else:
                assert (rows.stride < rows.length) == (split == "validation")
