"""Run a command: it ends with an exit code and at most one line of error, never with a traceback.

    0      done
    1      a fault of Headlight; the traceback is in a file (HEADLIGHT_TRACEBACK=1 prints it)
    2      bad input, or too little memory
    130    stopped by Ctrl-C

Bad input raises `InputError`: a command prints its message, one line, and exits with code 2.
"""

import atexit
import gc
import math
import os
import re
import sys
import tempfile
import threading
import traceback
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from configs.language import translated
from configs.text import escape, plain

# A wheel has this file in headlight/rooms/configs (headlight/__init__.py).
IS_WHEEL = Path(__file__).parents[1].name == "rooms"
# Linux keeps the limits of a container here.
CGROUP = Path("/sys/fs/cgroup")
# `still_busy` prints a line after so many seconds.
BUSY_S = 8.0
# This is for `type=` of argparse; it raises InputError.
Reader = Callable[[str], Any]


class InputError(Exception):
    """Bad input of the user. The message has what is wrong, where, and what to do."""


def exit_on_bad_input(command: Callable[[], int | None]) -> None:
    """Run a command and end the process: one clear line and exit code 2 for bad input."""
    # Before Python ends, it looks through all objects for garbage. With torch that takes up to two
    # seconds, and frozen objects are passed over.
    atexit.register(gc.freeze)
    # argparse prints this name; from Python 3.14 on it finds it by itself
    spec = sys.modules["__main__"].__spec__
    if spec:
        sys.argv[0] = f"python -m {spec.name.removesuffix('.__main__')}"
    # PyTorch 2.13 keeps compiled code for all CPUs in one folder. Code that was compiled for
    # another CPU once gave half of the right loss.
    kernels = os.environ.get("ATEN_CPU_CAPABILITY")
    if kernels:
        cache = f"{tempfile.gettempdir()}/torchinductor_{kernels}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", cache)
    stdout = sys.stdout
    # A text, a model or a name may hold codes that control a terminal. Everything that a command
    # prints passes here.
    sys.stdout = Plain(stdout)
    code = 0
    line = ""
    try:
        code = command() or 0
        sys.stdout.flush()
    except (InputError, ValidationError) as error:
        code = 2
        line = f"error: {error}"
    except KeyboardInterrupt:
        code = 130
        line = "stopped; run the same command again to continue"
    except BrokenPipeError:  # `… | head -1`: the reader has enough
        # 128 + 13, the number of SIGPIPE, as for any program whose reader has gone
        code = 141
        # at its end, Python writes what is still buffered, and would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    except OSError as error:  # no permission, a full disk
        file = f"{error.filename}: " if error.filename else ""
        code = 2
        line = f"error: {file}{error.strerror or error}"
    except Exception as error:
        code = 1
        line = f"error: {type(error).__name__}: {error}"
        if is_out_of_memory(error):
            code = 2
            line = "error: out of memory: use a smaller model, shorter rows or smaller batches"
        elif os.environ.get("HEADLIGHT_TRACEBACK"):
            traceback.print_exc()
        else:  # users need one line, a bug report the traceback
            descriptor, file = tempfile.mkstemp(".txt", "headlight-")
            os.write(descriptor, traceback.format_exc().encode("utf-8", "backslashreplace"))
            line += f" (traceback: {file})"
    finally:
        sys.stdout = stdout
    if line and os.environ.get("RANK", "0") == "0":  # under torchrun every process has the error
        print(by_its_name(escape(line)), file=sys.stderr)
    sys.exit(code)


def by_its_name(text: str) -> str:
    """Name the command `headlight` where `python -m` finds no module: in a wheel."""
    return text.replace("python -m ", "headlight ") if IS_WHEEL else text


class Plain:
    """A standard output without control characters. `stream` itself still writes colours."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        # print a line even if the terminal lacks a letter
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        return self.stream.write(by_its_name(plain(text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def command_parser(description: str | None) -> ArgumentParser:
    """Return a parser whose help shows the lines of the description as they are."""
    return ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)


def add_config(parser: ArgumentParser, default: str | None = None) -> None:
    """Let a command take a YAML file, and after it keys that it changes."""
    about = f"a YAML file ({default})" if default else "a YAML file, for example configs/demo.yaml"
    parser.add_argument("config", nargs="?" if default else None, default=default, help=about)
    key = "section.key=value"
    parser.add_argument("overrides", nargs="*", metavar=key, help="for example train.device=cpu")


def is_out_of_memory(error: BaseException) -> bool:
    """Recognise Python's MemoryError, torch's on a GPU, and torch's RuntimeError on a CPU."""
    # by name, because importing torch takes seconds
    names = {kind.__name__ for kind in type(error).__mro__}
    # on a CPU PyTorch raises a plain RuntimeError, and only its text shows the cause
    on_cpu = "DefaultCPUAllocator|Storage size calculation overflowed|Overflow when unpacking long"
    is_named = bool(names & {"MemoryError", "OutOfMemoryError"})
    return is_named or re.search(on_cpu, str(error)) is not None


@contextmanager
def still_busy(doing: str | Callable[[], str]) -> Iterator[None]:
    """Print to stderr every few seconds what takes so long. doing: text, or a function of it."""
    done = threading.Event()

    def report() -> None:
        seconds = 0.0
        # the wait ends with the work, so a quick command is not held up
        while not done.wait(BUSY_S):
            seconds += BUSY_S
            task = doing if isinstance(doing, str) else doing()
            print(translated(f"… {task}, for {seconds:.0f} s now"), file=sys.stderr)

    thread = threading.Thread(target=report, name="still busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def usable_cores() -> int:
    """Return the cores of this process: those it is bound to, within its container's quota."""
    # In a container this is the number of the whole machine. With as many threads, they would wait
    # for each other.
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cores = len(os.sched_getaffinity(0))
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # cgroup v2, v1
        with suppress(OSError, ValueError):  # no such file; "max", which is no quota
            text = " ".join((CGROUP / file).read_text(encoding="ascii") for file in files)
            quota, period = map(int, text.split())
            if quota > 0:  # -1 is no quota, too
                cores = min(cores, math.ceil(quota / period))
    return cores


def number(option: str, least: float, most: float = math.inf, kind: type = float) -> Reader:
    """Return a reader of finite numbers in this range. kind: int for whole numbers."""

    def read(text: str) -> Any:
        with suppress(ValueError):
            value = kind(text)
            # for Python "nan" and "inf" are numbers, too; NaN fails both comparisons
            if least <= value <= most and not math.isinf(value):
                return value
        noun = "a whole number" if kind is int else "a number"
        upper = f" to {most:,}" if most < math.inf else ""
        raise InputError(f"{option} is {text[:40]!r}: it must be {noun} from {least:,}{upper}")

    return read


integer = partial(number, kind=int)


def add_number(
    parser: ArgumentParser,
    option: str,
    default: float | None,
    meaning: str,
    least: float = 1,
    most: float = math.inf,
    kind: type = int,
) -> None:
    """Add an option for a whole number, or with kind=float for any. The help shows the default."""
    read = number(option, least, most, kind)
    shown = meaning if default is None else f"{meaning} ({default:g})"
    parser.add_argument(option, type=read, default=default, metavar="N", help=shown)


def numbers(option: str, least: int) -> Callable[[str], list[int]]:
    """Return a reader of whole numbers with commas between them."""
    return lambda text: [integer(option, least)(part) for part in text.split(",")]
