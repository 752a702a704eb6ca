"""Probes: what is in them, for every tokenizer and context."""

import random
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from configs.command import InputError
from data.config import DataConfig, FilesSource, MixPart, MixSource, StoryworldSource, TokenizerConfig
from data.tokenizer import Tokenizer, train_tokenizer
from eval.attention.metrics import SCORES
from eval.attention.probes import (
    Probe,
    build_probes,
    packed_probe,
    probe_from_text,
    read_probe_file,
    readable_tokens,
    repeated_probe,
    story_probe,
    text_probe,
)
from storyworld import tell

REPEATED = ["repeated_2", "repeated_4", "varied"]
STORYWORLD = StoryworldSource()
FILES = FilesSource(kind="files", path="x")
STORIES = [tell(0, index, "validation").text for index in range(40)]
KINDS = ("bpe", "char", "byte")
TOKENIZERS = {kind: train_tokenizer(TokenizerConfig(kind=kind, vocab_size=512), STORIES) for kind in KINDS}
BPE = TOKENIZERS["bpe"]


@dataclass
class Ids:
    """A stream of tokens in memory."""

    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, length: int) -> np.ndarray:
        return self.ids[start : start + length]


def stream(tokenizer: Tokenizer, texts: list[str]) -> Ids:
    return Ids(np.concatenate(tokenizer.encode_documents(texts)))


@pytest.fixture(params=KINDS)
def tokenizer(request) -> Tokenizer:
    return TOKENIZERS[request.param]


def check(probe: Probe, tokenizer: Tokenizer, longest: int) -> None:
    """Assert the properties of every probe."""
    B, T = probe.input_ids.shape
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
                assert all(0 < key <= query < T - 1 for key in keys)
                assert probe.real is None or probe.real[row, query + 1]


@pytest.mark.parametrize("context", [1, 2, 3, 7, 20, 64, 512])
def test_every_tokenizer_and_context_has_probes_that_fit_the_same_every_time(tokenizer, context):
    config = DataConfig(source=STORYWORLD, sequence_length=512)
    held_out = stream(tokenizer, STORIES)
    state = random.getstate()
    torch_state = torch.get_rng_state()
    built, again = (build_probes(tokenizer, config, context, held_out=held_out) for _ in range(2))
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), torch_state)
    for probe, other in zip(built, again, strict=True):
        check(probe, tokenizer, context)
        assert torch.equal(probe.input_ids, other.input_ids)
        assert (probe.labels, probe.targets) == (other.labels, other.targets)
    names = [probe.name for probe in built]
    assert len(set(names)) == len(names)
    if context == 512:
        assert names[:3] == ["text", "repeated_2", "repeated_4"]
        assert names[-1] == "packed"
        assert "stories" in names
        if len(tokenizer.encode(STORIES[0])) < 256:
            assert set(names) == {score.probe for score in SCORES.values()}
    if context < 3:
        assert "repeated_2" not in names


def test_the_built_in_world_is_found_in_a_mix_and_nowhere_else():
    mixed = MixSource(kind="mix", parts=[MixPart(source=FILES), MixPart(source=STORYWORLD)])
    for source, names in ((mixed, ["repeated_2", "repeated_4", "varied", "songs", "stories"]), (FILES, REPEATED)):
        assert [probe.name for probe in build_probes(BPE, DataConfig(source=source), 256)] == names


@pytest.mark.parametrize("copies", [2, 4])
def test_blocks_are_repeated_and_hold_ordinary_tokens_once(tokenizer, copies):
    probe = repeated_probe(tokenizer, copies, 256)
    assert probe.period == 25
    assert (probe.input_ids[:, 0] == tokenizer.bos_id).all()
    blocks = probe.input_ids[:, 1:].unflatten(1, (copies, 25))
    assert (blocks == blocks[:, :1]).all()
    assert not tokenizer.special_ids.intersection(probe.input_ids[:, 1:].flatten().tolist())
    rows = blocks[:, 0].tolist()
    assert all(len(set(block)) == 25 for block in rows)
    assert len({tuple(block) for block in rows}) == len(blocks)


@pytest.mark.parametrize(("context", "period"), [(256, 25), (33, 8)])
def test_blocks_are_shortened_to_the_context_and_shared_also_by_a_run_that_is_resumed(context, period):
    """It is given those of repeated_2; with a block of its own, repeated_4 had other scores after a
    resume.
    """
    config = DataConfig(sequence_length=context)
    two, four = build_probes(BPE, config, context)[:2]
    assert four.period == period
    assert torch.equal(two.input_ids[: len(four.input_ids), : 1 + period], four.input_ids[:, : 1 + period])
    blocks = two.input_ids[:, 1 : 1 + two.period].tolist()
    for before, after in zip((two, four), build_probes(BPE, config, context, blocks=blocks), strict=False):
        assert before.input_ids.equal(after.input_ids), before.name


def test_a_head_that_prefers_a_distance_is_no_induction_head_on_blocks_of_many_lengths():
    probe = build_probes(BPE, DataConfig(sequence_length=128), 128)[2]
    B, T = probe.input_ids.shape
    assert (B, T) == (15, 81)
    induction = torch.zeros(1, B, 1, T, T)
    for row, pairs in enumerate(probe.targets["induction"]):
        for query, (key,) in pairs:
            assert probe.input_ids[row, query] == probe.input_ids[row, key - 1]
            induction[0, row, 0, query, key] = 1.0
    for row, pairs in enumerate(probe.targets["distance"]):
        for query, (key,) in pairs:
            assert probe.input_ids[row, query] != probe.input_ids[row, key - 1]
    # 23 back is right where a block has 24 tokens, in one of 15 rows
    back_23 = torch.eye(T).roll(23, dims=0).tril().expand(1, B, 1, T, T)
    for weights, of_induction, of_distance in ((induction, 1.0, 0.0), (back_23, 1 / 15, 1 / 15)):
        scores = {name: SCORES[name].measure(weights, probe).mean() for name in ("induction_varied", "same_distance")}
        assert scores["induction_varied"] == pytest.approx(of_induction, abs=0.01)
        assert scores["same_distance"] == pytest.approx(of_distance, abs=0.01)


def test_blocks_are_drawn_from_what_is_in_use_if_that_is_enough():
    used = range(100, 130)
    few = range(100, 110)
    assert set(repeated_probe(BPE, 2, 256, [*used, BPE.bos_id]).input_ids[:, 1:].flatten().tolist()) <= set(used)
    assert torch.equal(repeated_probe(BPE, 2, 256, few).input_ids, repeated_probe(BPE, 2, 256).input_ids)


def test_text_is_how_held_out_documents_begin(tokenizer):
    probe = text_probe(tokenizer, stream(tokenizer, STORIES).ids, 256)
    assert probe.input_ids.tolist() == [ids[:64] for ids in tokenizer.encode_documents(STORIES)[:8]]
    # few and short: what there is
    documents = ["", "A fox ran home to the hill.", "A hen sat by the river."]
    few = text_probe(tokenizer, stream(tokenizer, documents).ids, 256)
    assert few.input_ids.shape == (2, min(len(ids) for ids in tokenizer.encode_documents(documents)[1:]))
    assert text_probe(tokenizer, stream(tokenizer, [""]).ids, 256) is None
    # of a single text pieces, as training cuts them
    everything = stream(tokenizer, [" ".join(STORIES)]).ids
    windows = np.lib.stride_tricks.sliding_window_view(everything, 64)
    pieces = text_probe(tokenizer, everything, 256).input_ids
    assert pieces.shape == (8, 64)
    assert all((windows == row.numpy()).all(1).any() for row in pieces)


def test_texts_of_ones_own():
    held_out = stream(BPE, STORIES)
    config = DataConfig(source=FILES)
    fox = "The fox saw the bird."
    built = build_probes(BPE, config, 256, {"text": fox, "text_2": "A hen."}, held_out)
    assert [probe.name for probe in built] == ["text", "text_2", *REPEATED, "packed"]
    assert built[0].input_ids.tolist() == [[BPE.bos_id, *BPE.encode(fox)]]
    named = build_probes(BPE, config, 256, {"fox": fox}, held_out)
    # scores on text are still of held-out documents
    assert [probe.name for probe in named][:2] == ["text", "fox"]
    long = build_probes(BPE, config, 16, {"text": STORIES[0]}, held_out)[0]
    total = len(BPE.encode(STORIES[0])) + 1
    assert (long.input_ids.shape, long.left_out) == ((1, 16), f"tokens 16 to {total - 1} of {total}")
    with pytest.raises(ValueError, match="the text of the probe hen is empty"):
        build_probes(BPE, config, 256, {"hen": ""}, held_out)


def test_a_bad_probe_file_says_where(tmp_path):
    file = tmp_path / "probes.yaml"
    file.write_text("texts: {fox: The fox.}")
    assert read_probe_file(file) == {"fox": "The fox."}
    for texts, message in (("fox: ''", r"probes.yaml:\d: `texts.fox`"), ("songs: A", "the name songs is taken")):
        file.write_text(f"texts: {{{texts}}}")
        with pytest.raises(InputError, match=message):
            read_probe_file(file)


def test_targets_are_what_followed_the_same_token_in_an_earlier_singing_and_what_a_copy_copies(tokenizer):
    """Names and pronouns refer to their mentions: tests/storyworld/test_mentions.py."""
    songs, stories = (story_probe(tokenizer, STORYWORLD, 2000, name) for name in ("songs", "stories"))
    for ids, pairs in zip(songs.input_ids.tolist(), songs.targets["song"], strict=True):
        assert {len(keys) for _, keys in pairs} <= {1, 2}
        assert all([ids[key - 1], ids[key]] == ids[query : query + 2] for query, keys in pairs for key in keys)
        assert len(pairs) > 5
    kinds = [stories.targets[kind] for kind in ("copies", "writes", "refers")]
    for ids, copies, writes, refers in zip(stories.input_ids, *kinds, strict=True):
        assert copies
        assert refers
        assert all((ids[keys] == ids[query]).all() for query, keys in copies)
        assert writes == [(query - 1, keys) for query, keys in copies]


@pytest.mark.parametrize("isolated", [True, False])
def test_a_packed_row_knows_its_documents(tokenizer, isolated):
    probe = packed_probe(tokenizer, stream(tokenizer, STORIES).ids, 256, isolated)
    assert probe.input_ids.shape == (2, 48)
    assert torch.equal((probe.input_ids == tokenizer.bos_id).long().cumsum(1) - 1, probe.document_ids)
    assert set(probe.for_model()) == ({"input_ids", "document_ids"} if isolated else {"input_ids"})


def test_chinese_is_whole_however_it_is_cut():
    byte = TOKENIZERS["byte"]
    chinese = "小猫看见一只鸟。鸟飞走了，小猫很伤心。"
    ids = byte.encode("a你好 b")
    assert readable_tokens(byte, ids) == ["a", "⟨E4⟩", "⟨BD⟩", "你", "⟨E5⟩", "⟨A5⟩", "好", "␣", "b"]
    # by the end of the document
    cut = [byte.bos_id, *byte.encode("你")[:2], byte.eos_id, byte.encode("你")[2]]
    assert readable_tokens(byte, cut) == ["<bos>", "⟨E4⟩", "⟨BD⟩", "<eos>", "⟨A0⟩"]
    assert readable_tokens(byte, byte.encode("好")[1:] + byte.encode("你")) == ["⟨A5⟩", "⟨BD⟩", "⟨E4⟩", "⟨BD⟩", "你"]
    char = train_tokenizer(TokenizerConfig(kind="char"), [chinese, "é\ufffd"])
    assert readable_tokens(char, char.encode("小猫é\ufffd")) == ["小", "猫", "é", "\ufffd"]
    bpe = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=320), [chinese * 20])
    labels = probe_from_text(bpe, chinese, 256).labels[0][1:]
    assert "".join(re.sub("⟨..⟩", "", label) for label in labels) == chinese
