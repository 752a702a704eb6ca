"""Who may write into a folder? One process at a time: it holds a lock on FOLDER/owner.lock as long as it works there.

owner.json says who that is, for the message that another process prints. Both are removed at the end. After a kill they
stay, but the lock has ended with the process, and the next owner takes them over.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, Timeout
from pydantic import BaseModel, Field

from configs.command import InputError
from configs.locks import locked
from configs.read_back import DamagedFile, read_json

LOCK, CARD = "owner.lock", "owner.json"
FILES = (LOCK, CARD, "owner.lock.lease")  # the last one on file systems without locks (configs/locks.py)
PATIENCE_S = 1.0  # with an owner that is just leaving, or with somebody who looks at the lock (`holder`)


class Holder(BaseModel):
    """owner.json."""

    pid: int
    host: str = Field(max_length=255)
    since: str = Field(max_length=40)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class Owner:
    """The folder and, in the process that owns it, its lock.

    problem: why the folder cannot be taken, one line for the user: somebody holds it, or it cannot be written.
    """

    def __init__(self, directory: Path):
        self.directory, self.problem = directory, ""
        self._lock: BaseFileLock | None = None
        self._card = ""
        self._made: list[Path] = []

    @property
    def lost(self) -> bool:
        """Whether the folder is no longer ours: it was moved, deleted or replaced, or another process took it."""
        if self._lock is None:
            return False
        try:
            return (self.directory / CARD).read_text(encoding="utf-8") != self._card
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError):
            return False  # the next write says what is wrong

    def check(self) -> None:
        """Raises InputError if the folder is no longer ours."""
        if self.lost:
            raise InputError(
                f"{self.directory} was moved, replaced or deleted while this process was writing into it, so it stops: "
                "checkpoints that were saved are where the folder is now; move it back and the same command continues"
            )

    def take(self, named: str) -> None:
        """Take the folder, which is made if it does not exist; or set `problem`. named: the key that names it."""
        here = Holder(pid=os.getpid(), host=socket.gethostname(), since=time.strftime("%Y-%m-%d %H:%M:%S"))
        try:
            self._made = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
            self._lock = _lock(self.directory)
            self._card = here.model_dump_json() + "\n"
            (self.directory / CARD).unlink(missing_ok=True)  # it may be a link
            (self.directory / CARD).write_text(self._card, encoding="utf-8")
        except Timeout:
            self.problem = f"{self.directory} is in use by {_described(self.directory)}: wait until it ends, or stop it"
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
            file = getattr(error, "filename", None) or self.directory
            self.problem = f"{named}: {file} cannot be written: {getattr(error, 'strerror', None) or error}"

    def release(self) -> None:
        """Give the folder back. It is as if it had never been made if nothing else was written into it."""
        if self._lock is None:
            return
        is_ours = not self.lost
        for name in (CARD, LOCK) if is_ours else ():  # while it is locked: who waits for the lock sees that it is gone
            with suppress(OSError):
                (self.directory / name).unlink()
        self._lock.release()
        self._lock = None
        with suppress(OSError):
            for path in self._made if is_ours else ():
                path.rmdir()


@contextmanager
def owned(directory: Path, is_first: bool = True, named: str = "output_dir") -> Iterator[Owner]:
    """While inside, this process owns the folder, or `problem` says why not. is_first: others need no lock."""
    owner = Owner(directory)
    if is_first:
        owner.take(named)
    try:
        yield owner
    finally:
        owner.release()


def holder(directory: Path) -> str:
    """Who owns a folder now, in words; "" if nobody does."""
    if not any((directory / name).exists() for name in FILES):
        return ""
    try:
        locked(directory / LOCK, wait_s=0).lock.release()
    except Timeout:
        return _described(directory)
    except OSError:
        return ""
    return ""


def _lock(directory: Path) -> BaseFileLock:
    """Raises Timeout if another process owns the folder, OSError if it cannot be made or locked."""
    for _ in range(20):
        directory.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # an owner that left it empty has just removed it
            return locked(directory / LOCK, PATIENCE_S).lock
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))


def _described(directory: Path) -> str:
    with suppress(DamagedFile):
        return str(read_json(directory / CARD, Holder))
    return "another process"
