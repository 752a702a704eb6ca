"""The table compares tokenizers as runs would make them, and its numbers are the ones that runs record."""

import json
import sys

import pytest

from configs.command import InputError
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


def test_bytes_per_token_are_those_that_a_run_records_and_where_more_ids_stop_paying(stories, tmp_path):
    measured = {line.name: line for line in compare(config(stories), [448, 1024])}
    assert list(measured) == ["byte", "char", "bpe 448", "* bpe 512", "bpe 1,024"]
    for name, kind, size in (("byte", "byte", None), ("char", "char", None), ("* bpe 512", "bpe", 512)):
        manifest = prepare(config(stories, kind, size), tmp_path / kind, False).manifest
        assert round(measured[name].bytes_per_token, 4) == manifest["validation"]["bytes_per_token"]
        assert measured[name].vocab_size == manifest["vocab_size"]
    lines = [Measured(f"bpe {size}", size, held_out, 0, 0) for size, held_out in ((512, 2), (1024, 3), (2048, 3.1))]
    assert "From 1,024 ids on" in report(lines, 100)
    assert "From" not in report(lines[:2], 100)


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


def test_the_program(stories, tmp_path, monkeypatch, capsys):
    file = tmp_path / "c.yaml"
    file.write_text(f"data:\n  source: {{kind: files, path: {stories}}}\n  tokenizer: {{kind: char}}\n")
    monkeypatch.setattr(sys, "argv", ["data.tokenizer_report", str(file), "--sizes", "320,512"])
    assert main() == 0
    lines = [line.replace("|", "").split()[:2] for line in capsys.readouterr().out.splitlines()[2:6]]
    assert lines == [["byte", "320"], ["*", "char"], ["bpe", "320"], ["bpe", "512"]]
    for arguments in (["--also", "nowhere"], ["--sizes", "64"], ["data.validation_fraction=0.000001"]):
        monkeypatch.setattr(sys, "argv", ["data.tokenizer_report", str(file), *arguments])
        with pytest.raises(InputError):
            main()
