"""Documents of the built-in world, told by all cores: in threads of one process, Python would tell one at a time.

    process 0   chunk 0   chunk 2   …     Each process tells every n-th chunk and writes it to a pipe, which holds
    process 1   chunk 1   chunk 3   …     one or two: it waits until that is read. Where nobody reads any more, because
                                          the command ended or was killed, it finds its pipe closed and ends as well.

What a process cannot tell, because it could not be started or was killed, this one tells. The documents and their order
are the same with any number of processes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from configs.command import usable_cores
from data.config import StoryworldSource
from data.reading.ledger import Split
from data.reading.world import Content, invented

CHUNK = 32  # documents
FEWEST = 1000  # documents, from which it pays to start processes, which takes them half a second
MOST = 8  # processes
ROOT = Path(__file__).parents[2]

Counts = Mapping[Split, int]
Chunk = tuple[Split, range]


def told(source: StoryworldSource, records: str, counts: Counts) -> Iterator[tuple[Split, int, Content]]:
    """(split, index, document) of as many documents of each split as `counts` says, in its order."""
    number = min(MOST, usable_cores()) if sum(counts.values()) >= FEWEST else 1
    processes = [_start(source, records, counts, k, number) for k in range(number)] if number > 1 else [None]
    try:
        for k, (split, numbers) in enumerate(_chunks(counts)):
            contents = _read(processes[k % number]) or _tell(source, records, (split, numbers))
            yield from ((split, index, content) for index, content in zip(numbers, contents, strict=True))
    finally:
        for process in filter(None, processes):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _chunks(counts: Counts) -> Iterator[Chunk]:
    for split, count in counts.items():
        for first in range(0, count, CHUNK):
            yield split, range(first, min(first + CHUNK, count))


def _tell(source: StoryworldSource, records: str, chunk: Chunk) -> list[Content]:
    split, numbers = chunk
    return [invented(source, index, split, records) for index in numbers]


def _start(*job: Any) -> subprocess.Popen[bytes] | None:
    """A process that does `tell_share` with this job; None where none can be started."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import tell_share; tell_share()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what it cannot tell this process tells, and says what is wrong with it
            env=os.environ | {"PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is for the command
        )
    except OSError:
        return None
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.write(pickle.dumps(job))
    with suppress(OSError):
        process.stdin.close()
    return process


def _read(process: subprocess.Popen[bytes] | None) -> list[Content]:
    """The next chunk of a process; nothing if it has ended."""
    if process is None or process.stdout is None:
        return []
    try:
        return pickle.load(process.stdout)
    except (EOFError, pickle.UnpicklingError):
        return []


def tell_share() -> None:
    """What a process does: tell every n-th chunk, from number k on. The job comes from `_start`, on standard input."""
    source, records, counts, k, number = pickle.load(sys.stdin.buffer)
    with suppress(BrokenPipeError):
        for chunk in islice(_chunks(counts), k, None, number):
            pickle.dump(_tell(source, records, chunk), sys.stdout.buffer)
            sys.stdout.buffer.flush()
    os._exit(0)  # without a word about a pipe that is closed
