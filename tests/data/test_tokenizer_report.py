"""The table compares tokenizers as runs would make them, and its numbers are the ones that runs record."""

import json
import sys

import pytest

from configs.command import InputError
from data import tokenizer_report
from data.config import DataConfig, TokenizerConfig
from data.prepare import prepare
from data.storyworld import tell_many
from data.tokenizer import train_tokenizer
from data.tokenizer_report import Measured, compare, main, report


def config(path, kind="bpe", size=512, **changes) -> DataConfig:
    tokenizer = kind if isinstance(kind, dict) else {"kind": kind, "vocab_size": size}
    fields = {"source": {"kind": "files", "path": str(path)}, "tokenizer": tokenizer, "sequence_length": 100}
    return DataConfig.model_validate(fields | changes)


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "stories.jsonl"
    texts = [story.text for story in tell_many(0, 0, 300)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def measured(stories):
    return {m.name: m for m in compare(config(stories), [448, 1024])}


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_bytes_per_token_are_those_that_a_run_records(stories, measured, kind, tmp_path):
    manifest = prepare(config(stories, kind, 512 if kind == "bpe" else None), tmp_path, False).manifest
    line = measured["* bpe 512" if kind == "bpe" else kind]
    assert round(line.bytes_per_token, 4) == manifest["validation"]["bytes_per_token"]
    assert line.vocab_size == manifest["vocab_size"]


def test_the_lines_are_byte_char_and_every_size_with_the_own_one_marked(measured):
    assert list(measured) == ["byte", "char", "bpe 448", "* bpe 512", "bpe 1,024"]
    assert [m.vocab_size for m in measured.values()][2:] == [448, 512, 1024]
    held_out = [m.bytes_per_token for m in list(measured.values())[2:]]
    assert 1 < held_out[0] < held_out[1] < held_out[2]
    assert measured["byte"].characters_in_row == pytest.approx(100 * measured["byte"].bytes_per_token)  # all is ASCII


def test_a_tokenizer_that_exists_is_compared_and_its_unknown_characters_are_counted(stories, tmp_path):
    train_tokenizer(TokenizerConfig(kind="char"), ["abcdefghijklmnopqrstuvwxyz "]).save(tmp_path / "few")
    path = str(tmp_path / "few")
    texts = [json.loads(line)["text"] for line in stories.read_text(encoding="utf-8").splitlines()]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:20]))
    source = {"kind": "files", "path": str(stories), "validation_path": str(tmp_path / "held.jsonl")}
    *_, first, second = compare(config(stories, {"kind": "pretrained", "path": path}, source=source), [320], [path])
    unknown = sum(not (c.islower() or c == " ") for text in texts[:20] for c in text)
    assert first.unknown == second.unknown == unknown / sum(len(text) + 1 for text in texts[:20])
    assert (first.name, second.name) == (f"* {path}", path)


def test_too_many_characters_leave_char_out_unless_the_config_asks_for_it(stories, monkeypatch):
    monkeypatch.setattr(tokenizer_report, "LARGEST_ALPHABET", 20)
    assert [m.name for m in compare(config(stories), [512])] == ["byte", "* bpe 512"]
    assert [m.name for m in compare(config(stories, "char", None), [512])] == ["byte", "* char", "bpe 512"]


def test_the_advice_follows_the_numbers():
    def advice(*lines):
        results = [Measured(f"bpe {size}", size, held_out, 0, 0) for size, held_out in lines]
        return report(results, 100)

    assert "From 1,024 ids on" in advice((512, 2), (1024, 3), (2048, 3.1), (4096, 3.2))
    assert "From" not in advice((512, 2), (1024, 3), (2048, 4))
    assert "From 512 ids on" in advice((512, 2), (2048, 2.15))  # 7.5 % of two doublings
    assert "From 2,048 ids on" in advice((512, 2), (2048, 3), (2048, 3))  # nothing is left to merge


def test_the_program(stories, tmp_path, monkeypatch, capsys):
    file = tmp_path / "c.yaml"
    file.write_text(f"data:\n  source: {{kind: files, path: {stories}}}\n  tokenizer: {{kind: char}}\n")
    monkeypatch.setattr(sys, "argv", ["data.tokenizer_report", str(file), "--sizes", "320,512"])
    assert main() == 0
    lines = [line.replace("|", "").split()[:2] for line in capsys.readouterr().out.splitlines()[2:6]]
    assert lines == [["byte", "320"], ["*", "char"], ["bpe", "320"], ["bpe", "512"]]
    for arguments, message in {
        ("--also", "nowhere"): "nowhere: holds no tokenizer.json",
        ("--sizes", "64"): "--sizes is '64': it must be a whole number from 320",
        ("data.validation_fraction=0.000001",): "no document is held out",
    }.items():
        monkeypatch.setattr(sys, "argv", ["data.tokenizer_report", str(file), *arguments])
        with pytest.raises(InputError, match=message):
            main()
