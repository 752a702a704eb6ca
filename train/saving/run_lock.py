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
from configs.files import DamagedFile, read_json
from configs.locks import locked

LOCK, CARD = "owner.lock", "owner.json"
LEASE = "owner.lock.lease"  # on file systems without locks (configs/locks.py)
FILES = (LOCK, CARD, LEASE)
PATIENCE_S = 1.0  # with an owner that is just leaving, or with somebody who looks at the lock (`holder`)


class Holder(BaseModel):
    """owner.json."""

    pid: int
    host: str = Field(max_length=255)
    since: str = Field(max_length=40)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class Owner:
    """A folder, and whether it is ours.

    problem: why it cannot be taken, one line for the user: somebody holds it, or it cannot be written.
    """

    def __init__(self, directory: Path):
        self.directory, self.problem = directory, ""
        self.card = ""  # what owner.json holds as long as the folder is ours; "" in a process that took nothing

    @property
    def lost(self) -> bool:
        """Whether the folder is no longer ours: it was moved, deleted or replaced, or another process took it."""
        try:
            return self.card != "" and (self.directory / CARD).read_text(encoding="utf-8") != self.card
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


@contextmanager
def owned(directory: Path, is_first: bool = True, named: str = "output_dir") -> Iterator[Owner]:
    """While inside, this process owns the folder, which is made if it does not exist; or `problem` says why not.

    is_first: others need no lock. named: the key or option that names the folder.
    """
    owner, lock, made = Owner(directory), None, list[Path]()
    if is_first:
        here = Holder(pid=os.getpid(), host=socket.gethostname(), since=time.strftime("%Y-%m-%d %H:%M:%S"))
        try:
            made = [path for path in (directory, *directory.parents) if not path.exists()]
            lock = _lock(directory)
            (directory / CARD).unlink(missing_ok=True)  # it may be a link
            (directory / CARD).write_text(here.model_dump_json(), encoding="utf-8")
            owner.card = here.model_dump_json()
        except Timeout:
            owner.problem = f"{directory} is in use by {_described(directory)}: wait until it ends, or stop it"
            if (directory / LEASE).exists():  # of another host it cannot be asked whether the process lives
                owner.problem += f"; if it is gone, delete {directory / LEASE}"
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
            file = getattr(error, "filename", None) or directory
            owner.problem = f"{named}: {file} cannot be written: {getattr(error, 'strerror', None) or error}"
    try:
        yield owner
    finally:
        is_ours = not owner.lost
        if lock is not None and is_ours:
            for name in (CARD, LOCK):  # while it is locked: who waits for the lock sees that it is gone
                with suppress(OSError):
                    (directory / name).unlink()
        if lock is not None:
            lock.release()
        with suppress(OSError):  # as if the folder had never been made, if nothing else was written into it
            for path in made if lock is not None and is_ours else ():
                path.rmdir()


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
