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


@pytest.fixture(scope="module")
def measured(stories):
    return {m.name: m for m in compare(config(stories), [448, 1024])}


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_bytes_per_token_are_those_that_a_run_records(stories, measured, kind, tmp_path):
    manifest = prepare(config(stories, kind, 512 if kind == "bpe" else None), tmp_path, False).manifest
    line = measured["* bpe 512" if kind == "bpe" else kind]
    assert round(line.bytes_per_token, 4) == manifest["validation"]["bytes_per_token"]
    assert line.vocab_size == manifest["vocab_size"]


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


def test_the_advice_follows_the_numbers():
    def advice(*lines):
        return report([Measured(f"bpe {size}", size, held_out, 0, 0) for size, held_out in lines], 100)

    assert "From 1,024 ids on" in advice((512, 2), (1024, 3), (2048, 3.1), (4096, 3.2))
    assert "From" not in advice((512, 2), (1024, 3), (2048, 4))
    assert "From 512 ids on" in advice((512, 2), (2048, 2.15))  # 7.5 % of two doublings


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
