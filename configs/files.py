"""Read and write files safely: text, JSON, logs, checkpoints.

A reader raises `DamagedFile`, one line with the file and its problem.
"""

import errno
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from configs.command import InputError
from configs.language import translated
from configs.text import did_you_mean, escape

# Files that only training needs have a folder: vLLM and SGLang load every *.safetensors beside it.
TRAINING = "training"
# Both are in this folder.
MANIFEST = "manifest.json"
STATE = "trainer_state.json"
# It names the model that the adapters belong to.
ADAPTER = "adapter_config.json"
# It is not in the manifest, because you may edit it.
CARD = "README.md"
ROOT = Path(__file__).resolve().parents[1]
# These runs ship with the repository.
PRETRAINED = ROOT / "pretrained"
Result = TypeVar("Result")
# Making one takes longer than using it.
type_adapter = cache(TypeAdapter)


class DamagedFile(InputError, ValueError):
    """A file is missing, damaged or foreign. The message names it; a caller adds the remedy."""


def read_text(file: Path) -> str:
    """Return the text of a UTF-8 file. Raises DamagedFile."""
    try:
        return _read(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{file}: is not UTF-8 text (byte {error.start:,})") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DamagedFile(f"{file}: cannot be read: {error.strerror}") from None


def read_json(file: Path, kind: Any = dict[str, Any]) -> Any:
    """Return the value of a JSON file as this type. "1" is text, no number. Raises DamagedFile."""
    return parse_json(_read(file), str(file), kind)


def parse_json(text: str | bytes, where: str, kind: Any = dict[str, Any]) -> Any:
    """Return the value of a JSON text. where: its file, and its line. Raises DamagedFile."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # too many digits, no UTF-8, nested too deep
        raise DamagedFile(f"{where}: is not valid JSON: {error}") from None
    return checked(value, where, kind)


def checked(value: Any, where: str, kind: Any, strict: bool | None = True) -> Any:
    """Return the value as this kind. strict=None: a dataclass decides. Raises DamagedFile."""
    try:
        return type_adapter(kind).validate_python(value, strict=strict)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        key = escape(".".join(map(str, problem["loc"])))[:200]
        if key:
            current = "" if problem["type"] == "missing" else f", and is {problem['input']!r:.60}"
            message = f"`{key}`: {message}{current}"
        raise DamagedFile(f"{where}: {message}") from None


def read_lines(
    file: Path, warn: Callable[[str], None] | None = None, kind: Any = dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the records of a .jsonl file; [] if there is no file. Damaged lines are skipped."""
    # lexists: a link that leads nowhere is reported, and not taken for a run without this log
    lines = _read(file).split(b"\n") if os.path.lexists(file) else []
    records = []
    for number, raw in enumerate(lines, start=1):
        try:
            records.append(parse_json(raw, f"{file}:{number}", kind))
        except DamagedFile as error:
            # a last line without a line end is no fault: a process may be writing it
            if warn is not None and number < len(lines) and raw.strip():
                warn(f"{error}: this line is skipped")
    return records


def append_line(file: Path, record: dict[str, Any]) -> None:
    """Append one line. After an error the file is as before. Raises OSError."""
    raw = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    # unbuffered: one call of the system, so that lines of two processes do not mix
    with file.open("ab", buffering=0) as stream:
        before = stream.tell()
        if stream.write(raw) != len(raw):  # a full disk takes a part of it, without an error
            stream.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_atomically(file: Path, content: str | bytes) -> None:
    """Replace a file completely or not at all, even if the machine stops. Raises OSError."""
    # in the same folder, because a rename is atomic within one file system only
    temporary = file.with_suffix(".tmp")
    temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    with temporary.open("rb+") as stream:
        os.fsync(stream.fileno())  # the bytes must be on the disk before the name points at them
    temporary.replace(file)  # a reader sees the old file or the new one


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Add the path to the error of a full disk, which has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = str(folder)
        raise


# Checkpoints: the text file runs/x/checkpoints/latest names the folder step_00001000 beside it.


def is_adapter(directory: Path) -> bool:
    """Return True for a folder of adapters."""
    return (directory / ADAPTER).is_file()


def is_pointer(path: Path) -> bool:
    """Return True for a run's `latest` or `best`."""
    return path.name in ("latest", "best") and path.is_file()


def is_model(directory: Path) -> bool:
    """Return True for a folder with a model or adapters, such as a checkpoint."""
    return (directory / "config.json").is_file() or is_adapter(directory)


def checkpoints_of(run: Path) -> dict[int, Path]:
    """Return the checkpoints of a run: step -> folder."""
    folders = {}
    for path in (run / "checkpoints").glob("step_*"):
        # isdecimal leaves out step_….tmp, which a run is still writing
        number = path.name[5:]
        if number.isdecimal() and is_model(path):
            folders[int(number)] = path
    return folders


def run_path(path: str | Path) -> Path:
    """Find a run: NAME is runs/NAME, or else pretrained/NAME; `runs` is runs/ or pretrained/."""
    path = Path(path)
    is_folder = path.name == "runs"
    folder = path if is_folder else path.parent
    # NAME, runs/NAME, or runs/NAME of this repository from another folder
    is_in_runs = folder in (Path(), Path("runs")) or folder.resolve() == ROOT / "runs"
    if path.exists() or not is_in_runs:
        return path
    run = Path("runs", path.name) if folder == Path() else path
    if run.exists():
        return run
    shipped = PRETRAINED if is_folder else PRETRAINED / path.name
    if not shipped.is_dir():
        return path
    if shipped.is_relative_to(Path.cwd()):
        shipped = shipped.relative_to(Path.cwd())
    ready = "there" if is_folder else "trained"
    _print_once(f"{run.as_posix()} is not {ready} yet: using {shipped.as_posix()}")
    return shipped


@cache
def _print_once(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(translated(line), file=sys.stderr, flush=True)


@cache
def hub_snapshot(path: Path) -> Path:
    """Return the folder of OWNER/NAME on the Hugging Face Hub, downloaded if it is not cached.

    Other paths stay as they are. Raises DamagedFile.
    """
    is_name = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path.as_posix())
    if not is_name or path.parts[0] == "runs" or path.suffix == ".json" or path.parent.exists():
        return path
    import huggingface_hub

    # no *.bin: a pickle can run code while it is read
    files = ["*.json", "*.safetensors", "*.jinja"]
    fetch = huggingface_hub.snapshot_download
    try:
        return Path(fetch(path.as_posix(), allow_patterns=files, ignore_patterns="*/*"))
    except Exception as error:  # several libraries raise their own
        reason = str(error).partition("\n")[0].partition(". ")[0][:200]
        problem = f"could not be fetched from the Hugging Face Hub ({reason})"
        remedy = "check the name, the network and HF_HUB_OFFLINE"
        raise DamagedFile(f"{path}: does not exist here, and {problem}: {remedy}") from None


def checkpoint_directory(path: str | Path) -> Path:
    """Return the folder of a model or adapters. Raises DamagedFile.

    path: this folder, a run (its newest checkpoint), its `latest` or `best`, a model of the Hub.
    """
    path = hub_snapshot(run_path(path))
    if is_model(path):
        return path
    latest = path if is_pointer(path) else path / "checkpoints" / "latest"
    if not latest.is_file():
        if path.exists():
            problem = "is neither a run (checkpoints/latest) nor a model directory (config.json)"
            raise DamagedFile(f"{path}: {problem}")
        # both places in which a name alone is looked for
        runs = [*PRETRAINED.glob("*/checkpoints"), *Path("runs").glob("*/checkpoints")]
        hint = did_you_mean(path.name, {run.parent.name: run.parent.name for run in runs})
        raise DamagedFile(f"{path}: does not exist: name a run that was trained{hint}")
    for _ in range(20):  # the run may just be replacing it
        name = read_text(latest).strip()
        if not re.fullmatch(r"step_\d+", name):  # a path could lead anywhere
            problem = f"must hold one plain name, such as step_00001000, and holds {name[:40]!r}"
            raise DamagedFile(f"{latest}: {problem}")
        if is_model(latest.parent / name):
            return latest.parent / name
        time.sleep(0.01)
    raise DamagedFile(f"{latest}: names {name}, which does not exist: give a checkpoint directory")


def read_checkpoint(path: str | Path, read: Callable[[Path], Result]) -> Result:
    """Return read(folder) of one checkpoint; the next one if a training run just removed it."""
    while True:
        directory = checkpoint_directory(path)
        try:
            return read(directory)
        except Exception:
            # a run deletes old checkpoints (train.keep_last), also while they are read
            if directory == Path(path) or directory.exists():
                raise
