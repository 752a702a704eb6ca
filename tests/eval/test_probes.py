"""Probes: what is in them, for every tokenizer and context."""

import random
import re

import pytest
import torch

from configs.command import InputError
from data.config import DataConfig, FilesSource, MixPart, MixSource, StoryworldSource, TokenizerConfig
from data.storyworld import tell
from data.tokenizer import Tokenizer, train_tokenizer
from eval.attention import probes
from eval.attention.metrics import SCORES
from eval.attention.probes import (
    Probe,
    ProbeText,
    build_probes,
    packed_probe,
    probe_from_text,
    read_probe_file,
    repeated_probe,
    song_pairs,
    stories_probe,
    text_probe,
)
from tests.eval.streams import stream

STORYWORLD = StoryworldSource()


@pytest.fixture(scope="module")
def stories() -> list[str]:
    return [tell(0, index, "validation").text for index in range(40)]


@pytest.fixture(scope="module", params=["bpe", "char", "byte"])
def tokenizer(request, stories) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=request.param, vocab_size=512), stories)


@pytest.fixture(scope="module")
def bpe(stories) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=512), stories)


def check(probe: Probe, tokenizer: Tokenizer, longest: int) -> None:
    """What holds for every probe."""
    B, T = probe.input_ids.shape
    assert probe.input_ids.dtype == torch.int64
    assert 2 <= T <= longest
    assert [len(row) for row in probe.labels] == [T] * B
    assert all(label for row in probe.labels for label in row)
    assert int(probe.input_ids.max()) < tokenizer.vocab_size
    if probe.real is not None:  # padding is on the right, and only there
        assert torch.equal(probe.real, probe.input_ids != tokenizer.pad_id)
        assert (probe.real.int().diff(dim=1) <= 0).all()
        assert probe.real.all(1).any()
    for of_rows in probe.targets.values():
        assert len(of_rows) == B
        for row, pairs in enumerate(of_rows):
            for query, keys in pairs:
                assert keys
                assert all(0 < key <= query for key in keys)
                assert query < T - 1
                assert probe.real is None or probe.real[row, query + 1]


@pytest.mark.parametrize("context", [1, 2, 3, 7, 20, 64, 512])
def test_every_tokenizer_and_context_has_probes_that_fit(tokenizer, stories, context):
    config = DataConfig(source=STORYWORLD, sequence_length=512)
    built = build_probes(tokenizer, config, context, held_out=stream(tokenizer, stories))
    for probe in built:
        check(probe, tokenizer, context)
    names = [probe.name for probe in built]
    assert len(set(names)) == len(names)
    if context == 512:
        assert names[:3] == ["text", "repeated_2", "repeated_4"]
        assert names[-1] == "packed"
        assert "stories" in names
        if len(tokenizer.encode(stories[0])) < 256:
            assert set(names) == {score.probe for score in SCORES.values()}
    if context < 3:
        assert "repeated_2" not in names


def test_the_same_probes_every_time_and_nothing_random_touched(bpe, stories):
    held_out, config = stream(bpe, stories), DataConfig(source=STORYWORLD)
    state, torch_state = random.getstate(), torch.get_rng_state()
    once, again = (build_probes(bpe, config, 256, held_out=held_out) for _ in range(2))
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), torch_state)
    for one, other in zip(once, again, strict=True):
        assert torch.equal(one.input_ids, other.input_ids)
        assert (one.labels, one.targets) == (other.labels, other.targets)


# repeated blocks


@pytest.mark.parametrize("copies", [2, 4])
def test_blocks_are_repeated_and_hold_ordinary_tokens_once(tokenizer, copies):
    probe = repeated_probe(tokenizer, copies, 256)
    assert probe is not None
    assert probe.period == 25
    assert (probe.input_ids[:, 0] == tokenizer.bos_id).all()
    blocks = probe.input_ids[:, 1:].unflatten(1, (copies, 25))
    assert (blocks == blocks[:, :1]).all()
    assert not tokenizer.special_ids.intersection(probe.input_ids[:, 1:].flatten().tolist())
    for block in blocks[:, 0].tolist():
        assert len(set(block)) == 25
    assert len({tuple(block) for block in blocks[:, 0].tolist()}) == len(blocks)


def test_blocks_are_shortened_to_the_context_and_both_probes_share_them(bpe):
    two, four = repeated_probe(bpe, 2, 256), repeated_probe(bpe, 4, 256)
    assert two is not None
    assert four is not None
    assert torch.equal(two.input_ids[: len(four.input_ids), :51], four.input_ids[:, :51])
    short = repeated_probe(bpe, 4, 33)
    assert short is not None
    assert (short.period, short.input_ids.shape[1]) == (8, 33)
    assert repeated_probe(bpe, 4, 8) is None


def test_a_resumed_run_looks_at_the_same_blocks_in_a_short_context_too(bpe):
    """It is given those of repeated_2; with a block of its own, repeated_4 had other scores after a resume."""
    fresh = build_probes(bpe, DataConfig(sequence_length=33), 33)
    two = next(probe for probe in fresh if probe.name == "repeated_2")
    blocks = two.input_ids[:, 1 : 1 + two.period].tolist()
    again = build_probes(bpe, DataConfig(sequence_length=33), 33, blocks=blocks)
    for before, after in zip(fresh, again, strict=True):
        assert before.input_ids.equal(after.input_ids), before.name


def test_blocks_are_drawn_from_what_is_in_use(bpe):
    in_use = [*range(100, 130), bpe.bos_id, bpe.eos_id]
    probe = repeated_probe(bpe, 2, 256, in_use)
    assert probe is not None
    assert set(probe.input_ids[:, 1:].flatten().tolist()) <= set(range(100, 130))
    few = repeated_probe(bpe, 2, 256, range(100, 110))  # too few: from all
    everything = repeated_probe(bpe, 2, 256)
    assert few is not None
    assert everything is not None
    assert torch.equal(few.input_ids, everything.input_ids)


# text


def test_text_is_how_held_out_documents_begin(tokenizer, stories):
    held_out = stream(tokenizer, stories)
    probe = text_probe(tokenizer, held_out.ids, 256)
    assert probe is not None
    assert probe.input_ids.shape == (8, 64)
    assert probe.real is None
    documents = tokenizer.encode_documents(stories)
    assert probe.input_ids.tolist() == [ids[:64] for ids in documents[:8]]


def test_few_and_short_documents_give_what_there_is(bpe):
    documents = ["", "A fox ran home to the hill.", "A hen sat by the river."]
    probe = text_probe(bpe, stream(bpe, documents).ids, 256)
    assert probe is not None
    sizes = [len(ids) for ids in bpe.encode_documents(documents)]
    assert probe.input_ids.shape == (2, min(sizes[1:]))
    assert text_probe(bpe, stream(bpe, [""]).ids, 256) is None


def test_of_a_single_text_pieces_are_shown_as_training_cuts_them(bpe, stories):
    held_out = stream(bpe, [" ".join(stories)])
    probe = text_probe(bpe, held_out.ids, 256)
    assert probe is not None
    assert probe.input_ids.shape == (8, 64)
    everything = held_out.ids.tolist()
    for row in probe.input_ids.tolist():
        assert any(everything[at : at + 64] == row for at in range(len(everything) - 63))


def test_texts_of_ones_own(bpe, stories):
    held_out, config = stream(bpe, stories), DataConfig(source=FilesSource(kind="files", path="x.txt"))
    built = build_probes(bpe, config, 256, ["The fox saw the bird.", "A hen."], held_out)
    assert [probe.name for probe in built] == ["text", "text_2", "repeated_2", "repeated_4", "packed"]
    assert built[0].input_ids.tolist() == [[bpe.bos_id, *bpe.encode("The fox saw the bird.")]]
    named = build_probes(bpe, config, 256, [ProbeText(name="fox", text="The fox.")], held_out)
    assert [probe.name for probe in named][:2] == ["text", "fox"]  # scores on text are still of held-out documents
    long = build_probes(bpe, config, 16, [stories[0]], held_out)[0]
    total = len(bpe.encode(stories[0])) + 1
    assert long.input_ids.shape == (1, 16)
    assert long.left_out == f"tokens 16 to {total - 1} of {total}"
    with pytest.raises(ValueError, match="the text of the probe text_2 is empty"):
        build_probes(bpe, config, 256, ["A hen.", ""], held_out)
    with pytest.raises(ValueError, match="the context 8: shorten it"):
        probe_from_text(bpe, "The fox saw the bird on the hill by the river.", 8)


# files of texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("texts:\n  - {name: fox, txt: The fox.}\n", r"probes.yaml:\d: unknown key `texts.0.txt`, did you mean"),
        ("texts: []\n", "probes.yaml:1: `texts` is"),
        ("texts:\n  - {name: fox, text: ''}\n", r"probes.yaml:\d: `texts.0.text` is ''"),
        ("texts:\n  - {name: ../fox, text: A}\n", r"probes.yaml:\d: `texts.0.name` is '../fox'"),
        ("texts:\n  - {name: songs, text: A}\n", "the name songs is taken"),
        ("texts:\n  - {name: a, text: A}\n  - {name: a, text: B}\n", "the name a is taken"),
    ],
)
def test_a_bad_probe_file_says_where(tmp_path, text, message):
    file = tmp_path / "probes.yaml"
    file.write_text("texts:\n  - {name: fox, text: The fox.}\n")
    assert read_probe_file(file) == [ProbeText(name="fox", text="The fox.")]
    file.write_text(text)
    with pytest.raises(InputError, match=message) as problem:
        read_probe_file(file)
    assert "\n" not in str(problem.value)


# stories: targets against another way to find them


def test_song_targets_are_what_followed_the_same_token_in_every_earlier_singing(bpe):
    """Found again by looking for the song's own tokens."""
    times = set()
    for index in range(probes.CANDIDATES):
        story = tell(0, index, "validation", plot="song")
        encoding = bpe.backend.encode(story.text)
        (song,) = {match[1] for match in re.finditer(r": ((?:\w+ ){5,}\w+)\.", story.text)}
        ids = bpe.encode(" " + song)
        ids = ids[1:] if bpe.decode(ids[:1]) == " " else ids  # a space alone is no part of the song
        begins = [at for at in range(len(encoding.ids)) if encoding.ids[at : at + len(ids)] == ids]
        times.add(len(begins))
        assert song_pairs(story, encoding.offsets) == [
            (begins[n] + rank, [earlier + rank + 1 for earlier in begins[:n]])
            for n in range(1, len(begins))
            for rank in range(len(ids) - 1)
        ]
    assert times == {2, 3}


def test_antecedents_by_brute_force(tokenizer):
    """Names, found in the text by their letters: each of their tokens copies the same token of all earlier ones."""
    probe = stories_probe(tokenizer, STORYWORLD, 2000)
    assert probe is not None
    check(probe, tokenizer, 2000)
    rows, names_found = probe.input_ids.tolist(), 0
    for index in range(probes.CANDIDATES):
        story = tell(0, index, "validation")
        ids = [tokenizer.bos_id, *tokenizer.encode(story.text)]
        row = next((n for n, padded in enumerate(rows) if padded[: len(ids)] == ids), None)
        if row is None:
            continue
        copies, refers = (dict(probe.targets[kind][row]) for kind in ("copies", "refers"))
        place = positions(tokenizer, ids)
        for name in story.people.values():
            begins = [match.start() for match in re.finditer(rf"\b{name}\b", story.text)]
            for n, begin in enumerate(begins):
                if begin == 0 or (begins[0] == 0 and n):  # cut differently without a space before it
                    continue
                for at in range(len(name)):
                    earlier = {place[other + at] for other in begins[:n]}
                    assert set(copies.get(place[begin + at], ())) == earlier
                    names_found += bool(earlier)
        assert probe.targets["writes"][row] == [(query - 1, keys) for query, keys in probe.targets["copies"][row]]
        for query, keys in refers.items():
            of_whom = {name for name in story.people.values() if {place[story.text.index(name)]} & set(keys)}
            assert of_whom, (story.text, query, keys)
            pronoun = story.text[place.index(query) : place.index(query) + 12]
            assert re.match(r"\s?(he|him|his|himself|she|her|herself|e|i|s|m|r|l|f)", pronoun.lower())
    assert names_found > 20


def positions(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The token, counted with the first one, that holds each character of an English text."""
    return [
        number
        for number, token in enumerate(ids)
        for _ in (tokenizer.decode([token]) if token not in tokenizer.special_ids else "")
    ]


def test_the_built_in_world_is_found_in_a_mix_and_nowhere_else(bpe):
    mixed = MixSource(
        kind="mix", parts=[MixPart(source=FilesSource(kind="files", path="x")), MixPart(source=STORYWORLD)]
    )
    names = [probe.name for probe in build_probes(bpe, DataConfig(source=mixed), 256)]
    assert names == ["repeated_2", "repeated_4", "songs", "stories"]
    files = DataConfig(source=FilesSource(kind="files", path="x"))
    assert [probe.name for probe in build_probes(bpe, files, 256)] == ["repeated_2", "repeated_4"]


# packed rows


@pytest.mark.parametrize("isolated", [True, False])
def test_a_packed_row_knows_its_documents(tokenizer, stories, isolated):
    probe = packed_probe(tokenizer, stream(tokenizer, stories).ids, 256, isolated)
    assert probe is not None
    assert probe.input_ids.shape == (2, 48)
    begins = (probe.input_ids == tokenizer.bos_id).long().cumsum(1) - 1
    assert torch.equal(begins, probe.document_ids)
    assert set(probe.for_model()) == ({"input_ids", "document_ids"} if isolated else {"input_ids"})
