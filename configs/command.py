"""How does a command begin and end? With an exit code and at most one line of error, never with a traceback.

    0      done
    1      a fault of Headlight; the line names the file that holds the traceback (HEADLIGHT_TRACEBACK=1 prints it)
    2      bad input; the memory does not suffice
    130    stopped by Ctrl-C

`InputError` is the one exception for bad input: a command prints its message, one line, and exits with code 2.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from configs.language import translated
from configs.text import escape, plain

CGROUP = Path("/sys/fs/cgroup")  # the limits of a container on Linux
BUSY_S = 8.0  # between two lines that say what takes so long


class InputError(Exception):
    """Something that the user gave is wrong. The message says what, where, and what to do."""


def exit_on_bad_input(command: Callable[[], int | None]) -> None:
    """Run a command and end the process: one clear line and exit code 2 for bad input."""
    if spec := sys.modules["__main__"].__spec__:  # what argparse calls the program; from Python 3.14 on by itself
        sys.argv[0] = f"python -m {spec.name.removesuffix('.__main__')}"
    # PyTorch 2.13 keeps what it compiles for any kernels in one folder: with code of others a loss came out at half
    if kernels := os.environ.get("ATEN_CPU_CAPABILITY"):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{kernels}")
    stdout, code, line = sys.stdout, 0, ""
    sys.stdout = Plain(stdout)
    try:
        code = command() or 0
        sys.stdout.flush()
    except (InputError, ValidationError) as error:
        code, line = 2, f"error: {error}"
    except KeyboardInterrupt:
        code, line = 130, "stopped; run the same command again to continue"
    except BrokenPipeError:  # `… | head -1`: the reader has what they wanted, and what still waits goes nowhere
        code = 141
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    except OSError as error:  # no permission, a full disk
        code, line = 2, f"error: {f'{error.filename}: ' if error.filename else ''}{error.strerror or error}"
    except Exception as error:
        code, line = 1, f"error: {type(error).__name__}: {error}"
        if is_out_of_memory(error):
            code, line = 2, "error: out of memory: use a smaller model, shorter rows or smaller batches"
        elif os.environ.get("HEADLIGHT_TRACEBACK"):
            traceback.print_exc()
        else:
            with tempfile.NamedTemporaryFile("wb", prefix="headlight-", suffix=".txt", delete=False) as file:
                file.write(traceback.format_exc().encode("utf-8", "backslashreplace"))
            line += f" (traceback: {file.name})"
    finally:
        sys.stdout = stdout
    if line and os.environ.get("RANK", "0") == "0":  # under torchrun every process finds the same
        print(escape(line), file=sys.stderr)
    sys.exit(code)


class Plain:
    """A standard output on which text of others stays text: no control characters but line ends and tabs.

    stream: the output itself, for a command that writes colours.
    """

    def __init__(self, stream: TextIO):
        self.stream = stream
        if hasattr(stream, "reconfigure"):  # a terminal without some letter still gets the line
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        return self.stream.write(plain(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def is_out_of_memory(error: BaseException) -> bool:
    """Python's MemoryError, torch's on a GPU, and what torch raises on a CPU: a plain RuntimeError that says so."""
    names = {kind.__name__ for kind in type(error).__mro__}
    words = ("DefaultCPUAllocator", "Storage size calculation overflowed", "Overflow when unpacking long")
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or any(part in str(error) for part in words)


@contextmanager
def still_busy(doing: str | Callable[[], str]) -> Iterator[None]:
    """Say on stderr, every few seconds, what is being done. doing: what, or a function that says how far it is."""
    done = threading.Event()

    def say() -> None:
        spent = 0.0
        while not done.wait(BUSY_S):
            spent += BUSY_S
            line = f"… {doing if isinstance(doing, str) else doing()}, for {spent:.0f} s now"
            print(translated(line), file=sys.stderr)

    thread = threading.Thread(target=say, name="still busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def usable_cores() -> int:
    """Cores that this process may use: those that it is bound to, and no more than its container's quota pays for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # cgroup v2, v1
        with suppress(OSError, ValueError):  # no such file; "max", which is no quota
            text = " ".join((CGROUP / file).read_text(encoding="ascii") for file in files)
            quota, period = map(int, text.split())
            if quota > 0:  # -1 is no quota, too
                cores = min(cores, math.ceil(quota / period))
    return cores


# ---------------------------------------------------------------------------------------------------------
# for `type=` of an option; each raises InputError


def number(option: str, least: float, most: float = math.inf, kind: type = float) -> Callable[[str], Any]:
    """Reads a finite number of this range. kind: int for whole numbers."""

    def read(text: str) -> Any:
        with suppress(ValueError):
            value = kind(text)
            if least <= value <= most and not math.isinf(value):
                return value
        what, upper = "a whole number" if kind is int else "a number", f" to {most:,}" if most < math.inf else ""
        raise InputError(f"{option} is {text[:40]!r}: it must be {what} from {least:,}{upper}")

    return read


integer = partial(number, kind=int)  # a whole number of this range


def numbers(option: str, least: int) -> Callable[[str], list[int]]:
    """Reads whole numbers from `least` on, with commas between them."""
    return lambda text: [integer(option, least)(part) for part in text.split(",")]
