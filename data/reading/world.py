"""What the built-in world makes of its settings: document number `index`, a function of these and nothing else.

All cores make documents, each in a process: of n processes each makes every n-th chunk and writes it to a pipe, which
holds one or two, and waits until that is read. If the command ends or is killed, its processes find their pipes closed
and end as well. They are plain processes and no `multiprocessing.Pool`: a pool imports the caller's main program once
more in each of them (with torch, for seconds), and hangs if that program has no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from bisect import bisect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import accumulate, islice
from pathlib import Path
from random import Random
from typing import Any

from configs.command import usable_cores
from data import storyworld
from data.config import Split, StoryworldSource
from data.reading.records import Conversation, Pair, conversation_of, pair_of

CHUNK = 32  # documents
FEWEST = 1000  # documents, from which it pays to start processes, which takes them half a second
MOST = 8  # processes

Content = str | Conversation | Pair


def world_documents(
    source: StoryworldSource, records: str, counts: Mapping[Split, int]
) -> Iterator[tuple[Split, int, Content]]:
    """(split, index, document) of as many documents of each split as `counts` says, in its order."""
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
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]


def _chunks(counts: Mapping[Split, int]) -> Iterator[tuple[Split, range]]:
    return ((split, range(n)[i : i + CHUNK]) for split, n in counts.items() for i in range(0, n, CHUNK))


def _start(job: tuple) -> subprocess.Popen[bytes]:
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", "from data.reading.world import make_share; make_share()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
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
        words = storyworld.REPEATED_WORDS
        text = storyworld.repeated(source.seed, index, words, held_out=split == "validation").text
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
