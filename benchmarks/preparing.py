"""What does preparing cost beside tokenizing alone? `python -m benchmarks.preparing [--megabytes 500]`

It writes a corpus of stories as .jsonl. Then it times in turn, each in a new process: `encode_batch` of the tokenizers
library on these texts (reading them is not counted), and data.prepare from file to manifest, with its peak memory. The
aim is at least 0.8 of the library's speed in less than 1 GB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from configs.command import InputError, exit_on_bad_input, number, whole
from data.config import DataConfig, FilesSource, TokenizerConfig
from data.prepare import prepare
from data.storyworld import tell_many
from data.tokenizer import load_tokenizer, train_tokenizer

DIFFERENT = 10_000  # stories; each copy has a number in front, so that no two documents are equal
DOCUMENTS = 1000  # given to encode_batch at a time


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare data.prepare with the tokenizers library alone.")
    parser.add_argument(
        "--megabytes",
        type=number("--megabytes", 0, above=True),
        default=50.0,
        help="size of the corpus (default 50)",
    )
    parser.add_argument(
        "--rounds",
        type=whole("--rounds", 1),
        default=3,
        help="how often each is timed; medians are printed",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = write_corpus(Path(folder), arguments.megabytes)
        results = [
            (alone(encode_batch_seconds, Path(folder)), alone(prepare_seconds, Path(folder), number))
            for number in range(arguments.rounds)
        ]
    library = statistics.median(size / 1e6 / seconds for seconds, _ in results)
    ours = statistics.median(size / 1e6 / seconds for _, (seconds, _) in results)
    peak = max(peak for _, (_, peak) in results)
    print(f"{size / 1e6:.0f} MB of text, {multiprocessing.cpu_count()} cores, medians of {arguments.rounds}")
    print(f"encode_batch alone   {library:6.2f} MB/s")
    print(f"data.prepare         {ours:6.2f} MB/s   {ours / library:.2f} of it, peak memory {peak:.2f} GB")
    return 0


def write_corpus(folder: Path, megabytes: float) -> int:
    """stories.jsonl and tokenizer.json; returns the bytes of text."""
    texts = [story.text for story in tell_many(0, 0, DIFFERENT)]
    train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=4096), texts).save(folder)
    size = number = 0
    with (folder / "stories.jsonl").open("w", encoding="utf-8") as file:
        while size < megabytes * 1e6:
            text = f"{number}. {texts[number % DIFFERENT]}"
            file.write(json.dumps({"text": text}) + "\n")
            size, number = size + len(text), number + 1
    return size


def alone(work: Callable[..., Any], *arguments: object) -> Any:
    """Run in a new process, so that its memory is counted alone."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def encode_batch_seconds(folder: Path) -> float:
    backend, seconds = load_tokenizer(folder).backend, 0.0
    for texts in _batches(folder / "stories.jsonl"):
        before = time.perf_counter()
        backend.encode_batch(texts, add_special_tokens=False)
        seconds += time.perf_counter() - before
    return seconds


def prepare_seconds(folder: Path, number: int) -> tuple[float, float]:
    """(seconds, peak memory in GB)"""
    try:
        import resource
    except ImportError:
        raise InputError("the peak memory is unknown on Windows: use Linux or macOS") from None
    config = DataConfig(
        source=FilesSource(kind="files", path=str(folder / "stories.jsonl")),
        tokenizer=TokenizerConfig(kind="pretrained", path=str(folder)),
    )
    before = time.perf_counter()
    prepare(config, folder / str(number), show_progress=False)
    unit = 1e9 if sys.platform == "darwin" else 1e6  # macOS counts bytes, Linux kB
    return time.perf_counter() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _batches(file: Path) -> Iterator[list[str]]:
    texts = []
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            if len(texts) == DOCUMENTS:
                yield texts
                texts = []
    if texts:
        yield texts


if __name__ == "__main__":
    exit_on_bad_input(main)
