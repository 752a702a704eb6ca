"""Several processes tell what one tells, in its order, whatever becomes of them; none of them outlives the command."""

import multiprocessing
import os
import signal
import subprocess
from itertools import islice

import psutil
import pytest
from data.reading.tellers import CHUNK, told

from data.config import ClassWeights, StoryworldSource
from data.reading import tellers
from data.reading.world import invented
from tests.processes import start

SOURCE = StoryworldSource(kind="storyworld", chats="questions", class_weights=ClassWeights(where=3), other_names=0.3)
COUNTS = {"validation": CHUNK + 3, "train": 5 * CHUNK - 1}


@pytest.fixture
def several(monkeypatch):
    """Two processes, whatever this machine has; returns those that were started."""
    monkeypatch.setattr(tellers, "usable_cores", lambda: 2)
    monkeypatch.setattr(tellers, "FEWEST", 1)
    started = []
    monkeypatch.setattr(
        tellers, "_start", lambda *job, begin=tellers._start: started.append(begin(*job)) or started[-1]
    )
    return started


def alone(records):
    return [
        (split, index, invented(SOURCE, index, split, records))
        for split, count in COUNTS.items()
        for index in range(count)
    ]


@pytest.mark.parametrize("records", ["text", "conversations", "pairs"])
def test_the_documents_and_their_order_are_those_of_one_process(records, several):
    assert list(told(SOURCE, records, COUNTS)) == alone(records)
    assert len(several) == 2
    assert {process.poll() for process in several} <= {0, -signal.SIGKILL}


def test_few_documents_are_told_here(monkeypatch):
    monkeypatch.setattr(tellers, "_start", lambda *job: pytest.fail("a process for few documents"))
    assert list(told(SOURCE, "text", COUNTS)) == alone("text")


def test_what_a_killed_process_did_not_tell_is_told_here(several):
    found = told(SOURCE, "conversations", COUNTS)
    some = list(islice(found, 5))
    several[1].kill()
    assert [*some, *found] == alone("conversations")


def test_where_no_process_can_be_started_all_is_told_here(several, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert list(told(SOURCE, "text", COUNTS)) == alone("text")
    assert several == [None, None]


def test_who_stops_early_leaves_no_process_behind(several):
    found = told(SOURCE, "conversations", COUNTS)
    next(found)
    found.close()
    assert all(process.poll() is not None for process in several)


def _tell_and_wait(pids) -> None:
    tellers.usable_cores = lambda: 2
    endless = told(SOURCE, "text", {"train": 10**9})
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
