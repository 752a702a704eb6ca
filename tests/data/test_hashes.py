"""A corpus is hashed once: later starts, and the other processes of a run, find the hashes remembered."""

import hashlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from data.reading.hashes import hashes

from data.config import DataConfig
from data.prepare import prepare
from data.reading import hashes as hashes_module


@pytest.fixture
def hashed(monkeypatch):
    """The names of the files that are hashed from now on, in order."""
    names, real, lock = [], hashlib.file_digest, threading.Lock()

    def counted(raw, kind):
        with lock:
            names.append(Path(raw.name).name)
        return real(raw, kind)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return names


@pytest.fixture
def book(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text("".join(f"Line {i} of the book.\n" for i in range(200)))
    return aged(file)


def aged(file, seconds=60.0):
    """The file, as if it had been written so many seconds ago."""
    changed = time.time() - seconds
    os.utime(file, (changed, changed))
    return file


def config(book):
    return DataConfig.model_validate({"source": {"kind": "files", "path": str(book)}, "tokenizer": {"kind": "byte"}})


def test_a_second_start_hashes_nothing(book, tmp_path, hashed):
    first = prepare(config(book), tmp_path / "runs", show_progress=False)
    assert hashed.count("book.txt") == 1  # not again after reading, either
    for shard in first.directory.glob("*.bin"):
        aged(shard)
    assert prepare(config(book), tmp_path / "runs", show_progress=False).directory == first.directory
    hashed.clear()
    assert prepare(config(book), tmp_path / "runs", show_progress=False).directory == first.directory
    assert hashed == []


def test_only_what_changed_is_hashed_again(book, tmp_path, hashed):
    other, memory = tmp_path / "other.txt", tmp_path / "hashes.json"
    other.write_text("another book")
    files = [book, aged(other)]
    before = hashes(files, memory)
    other.write_text("ANOTHER BOOK")  # of the same size
    aged(other, 30)
    hashed.clear()
    after = hashes(files, memory)
    assert hashed == ["other.txt"]
    assert after == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_a_file_that_changed_just_now_is_not_remembered(book, tmp_path, hashed):
    """Its time of change could be the same after another change within the same tick of the clock."""
    memory, now = tmp_path / "hashes.json", time.time_ns()
    os.utime(book, ns=(now, now))
    before = hashes([book], memory)
    book.write_text(book.read_text().upper())
    os.utime(book, ns=(now, now))
    assert hashes([book], memory) != before


def test_processes_that_start_together_hash_once(book, tmp_path, hashed, monkeypatch):
    real = hashes_module.sha256
    monkeypatch.setattr(hashes_module, "sha256", lambda file: time.sleep(0.05) or real(file))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: hashes([book], tmp_path / "hashes.json"), range(4)))
    assert hashed == ["book.txt"]
    assert found == found[:1] * 4


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": [1, 2]}', "{"])
def test_a_damaged_memory_is_written_afresh(book, tmp_path, content):
    memory = tmp_path / "hashes.json"
    memory.write_text(content)
    assert hashes([book], memory) == [hashlib.sha256(book.read_bytes()).hexdigest()]
    assert str(book) in json.loads(memory.read_text())
