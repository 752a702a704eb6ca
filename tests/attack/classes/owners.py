"""Who owns a run directory? Lock files that are foreign or not files, run directories that are something else, and
directories that a living process holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from filelock import BaseFileLock, FileLock

from tests.attack.attack import Case
from tests.attack.victims import stopped, trained, write_config
from train.saving.run_lock import CARD, FILES, LOCK

TRAIN = ("train.pretrain", "tiny.yaml", "eval.hooks=[]")  # nothing is drawn, so a case takes a moment
LOCKLESS = ("tests.attack.without_locks", *TRAIN[1:])
SWEEP = ("train.sweep", "tiny.yaml", "train.optimizer.lr=0.02,0.01", "--skip-decode")
OURS = tuple(f"runs/tiny/{name}" for name in FILES)  # the next owner may replace and remove them, whatever is in them
OTHER = "keep me\n"  # what a link leads to: nothing may be written through it


def card(**values) -> bytes:
    return json.dumps({"pid": 7, "host": "alpha", "since": "2026-01-01 00:00:00"} | values).encode()


BYTES = {
    "empty": b"",
    "binary": bytes(range(256)) * 40,
    "20 MB of zeros": bytes(20_000_000),
    "a list": b"[1, 2]",
    "torn": card()[:20],
    "9,000 lists in one another": b"[" * 9000,
    "of a process that lives nowhere": card(),
    "of a process that is no process": card(pid=-1),
    "of process 10**30": card(pid=10**30),
    "of a host that controls the terminal": card(host="\x1b[2J\x07\u202eevil\n"),
    "of a host of 9,000 letters": card(host="a" * 9000),
    "of another kind": card(pid="7", host=7, since=None),
    "a lease of another version": b"filelock/9\npid=1\nhost=alpha\n",
    "a lease of another host": (
        b"filelock/2\npid=1\nhost=alpha\nmode=lease\ntoken=%032d\nduration=0.4\nstart=1\n\n" % 0
    ),
}


def bytes_of(raw: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(raw)


def folder_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text(OTHER)


PLACES: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a folder with a file": folder_with_a_file,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to another file": lambda path: path.symlink_to("../../other.txt"),
    "a pipe": os.mkfifo,
}
FILE_KINDS = {what: bytes_of(raw) for what, raw in BYTES.items()} | PLACES
DIRECTORY_KINDS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.mkdir(),
    "a file": bytes_of(b"x"),
    "a link to itself": PLACES["a link to itself"],
    "a link to nothing": PLACES["a link to nothing"],
    "a link to a file": lambda path: path.symlink_to("../text.txt"),
    "a link to a device": lambda path: path.symlink_to("/dev/null"),
    "a pipe": os.mkfifo,
    "a folder of something else": folder_with_a_file,
}
READING = [
    ("eval.chat", "runs/tiny", "--max-new-tokens", "2"),
    ("eval.attention", "runs/tiny", "--out", "pictures", "--text", "a cat"),
    ("eval.compare", "runs/tiny", "--skip-decode"),
    ("eval.tasks", "runs/tiny", "--text", "text.txt"),
    ("data.inspect", "tiny.yaml"),
]


def cases() -> Iterator[Case]:
    for file in FILES:
        for what, make in FILE_KINDS.items():
            prepare = partial(with_file, name=file, make=make)
            yield Case(f"{file} is {what}, finished", TRAIN, prepare, may_work=True, says="never refused", check=kept)
            said = file.replace(".", r"\.") + " cannot be written|belongs to another run"
            yield Case(
                f"{file} is {what}, another seed", (*TRAIN, "seed=1"), prepare, says=said, may_change=OURS, check=kept
            )
            said = f"{said}|is in use by"
            yield Case(
                f"no locks, {file} is {what}", (*LOCKLESS, "seed=1"), prepare, says=said, may_change=OURS, check=kept
            )
    for what, make in DIRECTORY_KINDS.items():
        for place in ("runs/tiny", "runs/tiny/checkpoints", "runs"):
            prepare = partial(with_directory, place=place, make=make)
            for resume in ("auto", "never", "runs/other"):  # where the directory is usable, what comes next is refused
                command = (*TRAIN, "init_from=nowhere", f"resume={resume}")
                yield Case(f"{place} is {what}, resume={resume}", command, prepare, check=kept)
        if what not in ("empty", "a folder of something else"):
            prepare = partial(with_directory, place="runs/tiny-sweep-lr", make=make)
            yield Case(f"the sweep's folder is {what}", SWEEP, prepare, says="cannot be written", check=kept)
    for what in ("nothing", *BYTES):
        for state in (trained, stopped, fresh):
            held = Held(state, "runs/tiny", BYTES.get(what))
            command = (*TRAIN, "train.max_steps=8")
            name = f"held, {state.__name__}, {CARD} is {what}"
            yield Case(name, command, held, says="is in use by", check=held.check)
        held = Held(stopped, "runs/tiny-sweep-lr", BYTES.get(what))
        yield Case(f"the sweep is held, {CARD} is {what}", SWEEP, held, says="is in use by", check=held.check)
    for command in (TRAIN, *READING):
        held = Held(trained, "runs/tiny", BYTES["of a process that lives nowhere"])
        yield Case(f"held, and {command[0]}", command, held, b"a\n", may_work=True, says="never refused")


def fresh(folder: Path) -> Path:
    """A config and no run."""
    write_config(folder)
    return folder / "runs" / "tiny"


def with_file(folder: Path, name: str, make: Callable[[Path], object]) -> None:
    run = trained(folder)
    (folder / "other.txt").write_text(OTHER)
    make(run / name)


def with_directory(folder: Path, place: str, make: Callable[[Path], object]) -> None:
    fresh(folder)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    make(folder / place)


def kept(folder: Path) -> str:
    """What must be as it was."""
    files = [*folder.rglob("notes.txt"), *folder.glob("other.txt")]
    lost = [str(file) for file in files if file.read_text() != OTHER]
    return f"written through a link: {lost}" if lost else ""


class Held:
    """A directory that this process holds until the case has been judged."""

    def __init__(self, state: Callable[[Path], Path], place: str, raw: bytes | None):
        self.state, self.place, self.raw = state, place, raw
        self.lock: BaseFileLock | None = None

    def __call__(self, folder: Path) -> None:
        self.state(folder)
        directory = folder / self.place
        directory.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(directory / LOCK)
        self.lock.acquire()
        if self.raw is not None:
            (directory / CARD).write_bytes(self.raw)

    def check(self, folder: Path) -> str:
        assert self.lock is not None
        self.lock.release()
        return ""
