"""How does a command begin and end? With an exit code and at most one line of error, never with a traceback.

    0      done
    1      a fault of Headlight; the line names the file that holds the traceback
    2      bad input; the memory does not suffice
    130    stopped by Ctrl-C

`InputError` is the one exception for bad input: a command prints its message, one line, and exits with code 2.
`warnings.warn(message, InputWarning)` is for input that a command can still use: it prints one line, `warning: …`.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from configs.text import escape, plain, shortened

BUSY_S = 8.0  # between two lines that say what takes so long


class InputError(Exception):
    """Something that the user gave is wrong. The message says what, where, and what to do."""


class InputWarning(UserWarning):
    """Something that the user gave is suspicious, and the command continues. The message says what and where."""


def exit_on_bad_input(command: Callable[[], int | None]) -> None:
    """Run a command and end the process: one clear line and exit code 2 for bad input."""
    if spec := sys.modules["__main__"].__spec__:  # what argparse calls the program; from Python 3.14 on by itself
        sys.argv[0] = f"python -m {spec.name.removesuffix('.__main__')}"
    before, others = sys.stdout, warnings.showwarning
    sys.stdout = Plain(sys.stdout)

    def show(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if issubclass(category, InputWarning):
            _say(f"warning: {escape(str(message))}")
        else:
            others(message, category, *where, **options)

    warnings.showwarning = show
    _keep_compiled_code_apart()
    code = 0
    try:
        code = command() or 0
    except InputError as error:
        code = _say(f"error: {escape(str(error))}", 2)
    except KeyboardInterrupt:
        code = _say("stopped; run the same command again to continue", 130)
    except BrokenPipeError:  # `… | head -1`: the reader has what they wanted
        pass
    except Exception as error:
        if is_out_of_memory(error):
            code = _say("error: out of memory: use a smaller model, shorter rows or smaller batches", 2)
        else:
            code = _say(f"error: {type(error).__name__}: {escape(str(error))} (traceback: {_saved_traceback()})", 1)
    finally:
        sys.stdout = before
        try:
            before.flush()
        except OSError:  # what waits goes nowhere, or Python would try it once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), before.fileno())
    sys.exit(code)


def is_out_of_memory(error: BaseException) -> bool:
    """Python's MemoryError, torch's on a GPU, and what torch raises on a CPU: a plain RuntimeError that says so."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator" in str(error)


class Plain:
    """A standard output on which text of others stays text: no control characters but line ends and tabs."""

    is_needed, has_colors = True, False

    def __init__(self, stream: TextIO):
        self.stream = stream
        if hasattr(stream, "reconfigure"):  # a terminal without some letter still gets the line
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write the text, and return its length."""
        parts = re.split(r"(\x1b\[[\d;]*m)", text) if self.has_colors else [text]
        try:
            self.stream.write("".join(part if i % 2 else plain(part) for i, part in enumerate(parts)))
        except OSError:
            if self.is_needed:
                raise
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def survive_lost_output() -> None:
    """From here on the command continues when nobody reads its output, or the disk is full."""
    if isinstance(sys.stdout, Plain):
        sys.stdout.is_needed = False


def allow_colors() -> None:
    """From here on colours are written; text of others must have been through `escape` or `visible`."""
    if isinstance(sys.stdout, Plain):
        sys.stdout.has_colors = True


def _say(line: str, code: int = 0) -> int:
    if os.environ.get("RANK", "0") == "0":  # under torchrun every process finds the same
        print(line, file=sys.stderr)
    return code


def _saved_traceback() -> str:
    with tempfile.NamedTemporaryFile("w", prefix="headlight-", suffix=".txt", delete=False, encoding="utf-8") as file:
        traceback.print_exc(file=file)
    return file.name


def cache_folder() -> Path:
    """What this user's programs remember between runs: HEADLIGHT_CACHE, or a folder in the user's cache."""
    import platformdirs

    return Path(os.environ.get("HEADLIGHT_CACHE") or platformdirs.user_cache_path("headlight", appauthor=False))


def _keep_compiled_code_apart() -> None:
    """A folder for torch.compile that belongs to the kernels which ATEN_CPU_CAPABILITY asks for. PyTorch 2.13 has one
    for all of them, and with code that was compiled for others a loss came out at half its value (EXPERIMENTS.md)."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    is_default = not before or Path(before).name.startswith("torchinductor_")  # PyTorch writes its own there
    if is_default and (kernels := os.environ.get("ATEN_CPU_CAPABILITY")):
        folder = cache_folder() / f"compiled_{''.join(filter(str.isalnum, kernels))}"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


@contextmanager
def still_busy(doing: str | Callable[[], str]) -> Iterator[None]:
    """Say on stderr, every few seconds, what is being done. doing: what, or a function that says how far it is."""
    done = threading.Event()

    def say() -> None:
        spent = 0.0
        while not done.wait(BUSY_S):
            spent += BUSY_S
            print(f"… {doing if isinstance(doing, str) else doing()}, for {spent:.0f} s now", file=sys.stderr)

    thread = threading.Thread(target=say, name="still busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS


# ---------------------------------------------------------------------------------------------------------
# for `type=` of an option; each raises InputError


def whole(option: str, least: int, most: float = math.inf) -> Callable[[str], int]:
    """Reads a whole number of this range."""

    def read(text: str) -> int:
        try:
            value = int(text) if len(text) < 30 else least - 1
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            upper = "" if most == math.inf else f" to {most:,}"
            raise InputError(f"{option} is {shortened(text, 40)!r}: it must be a whole number from {least:,}{upper}")
        return value

    return read


def number(option: str, least: float, most: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """Reads a finite number of this range; above: not `least` itself."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or not math.isfinite(value) or (above and value == least):
            lower, to = (f"above {least:g}", " and up to") if above else (f"from {least:g}", " to")
            upper = "" if most == math.inf else f"{to} {most:,g}"
            raise InputError(f"{option} is {shortened(text, 40)!r}: it must be a number {lower}{upper}")
        return value

    return read


def numbers(option: str, least: int, most: float = math.inf) -> Callable[[str], list[int]]:
    """Reads whole numbers of this range, with commas between them."""
    one = whole(option, least, most)
    return lambda text: [one(part) for part in text.split(",")]
