"""What does a command do when what it meets is wrong? Cases by the thousand, each a real command in its own process.

A class of cases is a file in `classes/` with `cases()`; CLASSES lists them. A case makes an empty folder into what its
command will meet, and the command runs there. `run` says how it ended:

    done        exit code 0, and the case allows that it works
    refused     exit code 2 and one `error:` line, the last thing on stderr, that says what the case asks for
    stopped     exit code 3, 129, 130 or 143, where the case allows it
    failed …    a traceback, a hang, another exit code, a message of several lines, a file that is gone or changed
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import print_to, start

SILENT_S = 10  # of its own work without a line: a hang
WALL_S = 120  # of waiting without a line, on a machine that is busy with other things
LARGE = 10**9  # bytes: a case may lay a file that is nothing but large
INVISIBLE, JOINERS = {"Cc", "Cf", "Cs", "Zl", "Zp"}, "\u200c\u200d"  # joiners are parts of words and of emoji
TRACES = ("Traceback (most recent call last)", "panicked at", "Fatal Python error", "Exception ignored in")
CLASSES = sorted(path.stem for path in (Path(__file__).parent / "classes").glob("[!_]*.py"))


@dataclass(frozen=True)
class Case:
    """One attack. command: module and arguments, run in the folder that `prepare` was given.

    may_work: exit code 0 is right as well. says: regular expression that the error line must match. may_change: glob
    patterns of files that the command may rewrite although it refuses. check: looks at the folder afterwards, and
    returns what is wrong with it. code: the exit code that is right where nobody sees an error line. first: what
    happens in the command's process before it.
    """

    name: str
    command: Sequence[str]
    prepare: Callable[[Path], object] = lambda folder: None
    stdin: bytes = b""
    may_work: bool = False
    may_stop: bool = False
    says: str = ""
    may_change: tuple[str, ...] = ()
    check: Callable[[Path], str] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    code: int | None = None
    first: Callable[[], object] | None = None


@dataclass(frozen=True)
class Ending:
    """How a case ended. kind: done, refused, stopped, or failed; why: of a failure."""

    case: Case
    kind: str
    why: str
    output: str
    seconds: float


def cases_of(name: str) -> list[Case]:
    """The cases of a class, in an order that never changes."""
    found = list(importlib.import_module(f"tests.attack.classes.{name}").cases())
    names = [case.name for case in found]
    assert len(set(names)) == len(names), f"{name}: two cases have one name"
    return found


def some_of(cases: Sequence[Case], share: int) -> list[Case]:
    """Every `share`-th case, and at least one."""
    return list(cases[::share])


def run(case: Case, folder: Path) -> Ending:
    """Prepare the folder, run the command there, and judge how it ended."""
    folder.mkdir(parents=True)
    case.prepare(folder)
    output, stdin = folder.with_suffix(".out"), folder.with_suffix(".in")
    stdin.write_bytes(case.stdin)
    before, began = contents(folder), time.monotonic()
    process = start(_command, folder, stdin, output, list(case.command), case.environment, case.first)
    hung = _wait(process, output)
    printed = output.read_bytes().decode("utf-8", "backslashreplace") if output.exists() else ""
    kind, why = _judged(case, process.exitcode, printed, hung)
    if kind == "refused" and (lost := _lost(before, contents(folder), case.may_change)):
        kind, why = "failed", f"refused, but these files are gone or changed: {lost}"
    if kind != "failed" and case.check is not None and (problem := case.check(folder)):
        kind, why = "failed", problem
    return Ending(case, kind, why, printed, time.monotonic() - began)


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder, with the hash of what it holds; without those that are made to be too large."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and os.access(file, os.R_OK) and file.stat().st_size < LARGE
    }


def _command(
    folder: Path,
    stdin: Path,
    output: Path,
    command: list[str],
    environment: dict[str, str],
    first: Callable[[], object] | None,
) -> None:
    import torch

    from configs.command import exit_on_bad_input

    torch.set_num_threads(1)
    os.environ.update(environment)
    print_to(output)
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    sys.path.insert(0, str(folder))  # as `python -m` does
    found = importlib.import_module(command[0])
    if hasattr(found, "__path__"):
        found = importlib.import_module(f"{command[0]}.__main__")
    sys.argv = command
    if first is not None:
        first()
    exit_on_bad_input(found.main)


def _wait(process, output: Path) -> bool:
    """Wait for its end. True if it said nothing for too long; then it is killed."""
    size, work, at = -1, 0.0, time.monotonic()
    while process.exitcode is None:
        process.join(timeout=0.05)
        now = output.stat().st_size if output.exists() else 0
        if now != size:
            size, work, at = now, _worked(process.pid), time.monotonic()
        elif _worked(process.pid) - work > SILENT_S or time.monotonic() - at > WALL_S:
            process.kill()
            process.join()
            return True
    return False


def _worked(pid: int) -> float:
    """Seconds that a process has computed so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _judged(case: Case, code: int | None, printed: str, hung: bool) -> tuple[str, str]:
    if hung:
        return "failed", "a hang: no line for too long"
    for trace in TRACES:
        if trace in printed:
            return "failed", f"a traceback: {printed.strip().splitlines()[-1][:200]}"
    if shown := {c for c in printed if c not in "\n\t" and unicodedata.category(c) in INVISIBLE and c not in JOINERS}:
        return "failed", f"characters that a terminal obeys were printed: {sorted(map(ascii, shown))}"
    if case.code is not None:
        return ("done", "") if code == case.code else ("failed", f"exit code {code}, not {case.code}")
    if code == 0:
        return ("done", "") if case.may_work else ("failed", "exit code 0, and it should have been refused")
    if code in (3, 129, 130, 143) and case.may_stop:
        return "stopped", ""
    if code != 2:
        return "failed", f"exit code {code}"
    lines = printed.strip().splitlines()
    errors = [line for line in lines if re.match(r"(\S+ )?error: |\S.*: error: ", line)]
    if len(errors) != 1 or lines[-1] != errors[0]:
        return "failed", f"{len(errors)} error lines, and the last line is {lines[-1] if lines else ''!r}"
    if printed.startswith("usage: ") and not case.says:
        return "failed", f"the attack itself is wrong: {errors[0]}"
    if case.says and not re.search(case.says, errors[0]):
        return "failed", f"the message does not say {case.says!r}: {errors[0]}"
    return "refused", ""


def _lost(before: dict[str, str], after: dict[str, str], may_change: Iterable[str]) -> list[str]:
    """Files whose content is nowhere any more; one that was moved aside is not lost."""
    still = set(after.values())
    memory = "runs/.prepared/hashes.json"  # of what was hashed before: any start may add to it
    gone = [name for name, digest in before.items() if digest not in still and name != memory]
    return [name for name in gone if not any(Path(name).match(pattern) for pattern in may_change)]
