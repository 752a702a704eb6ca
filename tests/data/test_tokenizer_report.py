"""The table compares tokenizers as runs would make them, and its numbers are the ones that runs record."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from configs.command import InputError
from data import tokenizer_report
from data.config import DataConfig, TokenizerConfig
from data.prepare import prepare
from data.storyworld import tell_many
from data.tokenizer import train_tokenizer
from data.tokenizer_report import advice, compare, main, report
from tests.processes import run_module


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
def found(stories):
    return {m.name: m for m in compare(config(stories), [448, 1024])}


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_bytes_per_token_are_those_that_a_run_records(stories, found, kind, tmp_path):
    manifest = prepare(config(stories, kind, 512 if kind == "bpe" else None), tmp_path, False).manifest
    measured = found["bpe 512" if kind == "bpe" else kind]
    assert round(measured.bytes_on_held_out, 4) == manifest["validation"]["bytes_per_token"]
    assert round(measured.bytes_on_sample, 4) == manifest["train"]["bytes_per_token"]
    assert measured.vocab_size == manifest["vocab_size"]


def test_the_lines_are_byte_char_and_every_size_with_the_own_one_marked(found):
    assert list(found) == ["byte", "char", "bpe 448", "bpe 512", "bpe 1,024"]
    assert [name for name, m in found.items() if m.own] == ["bpe 512"]
    assert [m.vocab_size for m in found.values()][2:] == [448, 512, 1024]
    held_out = [m.bytes_on_held_out for m in list(found.values())[2:]]
    assert 1 < held_out[0] < held_out[1] < held_out[2]
    assert found["byte"].characters_in_row == pytest.approx(100 * found["byte"].bytes_on_held_out)  # all is ASCII
    assert {m.unknown for m in found.values()} == {0}


def test_a_tokenizer_that_exists_is_compared_and_its_unknown_characters_are_counted(stories, tmp_path):
    train_tokenizer(TokenizerConfig(kind="char"), ["abcdefghijklmnopqrstuvwxyz "]).save(tmp_path / "few")
    path = str(tmp_path / "few")
    texts = [json.loads(line)["text"] for line in stories.read_text(encoding="utf-8").splitlines()]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:20]))
    source = {"kind": "files", "path": str(stories), "validation_path": str(tmp_path / "held.jsonl")}
    own = config(stories, {"kind": "pretrained", "path": path}, source=source)
    *_, first, second = compare(own, [320], [path])
    unknown = sum(not (c.islower() or c == " ") for text in texts[:20] for c in text)
    assert first.unknown == second.unknown == unknown / sum(len(text) + 1 for text in texts[:20])
    assert (first.own, second.own) == (True, False)
    assert first.name == path
    assert first.seconds is None


def test_too_many_characters_leave_char_out_unless_the_config_asks_for_it(stories, monkeypatch):
    monkeypatch.setattr(tokenizer_report, "LARGEST_ALPHABET", 20)
    assert [m.name for m in compare(config(stories), [512])] == ["byte", "bpe 512"]
    assert [m.name for m in compare(config(stories, "char", None), [512])] == ["byte", "char", "bpe 512"]


def test_only_so_much_text_is_measured(stories, monkeypatch):
    monkeypatch.setattr(tokenizer_report, "MEASURED", 2000)
    assert sum(map(len, tokenizer_report.held_out_sample(config(stories)).texts)) == 2000
    assert compare(config(stories), [512])


def test_conversations_are_measured_by_their_text(tmp_path):
    chat = [
        {"messages": [{"role": "user", "content": f"Number {i}?"}, {"role": "assistant", "content": "é" * 40}]}
        for i in range(100)
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(record) + "\n" for record in chat))
    checked = config(tmp_path / "c.jsonl", records="conversations")
    assert "é" * 40 in tokenizer_report.held_out_sample(checked).texts
    assert "<|" not in "".join(tokenizer_report.held_out_sample(checked).texts)
    byte, char, _ = compare(checked, [512])
    assert byte.bytes_on_held_out == 1
    assert char.characters_in_row == 100
    assert 1.3 < char.bytes_on_held_out < 2


def test_the_report_has_a_line_a_tokenizer(found):
    lines = report(list(found.values()), 100).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [line[2] for line in lines[2:]] == [*"bcb*b"]
    assert lines[5].split()[1:4] == ["*", "bpe", "512"]
    assert f"{512 * 256:,}" in lines[5].split()
    assert f"{found['bpe 512'].bytes_on_held_out:.2f}" in lines[5].split()


def test_the_advice_follows_the_numbers(found):
    def line(size, held_out, sample=0.0):
        return found["bpe 512"].__class__("bpe", f"bpe {size}", size, sample or held_out, held_out, 0, 0, 0, False)

    assert "From 1,024 ids on" in advice([line(512, 2), line(1024, 3), line(2048, 3.1), line(4096, 3.2)])
    assert "for 262,144 more embedding" in advice([line(512, 2), line(1024, 3), line(2048, 3.1)])
    assert "From" not in advice([line(512, 2), line(1024, 3), line(2048, 4)])
    assert "From 512 ids on" in advice([line(512, 2), line(2048, 2.15)])  # 7.5 % of two doublings
    assert "too little text" in advice([line(512, 2, 2.5)])
    assert "too little text" not in advice([line(512, 2, 2.1)])
    assert "bpe 4096 ends with 2,048 ids" in advice([line(2048, 3), replace(line(2048, 3), name="bpe 4096")])


def test_bad_arguments(stories, tmp_path, monkeypatch):
    config_file = write_config(tmp_path, stories)
    for arguments, message in {
        ("--also", "nowhere"): "nowhere: holds no tokenizer.json",
        ("--sizes", "64"): "--sizes is '64': it must be a whole number from 320",
        ("data.validation_fraction=0.000001",): "no document is held out",
    }.items():
        monkeypatch.setattr(sys, "argv", ["data.tokenizer_report", str(config_file), *arguments])
        with pytest.raises(InputError, match=message):
            main()


def write_config(folder, stories):
    file = folder / "c.yaml"
    file.write_text(f"data:\n  source: {{kind: files, path: {stories}}}\n  tokenizer: {{kind: char}}\n")
    return file


def test_the_program(stories, tmp_path):
    program = [sys.executable, "-m", "data.tokenizer_report", write_config(tmp_path, stories)]
    good = subprocess.run([*program, "--sizes", "320,512"], capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    assert [line.replace("|", "").split()[:2] for line in good.stdout.splitlines()[2:6]] == [
        ["byte", "320"],
        ["*", "char"],
        ["bpe", "320"],
        ["bpe", "512"],
    ]
    bad = run_module("data.tokenizer_report", config, "--sizes", "12")
    assert bad.returncode == 2
    assert bad.stderr.splitlines()[-1].startswith("error: --sizes is '12': it must be a whole number from 320")
    assert "Traceback" not in bad.stderr
