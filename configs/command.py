"""How does a command begin and end? With an exit code and at most one line of error, never with a traceback.

    0      done, or nobody reads the rest of the output (`… | head -1`)
    2      bad input; the output cannot be written; the memory does not suffice
    130    stopped by Ctrl-C

`InputError` is the one exception for bad input: a command prints its message, one line, and exits with code 2.
`warnings.warn(message, InputWarning)` is for input that a command can still use: it prints one line, `warning: …`.

Each room imports this file first. Where `python -m` starts a command, Ctrl-C is heard from there on: an import that is
interrupted raises whatever it likes. A program or a notebook that imports a room keeps its own Ctrl-C and streams.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from configs.cache import cache_folder
from configs.shown_text import escape
from configs.streams import guard, guarded

STOPPED = "stopped; run the same command again to continue"


class InputError(Exception):
    """Something that the user gave is wrong. The message says what, where, and what to do."""


class InputWarning(UserWarning):
    """Something that the user gave is suspicious, and the command continues. The message says what and where."""


def exit_on_bad_input(command: Callable[[], int | None]) -> None:
    """Run a command: exit code 0 when it is done, one clear line and exit code 2 for bad input."""
    warnings.showwarning = _shown(warnings.showwarning)
    _keep_compiled_code_apart()
    with guarded():
        try:
            code = _code_of(command)
        finally:  # argparse ends the process by itself
            sys.stdout.flush()
    sys.exit(code)


def _keep_compiled_code_apart() -> None:
    """A folder for torch.compile that belongs to the kernels which ATEN_CPU_CAPABILITY asks for. PyTorch 2.13 has one
    for all of them, and with code that was compiled for others a loss came out at half its value (EXPERIMENTS.md)."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    is_default = not before or Path(before).name.startswith("torchinductor_")  # PyTorch writes its own there
    if is_default and (kernels := os.environ.get("ATEN_CPU_CAPABILITY")):
        folder = cache_folder() / f"compiled_{''.join(filter(str.isalnum, kernels))}"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def _code_of(command: Callable[[], int | None]) -> int:
    global _in_command
    _in_command = True
    try:
        return command() or 0
    except InputError as error:
        return _say(f"error: {escape(str(error))}", 2)
    except KeyboardInterrupt:
        return _say(STOPPED, 130)
    except RecursionError as error:
        return _say(f"error: something that was given is nested too deep ({_place_of(error)})", 2)
    except (MemoryError, RuntimeError) as error:
        if not (is_out_of_memory(error) or _interrupted):
            raise
        advice = "use a smaller model, shorter rows or smaller batches, or end other programs"
        return _say(f"error: the memory does not suffice ({_place_of(error)}): {advice}", 2)
    except Exception:
        if not _interrupted:
            raise
        return _say(STOPPED, 130)
    finally:
        _in_command = False


def is_out_of_memory(error: BaseException) -> bool:
    """Python's MemoryError, torch's on a GPU, and what torch raises on a CPU: a plain RuntimeError that says so."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator" in str(error)


def _shown(others: Callable[..., None]) -> Callable[..., None]:
    """Show an InputWarning as one line; all `others` as before."""

    def show(message: Warning | str, category: type[Warning], *where: object) -> None:
        if issubclass(category, InputWarning):
            _say(f"warning: {escape(str(message))}", 0)
        else:
            others(message, category, *where)

    return show


def _say(line: str, code: int) -> int:
    """Print how the command ended. After Ctrl-C no other reason counts: a library may have made an error of it."""
    line, code = (STOPPED, 130) if _interrupted else (line, code)
    if os.environ.get("RANK", "0") == "0":  # under torchrun every process finds the same
        print(line, file=sys.stderr)
    return code


def _place_of(error: BaseException) -> str:
    """Where it was raised: `data/reading/files.py:88`."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else type(error).__name__


# ---------------------------------------------------------------------------------------------------------
# from the first import of a command on

_in_command = False
_interrupted = False


def _on_ctrl_c(number: int, frame: FrameType | None) -> None:
    """KeyboardInterrupt inside a command; while modules are imported, and behind its end, the process ends here."""
    global _interrupted
    while _in_command and frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    if _in_command and frame is None:
        _interrupted = True
        raise KeyboardInterrupt
    os.write(2, f"{STOPPED}\n".encode())  # not print: it may be what was interrupted
    os._exit(130)


def is_starting() -> bool:
    """Whether `python -m` is still looking for its module: a command begins here."""
    return sys.argv[:1] == ["-m"]


if is_starting():
    guard()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where Ctrl-C is ignored, as behind nohup
        signal.signal(signal.SIGINT, _on_ctrl_c)
