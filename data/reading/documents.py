"""Which documents does a source hold, and which of them are held out?

A source is the built-in world, local files, the Hugging Face Hub, or a mix of these. It is read once, from beginning to
end, in a fixed order. A document's split depends on the document alone: its seed, its file or its hash. Where there are
too few plain texts for a hash to come near the wanted share (two books), the end of each one is held out.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import re
import subprocess
import sys
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import storyworld
from configs.command import InputError, usable_cores
from data.config import DataConfig, FilesSource, HubSource, MixSource, Split, StoryworldSource
from data.reading import files
from data.reading.messages import BadRecord
from data.reading.pairs import Pair, pair_of
from data.reading.records import Conversation, conversation_of, text_of

LISTED = 1000  # bad records that are listed one by one
MANY = 1000  # records after which a share of bad ones means something
CHUNK = 32  # stories that a process makes at a time
FEWEST = 1000  # stories, from which it pays to start processes, which takes them half a second
MOST = 8  # processes
Content = str | Conversation | Pair
FEW_HELD_OUT = 5  # documents; where a hash would hold out fewer on average, the share depends on chance


class Document(NamedTuple):
    """A text, a conversation or a pair of one split, and where it was read."""

    content: Content
    split: Split
    where: str


@dataclass
class Ledger:
    """What was read: records, empty texts, exact duplicates, and what could not be read and where."""

    records: int = 0
    empty: int = 0
    duplicates: int = 0
    bad: int = 0
    bad_records: list[str] = field(default_factory=list)

    def check_bad(self, at_least: int = 0) -> None:
        """Raises InputError if more than 1 % of the records are bad, once there are enough of them to tell."""
        if self.bad > 0.01 * self.records and self.records >= at_least:
            bad, shown = f"{self.bad:,} of {self.records:,} records cannot be used", "; ".join(self.bad_records[:3])
            raise InputError(f"data.source: {bad}, more than 1 %: {shown}: repair them, or name other files")


def read(config: DataConfig, ledger: Ledger | None = None) -> Iterator[Document]:
    """Every document of both splits. Raises InputError that names the file, the line and the remedy."""
    ledger, source = ledger or Ledger(), config.source
    yield from _mix(source, config, ledger) if isinstance(source, MixSource) else _documents_of(source, config, ledger)
    ledger.check_bad()


def documents(config: DataConfig, split: Split) -> Iterator[Any]:
    """The contents of one split."""
    return (document.content for document in read(config) if document.split == split)


def files_of(source: FilesSource, held_out: bool = False) -> list[Path]:
    """The files that are trained on, or the held-out ones; no file is both. Raises InputError for a wrong path."""
    path = source.validation_path
    validation = [] if path is None else files.search(path, "data.source.validation_path")
    taken = {file.resolve() for file in validation}
    train = files.search(source.path, "data.source.path", train_only=True)
    return validation if held_out else [file for file in train if file.resolve() not in taken]


# ---------------------------------------------------------------------------------------------------------
# one source


def _documents_of(source: Any, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    """Every document of one source. Held-out files and splits come first, so that a mix that ends early keeps them."""
    if isinstance(source, StoryworldSource):
        counts: dict[Split, int] = {"validation": source.validation_documents, "train": source.documents}
        for split, index, content in world_documents(source, config.records, counts):
            ledger.records += 1
            yield Document(content, split, f"storyworld, {split} {index}")
        return
    contents, fraction = _contents(source, False, config, ledger), config.validation_fraction
    splits: list[tuple[Split | None, Iterable[tuple[str, Any]]]] = [(None, contents)]  # None: by hash
    ends_are_held_out = False
    if (source.validation_path if isinstance(source, FilesSource) else source.validation_split) is not None:
        splits = [("validation", _contents(source, True, config, ledger)), ("train", contents)]
    elif config.records == "text" and isinstance(source, FilesSource) and source.document_start is None:
        few = list(islice(contents, math.ceil(FEW_HELD_OUT / fraction)))
        splits = [(None, chain(few, contents))]
        # plain texts may be books
        is_plain = all(files.kind_of(path) in files.PLAIN for path in files_of(source))
        ends_are_held_out = is_plain and len(few) * fraction < FEW_HELD_OUT
    seen: set[int] = set()
    for named, (where, content) in ((named, item) for named, items in splits for item in items):
        number = fingerprint(content)
        ledger.duplicates += number in seen
        if number in seen and config.drop_duplicates:
            continue
        seen.add(number)
        if ends_are_held_out:
            boundary = int(len(content) * (1 - fraction))
            parts = Document(content[:boundary], "train", where), Document(content[boundary:], "validation", where)
            yield from (part for part in parts if part.content)
        else:
            yield Document(content, named or split_of(number, fraction), where)


def fingerprint(content: Content) -> int:
    """64 bits of the SHA-256 of a document: the same on every machine, in [0, 2**64)."""
    text = content if isinstance(content, str) else repr(content)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def split_of(number: int, validation_fraction: float) -> Split:
    """Train or validation, by the document's own fingerprint: adding documents moves none of the others."""
    return "validation" if number < validation_fraction * 2**64 else "train"


def _contents(source: Any, held_out: bool, config: DataConfig, ledger: Ledger) -> Iterator[tuple[str, Any]]:
    """(where, text, conversation or pair) of every record that is good and not empty; the ledger notes the others.
    Raises InputError for a bad record, unless they are skipped and at most 1 %."""
    parse: Callable[[Any], Content] = partial(text_of, text_field=source.text_field)
    if config.records != "text":
        parse = partial(pair_of if config.records == "pairs" else conversation_of, names=config.chat_fields)
    is_text = config.records == "text"
    if isinstance(source, HubSource):
        records = files.dataset_records(source, str(source.validation_split if held_out else source.split))
    else:
        column, paths = source.text_field.partition(".")[0] if is_text else None, files_of(source, held_out)
        records = chain.from_iterable(files.records(file, source.separator, column) for file in paths)

    def good() -> Iterator[tuple[str, Any]]:
        for where, value, problem in islice(records, source.max_records):
            ledger.records += 1
            try:
                if problem:
                    raise BadRecord(problem)
                content = parse(value)
            except BadRecord as error:
                if config.on_bad_record == "stop":
                    raise InputError(f"{where}: {error} (or leave such records out: data.on_bad_record=skip)") from None
                ledger.bad += 1
                ledger.bad_records += [f"{where}: {error}"] * (len(ledger.bad_records) < LISTED)
                ledger.check_bad(at_least=MANY)
            else:
                yield where, content

    is_joined = is_text and source.document_start is not None
    for where, content in _joined(good(), re.compile(source.document_start)) if is_joined else good():
        if isinstance(content, str) and not content.strip():
            ledger.empty += 1
        else:
            yield where, content


def _joined(lines: Iterable[tuple[str, str]], document_start: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Records -> documents that begin where a record matches the pattern."""
    begun, text = "", ""
    for where, line in lines:
        if text and document_start.search(line):
            yield begun, text
            text = ""
        if text or line.strip():  # blank lines before a document are not part of it
            begun = begun if text else where
            text += line if line.endswith("\n") else line + "\n"
    yield begun, text


def _mix(mix: MixSource, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    """Take the next document from the part that lags most, in characters read divided by its weight.

    Held-out documents are passed on as they come.
    """
    weights = [part.weight for part in mix.parts]
    streams = [_documents_of(part.source, config, ledger) for part in mix.parts]
    characters, ended = [0] * len(weights), [False] * len(weights)
    while True:
        i = min(range(len(weights)), key=lambda n: characters[n] / weights[n])
        document = next(streams[i], None)
        if document is None:
            if not characters[i]:
                raise InputError(f"data.source.parts: part {i + 1} holds no training document")
            ended[i] = True
            if mix.stopping_strategy == "first_exhausted" or all(ended):
                return
            streams[i] = _documents_of(mix.parts[i].source, config, Ledger())
        elif document.split == "train":
            yield document
            content = document.content
            characters[i] += len(content if isinstance(content, str) else repr(content))
        elif not ended[i]:  # otherwise it came the first time
            yield document


# ---------------------------------------------------------------------------------------------------------
# the built-in world: document number `index` is a function of this number and the settings, and of nothing else


def world_documents(
    source: StoryworldSource, records: str, counts: Mapping[Split, int]
) -> Iterator[tuple[Split, int, Content]]:
    """(split, index, document) of as many documents of each split as `counts` says, in its order.

    All cores make documents, each in a process: of n processes each makes every n-th chunk and writes it to a pipe,
    which holds one or two, and waits until that is read. If the command ends or is killed, its processes find their
    pipes closed and end as well. They are plain processes and no `multiprocessing.Pool`: a pool imports the caller's
    main program once more in each of them (with torch, for seconds), and hangs if that program has no
    `if __name__ == "__main__"`.
    """
    number = min(MOST, usable_cores()) if sum(counts.values()) >= FEWEST else 1
    processes = [_start((source, records, counts, k, number)) for k in range(number)] if number > 1 else []
    try:
        for k, (split, numbers) in enumerate(_chunks(counts)):
            if processes:
                contents = pickle.load(processes[k % number].stdout)  # type: ignore[arg-type]
            else:
                contents = [world_document(source, index, split, records) for index in numbers]
            yield from ((split, index, content) for index, content in zip(numbers, contents, strict=True))
    finally:
        for process in processes:
            with process:  # waits for it, and closes its pipe
                process.kill()


def _chunks(counts: Mapping[Split, int]) -> Iterator[tuple[Split, range]]:
    return ((split, range(n)[i : i + CHUNK]) for split, n in counts.items() for i in range(0, n, CHUNK))


def _start(job: tuple) -> subprocess.Popen[bytes]:
    find = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", f"{find}; from data.reading.documents import make_share; make_share()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the command
    )
    with process.stdin as pipe:  # type: ignore[union-attr]
        pickle.dump(job, pipe)
    return process


def make_share() -> None:
    """What a process does: make every n-th chunk, from number k on."""
    source, records, counts, k, number = pickle.load(sys.stdin.buffer)
    with suppress(BrokenPipeError):
        for split, numbers in islice(_chunks(counts), k, None, number):
            pickle.dump([world_document(source, index, split, records) for index in numbers], sys.stdout.buffer)
            sys.stdout.buffer.flush()
    os._exit(0)  # without a word about a pipe that is closed


def world_document(source: StoryworldSource, index: int, split: Split, records: str) -> Content:
    """A story, a conversation about one, a pair of answers, facts and questions, or (evenly spread) repeated words."""
    rng = Random(f"names {source.seed} {index}")
    other_names = split == "train" and rng.random() < source.other_names
    repeats = int((index + 1) * source.repeats) > int(index * source.repeats)
    if records == "pairs":
        return pair_of(storyworld.prefer(source.seed, index, split, source.level))
    if records == "conversations":
        talk = talk_about(source, index, split, repeats)
        if other_names:
            talk = json.loads(storyworld.renamed([json.dumps(talk)], rng)[0])
        return conversation_of(talk)
    if source.recall is not None:
        return storyworld.recall(source.seed, index, source.recall, held_out=split == "validation").text
    if repeats:
        text = storyworld.repeated(source.seed, index, storyworld.REPEATED_WORDS, held_out=split == "validation").text
    else:
        text = storyworld.tell(source.seed, index, split, source.level).text
    return storyworld.renamed([text], rng)[0] if other_names else text


def talk_about(source: StoryworldSource, index: int, split: Split, repeats: bool) -> dict[str, Any]:
    """A conversation about a story; or one of `repeats`, or of the drills, whose shares are drawn."""
    if repeats:
        return storyworld.say_again(source.seed, index, split)
    drills = source.drills
    if source.course:  # those of the step that this document is in; held-out ones are of the last
        ends = list(accumulate(step.weight for step in source.course))
        done = 1.0 if split == "validation" else (index + 0.5) / source.documents
        drills = source.course[min(bisect(ends, done * ends[-1]), len(ends) - 1)].drills
    drawn = Random(f"drills {source.seed} {index}").random()
    for name, share in drills.items():
        drawn -= share
        if drawn < 0:
            return storyworld.DRILLS[name](source.seed, index, split)
    if source.chats == "mixed":
        return storyworld.converse(source.seed, index, split, source.level)
    options = {key: getattr(source, key) for key in ("told", "told_weight", "checked", "echoed")}
    options |= {"most": source.questions, "weights": source.class_weights}
    return storyworld.interview(source.seed, index, split, source.level, **options)
