"""Several processes tell what one tells, in its order; none of them outlives the command."""

import multiprocessing
import os
import signal

import psutil
import pytest

from data.config import StoryworldSource
from data.reading import documents
from data.reading.documents import CHUNK, world_document, world_documents
from tests.processes import start

SOURCE = StoryworldSource(kind="storyworld", chats="questions", class_weights={"where": 3}, other_names=0.3)
COUNTS = {"validation": CHUNK + 3, "train": 5 * CHUNK - 1}


@pytest.mark.parametrize("records", ["text", "conversations", "pairs"])
def test_documents_and_order_are_those_of_one_process_and_who_stops_early_leaves_none_behind(records, monkeypatch):
    monkeypatch.setattr(documents, "usable_cores", lambda: 2)  # whatever this machine has
    monkeypatch.setattr(documents, "FEWEST", 1)
    numbers = [(split, index) for split, count in COUNTS.items() for index in range(count)]
    alone = [(split, index, world_document(SOURCE, index, split, records)) for split, index in numbers]
    before = set(psutil.Process().children())
    found = world_documents(SOURCE, records, COUNTS)
    first = next(found)
    tellers = set(psutil.Process().children()) - before
    assert len(tellers) == 2
    assert [first, *found] == alone
    found = world_documents(SOURCE, records, COUNTS)
    next(found)
    tellers |= set(psutil.Process().children()) - before
    found.close()
    assert not any(teller.is_running() for teller in tellers)


def _tell_and_wait(pids) -> None:
    documents.usable_cores = lambda: 2
    endless = world_documents(SOURCE, "text", {"train": 10**9})
    next(endless)
    pids.send([child.pid for child in psutil.Process().children()])
    signal.pause()


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_if_the_command_is_killed_its_processes_find_their_pipes_closed():
    here, there = multiprocessing.Pipe()
    command = start(_tell_and_wait, there)
    assert here.poll(60)
    children = [psutil.Process(pid) for pid in here.recv()]
    assert len(children) == 2
    command.kill()
    command.join()
    assert psutil.wait_procs(children, timeout=60)[1] == []
