"""Where a config says that its text is: paths of every kind, files that change or vanish, patterns, arguments of the
Hub, and the memory of hashes."""

from __future__ import annotations

import ctypes
import json
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.attack.attack import Case
from tests.attack.victims import write_config

COMMANDS = ("data.prepare", "data.tokenizer_report")
LONG = 100_000


def cases() -> Iterator[Case]:
    for name, (path, make) in PLACES.items():
        for command in COMMANDS:
            yield case(f"{command}: path is {name}", command, {"kind": "files", "path": path}, make)
        both = {"kind": "files", "path": "text.txt", "validation_path": path}
        yield case(f"data.prepare: validation_path is {name}", COMMANDS[0], both, make)
        tokenizer = {"tokenizer": {"kind": "pretrained", "path": path}}
        yield case(f"data.prepare: tokenizer is {name}", COMMANDS[0], FILE, make, **tokenizer)
    for name, change in CHANGES.items():
        for command in ("data.prepare", "data.inspect"):
            first = partial(after_hashing, change)
            yield case(f"{command}: a file {name} while read", command, FILE, first=first, may_change=("text.txt",))
    for name, pattern in PATTERNS.items():
        for command in COMMANDS:
            source = {"kind": "files", "path": "text.jsonl", "document_start": pattern}
            yield case(f"{command}: document_start {name}", command, source)
    for key, values in HUB.items():
        for name, value in values.items():
            source = {"kind": "hub", "name": "corpus", key: value}
            yield case(f"data.prepare: hub {key} is {name}", COMMANDS[0], source, make=_corpus)
    for name, raw in MEMORIES.items():
        for command in ("data.prepare", "data.inspect"):
            yield case(f"{command}: hashes.json is {name}", command, FILE, partial(remember, raw=raw), says="^$")
    for key in ("text_field", "separator"):
        for name, value in TEXTS.items():
            source = {"kind": "files", "path": "text.txt" if key == "separator" else "text.jsonl", key: value}
            yield case(f"data.prepare: {key} is {name}", COMMANDS[0], source)


FILE = {"kind": "files", "path": "text.txt"}


def case(
    name: str,
    command: str,
    source: dict,
    make: Callable[[Path], object] | None = None,
    first: Callable[[], object] | None = None,
    says: str = "",
    may_change: tuple[str, ...] = (),
    **data: object,
) -> Case:
    whole = {"source": source, "tokenizer": {"kind": "byte"}, "sequence_length": 32} | data
    prepare = partial(put, data=whole, make=make)
    return Case(
        name,
        (command, "tiny.yaml"),
        prepare,
        may_work=True,
        first=first or obey_permissions,
        says=says,
        may_change=may_change,
    )


def put(folder: Path, data: dict, make: Callable[[Path], object] | None) -> None:
    write_config(folder, data=data)
    texts = [f"{'a' * 28} {i} die Füße der Katze 猫!" for i in range(60)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    if make is not None:
        make(folder)


def obey_permissions() -> None:
    """Take root's right to read everything from this process, so that permission bits bind it."""
    if os.name == "posix" and os.getuid() == 0:
        header, words = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None)
        assert libc.capset(header, words) == 0


# ---------------------------------------------------------------------------------------------------------
# paths


def _folder(folder: Path, mode: int, inner: int = 0o755) -> None:
    (folder / "closed" / "inner").mkdir(parents=True)
    for place in ("closed", "closed/inner"):
        (folder / place / "text.txt").write_text("a fox and a cat\n" * 60)
    (folder / "closed" / "inner").chmod(inner)
    (folder / "closed").chmod(mode)


def _file(folder: Path) -> None:
    (folder / "secret.txt").write_text("a fox\n" * 60)
    (folder / "secret.txt").chmod(0)


def _socket(folder: Path) -> None:
    here = os.getcwd()  # noqa: PTH109 (its own name would be too long for a socket)
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket.txt")
    os.chdir(here)


def _links(folder: Path) -> None:
    (folder / "one.txt").symlink_to("two.txt")
    (folder / "two.txt").symlink_to("one.txt")


def _loop(folder: Path) -> None:
    (folder / "loop").mkdir()
    (folder / "loop" / "again").symlink_to("..")
    (folder / "loop" / "itself.txt").symlink_to("itself.txt")
    (folder / "loop" / "text.txt").write_text("a fox and a cat\n" * 60)


def _corpus(folder: Path) -> None:
    (folder / "corpus").mkdir()
    (folder / "text.jsonl").rename(folder / "corpus" / "text.jsonl")


def _many(folder: Path) -> None:
    (folder / "many").mkdir()
    for name in ("a\nb.txt", "\x1b[2J.txt", "-rf.txt", "*.txt", "[a].txt", "\u202e.txt", " .txt", "é.txt"):
        (folder / "many" / name).write_text("a fox and a cat\n" * 20)


def _deep(folder: Path) -> None:
    here = os.getcwd()  # noqa: PTH109
    os.chdir(folder)
    for _ in range(15):
        os.mkdir("d" * 200)  # noqa: PTH102
        os.chdir("d" * 200)
    os.chdir(here)


PLACES: dict[str, tuple[object, Callable[[Path], object] | None]] = {
    "the home of nobody": ("~nosuchuser/text.txt", None),
    "a home and no more": ("~nosuchuser", None),
    "a very long name": ("x" * 5000 + ".txt", None),
    "a name of 300 letters": ("x" * 300 + ".txt", None),
    "a very long path": ("x/" * 5000 + "y.txt", None),
    "a name with a NUL": ("te\0xt.txt", None),
    "nothing": ("", None),
    "white space": (" ", None),
    "a dot": (".", None),
    "a list of nothing": ([], None),
    "a list with nothing in it": (["text.txt", ""], None),
    "links in a circle": ("one.txt", _links),
    "below links in a circle": ("one.txt/text.txt", _links),
    "a folder with a circle in it": ("loop", _loop),
    "a pipe": ("pipe.txt", lambda folder: os.mkfifo(folder / "pipe.txt")),
    "a folder with a pipe": ("pipes", lambda folder: ((folder / "pipes").mkdir(), os.mkfifo(folder / "pipes/p.txt"))),
    "a pattern that a pipe matches": ("pi*.txt", lambda folder: os.mkfifo(folder / "pipe.txt")),
    "a socket": ("socket.txt", _socket),
    "an endless device": ("/dev/zero", None),
    "an empty device": ("/dev/null", None),
    "a link to a device": ("zero.txt", lambda folder: (folder / "zero.txt").symlink_to("/dev/zero")),
    "standard input": ("/dev/stdin", None),
    "below a file": ("text.txt/inside.txt", None),
    "a folder that is named like a file": ("f.txt", lambda folder: (folder / "f.txt").mkdir()),
    "a file that may not be read": ("secret.txt", _file),
    "in a folder without search permission": ("closed/text.txt", partial(_folder, mode=0o600)),
    "a folder without search permission": ("closed", partial(_folder, mode=0o600)),
    "a folder that may not be listed": ("closed", partial(_folder, mode=0o300)),
    "a folder with a closed one inside": ("closed", partial(_folder, mode=0o755, inner=0)),
    "a folder with one inside that may not be searched": ("closed", partial(_folder, mode=0o755, inner=0o600)),
    "a pattern into a closed folder": ("closed/*/*.txt", partial(_folder, mode=0o755, inner=0)),
    "a folder with strange names": ("many", _many),
    "a folder that is very deep": (".", _deep),
    "a pattern that matches nothing": ("**/nothing*.txt", None),
    "half a pattern": ("[a-", None),
    "a pattern of many stars": ("*" * 60 + "/" + "*a" * 30 + ".txt", None),
    "half a surrogate pair": ("\ud800.txt", None),
}


# ---------------------------------------------------------------------------------------------------------
# files that change


def after_hashing(change: Callable[[Path], object]) -> None:
    """In this process, text.txt changes as soon as it has been hashed."""
    from data.reading import files

    before = files.sha256

    def sha256(file: str | Path) -> str:
        digest = before(file)
        change(Path("text.txt"))
        return digest

    files.sha256 = sha256


def vanish(file: Path) -> None:
    file.unlink(missing_ok=True)


def shrink(file: Path) -> None:
    os.truncate(file, 100)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def grow(file: Path) -> None:
    with file.open("a") as out:
        out.write("more of it\n")


def become_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def become_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


CHANGES = {
    "vanishes": vanish,
    "is cut": shrink,
    "is emptied": empty,
    "grows": grow,
    "becomes a folder": become_a_folder,
    "becomes a pipe": become_a_pipe,
}

# ---------------------------------------------------------------------------------------------------------
# what a config says

PATTERNS = {
    "with a bracket missing": "(a",
    "that repeats nothing": "*a",
    "with a huge count": "a{99999999999999}",
    "with a large count": "(a{60000}){60000}",
    "of 3,000 brackets": "(" * 3000 + ")" * 3000,
    "of 400 brackets": "(" * 400 + ")" * 400,
    "that looks behind without a width": "(?<=a*)b",
    "that is very long": "a" * LONG,
    "that is empty": "",
    "with a NUL": "\0",
    "with half a surrogate pair": "\ud800",
    "with a name twice": "(?P<a>x)(?P<a>y)",
    "with a set": "[[a-z]--[b]]",
}
STRANGE = {
    "empty": "",
    "a NUL": "a\0b",
    "very long": "x" * LONG,
    "above": "../../etc",
    "absolute": "/etc",
    "with a line end": "a\nb",
    "an escape character": "\x1b[2J",
    "a URL": "https://example.invalid/x",
    "half a surrogate pair": "\ud800",
}
SOME = {name: STRANGE[name] for name in ("a NUL", "very long", "above", "a URL")}
HUB = {
    "name": STRANGE | {"a number": 1, "a script": "tiny.yaml", "this folder": ".", "many slashes": "a/b/c/d"},
    "subset": SOME,
    "revision": SOME,
    "split": SOME | {"half a slice": "train[:", "a slice beyond the end": "train[99%:200%]"},
    "data_files": SOME | {"an empty list": [], "a list of nothing": [""], "a pattern": "**/*"},
}
TEXTS = {
    "empty": "",
    "dots": "." * 1000,
    "very long": "a." * LONG,
    "a NUL": "\0",
    "half a surrogate pair": "\ud800",
    "a line end": "\n",
    "an escape character": "\x1b[2J",
}

# ---------------------------------------------------------------------------------------------------------
# the memory of hashes


def remember(folder: Path, raw: bytes) -> None:
    memory = folder / "runs" / ".prepared" / "hashes.json"
    memory.parent.mkdir(parents=True)
    text = folder / "text.txt"
    os.utime(text, (1e9, 1e9))
    key, size = json.dumps(str(text.resolve())), str(text.stat().st_size)
    memory.write_bytes(raw.replace(b"FILE", key.encode()).replace(b"SIZE", size.encode()))


MEMORIES = {
    "nothing": b"",
    "torn": b'{"a": [1, 2',
    "not UTF-8": b'{"\xff": [1, 2, "x"]}',
    "a list": b"[1, 2]",
    "null": b"null",
    "very deep": b"[" * LONG,
    "a number of 5,000 digits": b"9" * 5000,
    "of numbers": b'{"a": 1}',
    "of infinities": b'{"a": [1e999, 1, "x"]}',
    "of NaN": b'{"a": [NaN, 1, "x"]}',
    "of short lists": b'{"a": [1]}',
    "of long lists": b'{"a": [1, 2, 3, 4]}',
    "with another hash": b'{FILE: [SIZE, 1000000000000000000, "x"]}',
    "with an object for a hash": b'{FILE: [SIZE, 1000000000000000000, {"a": 1}]}',
    "with null for a hash": b"{FILE: [SIZE, 1000000000000000000, null]}",
    "with text for a size": b'{FILE: ["SIZE", 1000000000000000000, "x"]}',
    "with a huge size": b"{FILE: [" + b"9" * 4000 + b', 1, "x"]}',
}
