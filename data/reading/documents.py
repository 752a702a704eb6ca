"""Read the documents of a source, and decide which of them are held out.

A source is read once, in a fixed order. A document's split depends on the document alone: its seed,
its file or its hash.
"""

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

# At most this many bad records are listed one by one.
LISTED = 1000
# The share of bad records is checked after this many records.
MANY = 1000
# A process makes this many stories at a time.
CHUNK = 32
# Fewer stories are made in this process: starting others takes half a second.
FEWEST = 1000
# At most this many processes make stories.
MOST = 8
# A hash that would hold out fewer documents than this leaves their share to chance (two books).
# Then the end of each document is held out.
FEW_HELD_OUT = 5
Content = str | Conversation | Pair


class Document(NamedTuple):
    """A text, a conversation or a pair of one split, and where it was read."""

    content: Content
    split: Split
    where: str


@dataclass
class Ledger:
    """Counts of records, and the bad ones with their reasons."""

    records: int = 0
    empty: int = 0
    duplicates: int = 0
    bad: int = 0
    bad_records: list[str] = field(default_factory=list)

    def check_bad(self, at_least: int = 0) -> None:
        """Raise InputError if more than 1 % of at least this many records are bad."""
        if self.bad > 0.01 * self.records and self.records >= at_least:
            examples = "; ".join(self.bad_records[:3])
            raise InputError(
                f"data.source: {self.bad:,} of {self.records:,} records cannot be used, more "
                f"than 1 %: {examples}: repair them, or name other files"
            )


def read(config: DataConfig, ledger: Ledger | None = None) -> Iterator[Document]:
    """Yield the documents of both splits. Raises InputError with file, line and remedy."""
    ledger = ledger or Ledger()
    if isinstance(config.source, MixSource):
        yield from _mix(config.source, config, ledger)
    else:
        yield from _documents_of(config.source, config, ledger)
    ledger.check_bad()


def documents(config: DataConfig, split: Split) -> Iterator[Any]:
    """Yield the contents of one split."""
    return (document.content for document in read(config) if document.split == split)


def files_of(source: FilesSource, held_out: bool = False) -> list[Path]:
    """Return the files to train on, or the held-out ones. Raises InputError for a wrong path."""
    validation: list[Path] = []
    if source.validation_path is not None:
        validation = files.search(source.validation_path, "data.source.validation_path")
    train = files.search(source.path, "data.source.path", train_only=True)
    if held_out:
        return validation
    taken = {file.resolve() for file in validation}
    return [file for file in train if file.resolve() not in taken]


# one source


def _documents_of(source: Any, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    if isinstance(source, StoryworldSource):
        counts: dict[Split, int]
        counts = {"validation": source.validation_documents, "train": source.documents}
        for split, index, content in world_documents(source, config.records, counts):
            ledger.records += 1
            yield Document(content, split, f"storyworld, {split} {index}")
        return
    # the built-in world needs none: it makes held-out documents of their own
    fraction = config.validation_fraction
    contents = _contents(source, False, config, ledger)
    is_files = isinstance(source, FilesSource)
    # without a name, a document's hash decides its split
    parts: list[tuple[Split | None, Iterable[tuple[str, Any]]]] = [(None, contents)]
    ends_are_held_out = False
    if (source.validation_path if is_files else source.validation_split) is not None:
        # held-out files come first, so that a mix that ends early has read them
        parts = [("validation", _contents(source, True, config, ledger)), ("train", contents)]
    elif config.records == "text" and is_files and source.document_start is None:
        few = list(islice(contents, math.ceil(FEW_HELD_OUT / fraction)))
        parts = [(None, chain(few, contents))]
        # plain texts may be books, which can be cut; records cannot
        is_plain = all(files.kind_of(path) in files.PLAIN for path in files_of(source))
        ends_are_held_out = is_plain and len(few) * fraction < FEW_HELD_OUT
    # fingerprints, because texts may not fit in memory
    seen: set[int] = set()
    for named_split, items in parts:
        for where, content in items:
            number = fingerprint(content)
            # counted in any case, so that a manifest shows a text that was collected twice
            ledger.duplicates += number in seen
            if number in seen and config.drop_duplicates:
                continue
            seen.add(number)
            if not ends_are_held_out:
                # by the hash: a document keeps its split when others are added
                own_split: Split = "validation" if number < fraction * 2**64 else "train"
                yield Document(content, named_split or own_split, where)
                continue
            boundary = int(len(content) * (1 - fraction))
            if content[:boundary]:
                yield Document(content[:boundary], "train", where)
            if content[boundary:]:
                yield Document(content[boundary:], "validation", where)


def fingerprint(content: Content) -> int:
    """Return 64 bits of a document's SHA-256, in [0, 2**64)."""
    # note: Python's own `hash` of a text differs from process to process
    text = content if isinstance(content, str) else repr(content)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


def _contents(
    source: Any, held_out: bool, config: DataConfig, ledger: Ledger
) -> Iterator[tuple[str, Any]]:
    # (where, content) of every good record that is not empty; the ledger counts the others
    parse: Callable[[Any], Content]
    column = None
    if config.records == "text":
        parse = partial(text_of, text_field=source.text_field)
        # a wide table is read faster by its one column
        column = source.text_field.partition(".")[0]
    elif config.records == "pairs":
        parse = partial(pair_of, names=config.chat_fields)
    else:
        parse = partial(conversation_of, names=config.chat_fields)
    records: Iterator[files.Record]
    if isinstance(source, HubSource):
        split = source.validation_split if held_out else source.split
        records = files.dataset_records(source, str(split))
    else:
        paths = files_of(source, held_out)
        records = chain.from_iterable(
            files.records(path, source.separator, column) for path in paths
        )

    def good() -> Iterator[tuple[str, Any]]:
        for where, value, problem in islice(records, source.max_records):
            ledger.records += 1
            try:
                if problem:
                    raise BadRecord(problem)
                content = parse(value)
            except BadRecord as error:
                if config.on_bad_record == "stop":
                    raise InputError(
                        f"{where}: {error} (or leave such records out: data.on_bad_record=skip)"
                    ) from None
                ledger.bad += 1
                if len(ledger.bad_records) < LISTED:
                    ledger.bad_records.append(f"{where}: {error}")
                # early: nobody should wait an hour to learn that a whole file is of another kind
                ledger.check_bad(at_least=MANY)
            else:
                yield where, content

    items = good()
    if config.records == "text" and source.document_start is not None:
        items = _joined(items, re.compile(source.document_start))
    for where, content in items:
        if isinstance(content, str) and not content.strip():
            ledger.empty += 1
        else:
            yield where, content


def _joined(
    lines: Iterable[tuple[str, str]], document_start: re.Pattern[str]
) -> Iterator[tuple[str, str]]:
    begin = ""
    text = ""
    for where, line in lines:
        if text and document_start.search(line):
            yield begin, text
            text = ""
        # blank lines before a document are not part of it
        if not text and not line.strip():
            continue
        if not text:
            begin = where
        text += line if line.endswith("\n") else line + "\n"
    yield begin, text


def _mix(mix: MixSource, config: DataConfig, ledger: Ledger) -> Iterator[Document]:
    # Characters, not documents, are compared with the weights: parts may have documents of very
    # different lengths.
    weights = [part.weight for part in mix.parts]
    streams = [_documents_of(part.source, config, ledger) for part in mix.parts]
    characters = [0] * len(weights)
    ended = [False] * len(weights)
    while True:
        # the next training document is of the part with the fewest characters for its weight
        i = min(range(len(weights)), key=lambda n: characters[n] / weights[n])
        document = next(streams[i], None)
        if document is None:
            if not characters[i]:
                raise InputError(f"data.source.parts: part {i + 1} holds no training document")
            ended[i] = True
            if mix.stopping_strategy == "first_exhausted" or all(ended):
                return
            # the part begins again; its records are counted already
            streams[i] = _documents_of(mix.parts[i].source, config, Ledger())
        elif document.split == "train":
            yield document
            content = document.content
            characters[i] += len(content if isinstance(content, str) else repr(content))
        # a part that has begun again has passed on its held-out documents before
        elif not ended[i]:
            yield document


# the built-in world: a document is a function of its index and the settings


def world_documents(
    source: StoryworldSource, records: str, counts: Mapping[Split, int]
) -> Iterator[tuple[Split, int, Content]]:
    """Yield (split, index, document), as many of each split as `counts` has, in its order."""
    # With n processes, each makes every n-th chunk and writes it to a pipe. A full pipe makes it
    # wait, a closed one ends it.
    # note: no `multiprocessing.Pool`. A pool imports the caller's main program in each process
    # (with torch, for seconds), and hangs if that has no `if __name__ == "__main__"`.
    number = min(MOST, usable_cores()) if sum(counts.values()) >= FEWEST else 1
    processes: list[subprocess.Popen[bytes]] = []
    if number > 1:
        processes = [_start((source, records, counts, k, number)) for k in range(number)]
    try:
        for k, (split, indices) in enumerate(_chunks(counts)):
            if processes:
                contents = pickle.load(processes[k % number].stdout)  # type: ignore[arg-type]
            else:
                contents = [world_document(source, i, split, records) for i in indices]
            for index, content in zip(indices, contents, strict=True):
                yield split, index, content
    finally:
        for process in processes:
            # leaving `with` closes the pipe and waits for the process
            with process:
                process.kill()


def _chunks(counts: Mapping[Split, int]) -> Iterator[tuple[Split, range]]:
    for split, count in counts.items():
        for start in range(0, count, CHUNK):
            yield split, range(start, min(start + CHUNK, count))


def _start(job: tuple) -> subprocess.Popen[bytes]:
    path = str(Path(__file__).parents[2])
    program = (
        f"import sys; sys.path.insert(0, {path!r}); "
        "from data.reading.documents import make_share; make_share()"
    )
    # -P: no modules of the current folder
    # the new session keeps Ctrl-C for the command itself
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process.stdin as pipe:  # type: ignore[union-attr]
        pickle.dump(job, pipe)
    return process


def make_share() -> None:
    """Make every n-th chunk from number k on: the program of a started process."""
    source, records, counts, k, number = pickle.load(sys.stdin.buffer)
    with suppress(BrokenPipeError):
        for split, indices in islice(_chunks(counts), k, None, number):
            contents = [world_document(source, i, split, records) for i in indices]
            pickle.dump(contents, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    # an ordinary exit would complain about a closed pipe
    os._exit(0)


def world_document(source: StoryworldSource, index: int, split: Split, records: str) -> Content:
    """Make a story, a conversation, a pair, facts with questions, or what repeats."""
    rng = Random(f"names {source.seed} {index}")
    other_names = split == "train" and rng.random() < source.other_names
    # evenly spread: wherever index * repeats passes a whole number
    repeats = int((index + 1) * source.repeats) > int(index * source.repeats)
    held_out = split == "validation"
    if records == "pairs":
        return pair_of(storyworld.prefer(source.seed, index, split, source.level))
    if records == "conversations":
        talk = talk_about(source, index, split, repeats)
        if other_names:
            talk = json.loads(storyworld.renamed([json.dumps(talk)], rng)[0])
        return conversation_of(talk)
    if source.recall is not None:
        return storyworld.recall(source.seed, index, source.recall, held_out).text
    if source.blocks is not None:
        return storyworld.blocks(source.seed, index, source.blocks, held_out)
    if repeats:
        lengths = storyworld.REPEATED_WORDS
        text = storyworld.repeated(source.seed, index, lengths, held_out).text
    else:
        text = storyworld.tell(source.seed, index, split, source.level).text
    return storyworld.renamed([text], rng)[0] if other_names else text


def talk_about(source: StoryworldSource, index: int, split: Split, repeats: bool) -> dict[str, Any]:
    """Make a conversation about a story, a drill (drawn by its share), or repeated words."""
    if repeats:
        return storyworld.say_again(source.seed, index, split)
    drills = source.drills
    if source.course:
        # the step of the course that this document is in; held-out documents are of the last one
        ends = list(accumulate(step.weight for step in source.course))
        progress = 1.0 if split == "validation" else (index + 0.5) / source.documents
        step = bisect(ends, progress * ends[-1])
        drills = source.course[min(step, len(ends) - 1)].drills
    # the shares are intervals of [0, 1), the rest is for stories
    drawn = Random(f"drills {source.seed} {index}").random()
    for name, share in drills.items():
        drawn -= share
        if drawn < 0:
            return storyworld.DRILLS[name](source.seed, index, split)
    if source.chats == "mixed":
        return storyworld.converse(source.seed, index, split, source.level)
    return storyworld.interview(
        source.seed,
        index,
        split,
        source.level,
        most=source.questions,
        weights=source.class_weights,
        told=source.told,
        told_weight=source.told_weight,
        checked=source.checked,
        echoed=source.echoed,
    )
