"""Who may write into a folder? One process at a time: it holds an operating-system lock for as long as it works there.

    owner.lock         what is locked (configs/locks.py); the lock ends with the process, however that ends
    owner.json         who holds it, for the message that another process prints
    owner.lock.lease   on file systems without locks: the owner renews it every few seconds

All three are removed at the end. After a kill they may stay; the next owner takes them over.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, Timeout
from pydantic import BaseModel, Field

from configs import locks
from configs.command import InputError
from configs.locks import lease_of, locked
from configs.read_back import DamagedFile, read_json

LOCK, CARD, LEASE = "owner.lock", "owner.json", "owner.lock.lease"
FILES = (LOCK, CARD, LEASE)
PATIENCE_S = 1.0  # of a look at the lock by `holder`, or of an owner that is just leaving
UNKNOWN = "another process"


class Holder(BaseModel):
    """owner.json."""

    pid: int
    host: str = Field(max_length=255)
    since: str = Field(max_length=40)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class Owner:
    """The folder and, in the process that owns it, its lock. holder: another process that owns it, in words, or "".

    problem: why the folder cannot be taken, one line for the user: somebody holds it, or it cannot be written.
    named: the key or option that names the folder.
    """

    def __init__(self, directory: Path, named: str):
        self.directory, self.named = directory, named
        self.holder = self.problem = ""
        self._lock: BaseFileLock | None = None
        self._identity, self._card = (0, 0), ""
        self._made: list[Path] = []
        self._is_overdue = False

    def check(self) -> None:
        """Raises InputError if the folder is no longer ours, for example because it was moved."""
        if self.lost:
            raise InputError(
                f"{self.directory} {self.lost} while this process was writing into it, so it stops: checkpoints that "
                "were saved are where the folder is now; move it back and the same command continues"
            )

    @property
    def lost(self) -> str:
        """What happened to the folder since it was taken, in words; "" if it is still ours."""
        if self._lock is None:
            return ""
        try:
            is_same = (
                _identity(self.directory) == self._identity
                or (self.directory / CARD).read_text(encoding="utf-8") == self._card
            )
        except (FileNotFoundError, NotADirectoryError):
            is_same = False
        except (OSError, ValueError):
            is_same = True  # the next write says what is wrong
        if is_same and self._is_overdue:
            return f"was taken over by another process, because {LEASE} was not renewed,"
        return "" if is_same else "was moved, replaced or deleted"

    def take(self) -> None:
        """Take the folder, which is made if it does not exist; or set `problem`."""
        here = Holder(pid=os.getpid(), host=socket.gethostname(), since=time.strftime("%Y-%m-%d %H:%M:%S"))
        try:
            self._made = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
            self._lock = _taken(self.directory, self._note_overdue)
            self._identity, self._card = _identity(self.directory), here.model_dump_json() + "\n"
            (self.directory / CARD).unlink(missing_ok=True)
            with (self.directory / CARD).open("x", encoding="utf-8") as stream:  # never through a link
                stream.write(self._card)
        except Timeout:
            self.holder = _described(self.directory)
            self.problem = f"{self.directory} is in use by {self.holder}: wait until it ends, or stop it"
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
            self.problem = f"{self.named}: {_problem(self.directory, error)}"

    def release(self) -> None:
        """Give the folder back. It is as if it had never been made if nothing else was written into it."""
        if self._lock is None:
            return
        is_ours = not self.lost
        for name in (CARD, LOCK) if is_ours else ():  # while it is locked: who opened the file sees that it is gone
            with suppress(OSError):
                (self.directory / name).unlink()
        self._lock.release()
        self._lock = None
        with suppress(OSError):
            for path in self._made if is_ours else ():
                path.rmdir()

    def _note_overdue(self, reason: object) -> None:
        self._is_overdue = True


@contextmanager
def owned(directory: Path, is_first: bool = True, named: str = "output_dir") -> Iterator[Owner]:
    """While inside, this process owns the folder, or `problem` says why not. is_first: others need no lock."""
    owner = Owner(directory, named)
    if is_first:
        owner.take()
    try:
        yield owner
    finally:
        owner.release()


def holder(directory: Path) -> str:
    """Who owns a folder now, in words; "" if nobody does. For those who wait for it."""
    if not any((directory / name).exists() for name in (LOCK, LEASE)):
        return ""
    try:
        locked(directory / LOCK, wait_s=0).lock.release()
    except Timeout:
        return _described(directory)
    except OSError:
        return ""
    return ""


def _taken(directory: Path, note_overdue: Callable[[object], None]) -> BaseFileLock:
    """Raises Timeout if another process owns the folder, OSError if it cannot be made or locked."""
    for _ in range(20):
        directory.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # an owner that left it empty has just removed it
            try:
                return locked(directory / LOCK, PATIENCE_S, note_overdue).lock
            except Timeout:
                there = _read_card(directory)
                if not lease_of(directory / LOCK).exists() or (there and there.host == socket.gethostname()):
                    raise
                wait_s = 1.25 * locks.LEASE_S
                print(f"{directory}: waiting to see whether {there or UNKNOWN} still runs", file=sys.stderr)
                return locked(directory / LOCK, wait_s, note_overdue).lock
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _identity(directory: Path) -> tuple[int, int]:
    found = directory.stat()
    return found.st_dev, found.st_ino


def _read_card(directory: Path) -> Holder | None:
    with suppress(DamagedFile):
        if (directory / CARD).is_file():
            return read_json(directory / CARD, Holder, 10_000)
    return None


def _described(directory: Path) -> str:
    return str(_read_card(directory) or UNKNOWN)


def _problem(directory: Path, error: OSError | ValueError) -> str:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    file = Path(getattr(error, "filename", None) or directory)
    if file.name in FILES and os.path.lexists(file):
        return f"{file} cannot be used: {reason}: delete it if no other process uses {directory}"
    return f"{directory if file.name in FILES else file} cannot be written: {reason}"
