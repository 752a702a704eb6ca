"""How is a file read that may be damaged, or was written by somebody else? Every room reads text, JSON and logs here.

    text = read_text(file)                          UTF-8
    values = read_json(file, Manifest)              checked against a pydantic type
    records = read_lines(file, warn=print)          one JSON object a line; a damaged line is named and skipped
    append_line(file, record)                       a line that a full disk cuts off is taken back
    write_atomically(file, text)                    all of it, or the file as it was
    read_checkpoint(run, read)                      the newest checkpoint, also while the run replaces it

Each raises `DamagedFile`: one line that names the file and what is wrong with it.
"""

from __future__ import annotations

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

TRAINING = "training"  # what only training needs; vLLM and SGLang load every *.safetensors of the directory above
MANIFEST, STATE = "manifest.json", "trainer_state.json"  # in that folder
ADAPTER = "adapter_config.json"  # LoRA: names the model that the adapters belong to
CARD = "README.md"  # not in the manifest: you may edit it
ROOT = Path(__file__).resolve().parents[1]  # of the repository
PRETRAINED = ROOT / "pretrained"  # runs that come with it
Result = TypeVar("Result")
type_adapter = cache(TypeAdapter)  # making one takes longer than using it


class DamagedFile(InputError, ValueError):
    """A file is missing, damaged or foreign. The message names it; a caller adds what to do."""


def read_text(file: Path) -> str:
    """The text of a UTF-8 file. Raises DamagedFile."""
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
    """The value of a JSON file, of this kind: a pydantic model or a type such as dict[str, int].

    Values are taken as they are written: "1" is text, not a number. Raises DamagedFile.
    """
    return parse_json(_read(file), str(file), kind)


def parse_json(text: str | bytes, where: str, kind: Any = dict[str, Any]) -> Any:
    """The value of a JSON text. where: its file, and its line if it is one of several. Raises DamagedFile."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also too many digits, no UTF-8, nested too deep
        raise DamagedFile(f"{where}: is not valid JSON: {error}") from None
    return checked(value, where, kind)


def checked(value: Any, where: str, kind: Any, strict: bool | None = True) -> Any:
    """The value, of this kind. strict=None: for a dataclass, whose fields say themselves how strict they are.

    Raises DamagedFile that names the key.
    """
    try:
        return type_adapter(kind).validate_python(value, strict=strict)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if key := escape(".".join(map(str, problem["loc"])))[:200]:
            value = "" if problem["type"] == "missing" else f", and is {problem['input']!r:.60}"
            message = f"`{key}`: {message}{value}"
        raise DamagedFile(f"{where}: {message}") from None


def read_lines(
    file: Path, warn: Callable[[str], None] | None = None, kind: Any = dict[str, Any]
) -> list[dict[str, Any]]:
    """The records of a .jsonl file, each of this kind, in order; none without the file.

    A line that is damaged is skipped, and `warn` gets a line that names it. The last one is skipped without a word if
    it has no line end, because a process may be writing it. Raises DamagedFile if the file cannot be read at all.
    """
    records, lines = [], _read(file).split(b"\n") if os.path.lexists(file) else []
    for number, raw in enumerate(lines, start=1):
        try:
            records.append(parse_json(raw, f"{file}:{number}", kind))
        except DamagedFile as error:
            if warn is not None and number < len(lines) and raw.strip():
                warn(f"{error}: this line is skipped")
    return records


def append_line(file: Path, record: dict[str, Any]) -> None:
    """Append one line, all of it or nothing: after an error the file is as it was. Raises OSError."""
    raw = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    with file.open("ab", buffering=0) as stream:
        before = stream.tell()
        if stream.write(raw) != len(raw):  # a full disk takes a part; the error would come with the rest
            stream.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_atomically(file: Path, content: str | bytes) -> None:
    """Replace a file: it holds all of the content or is as before, even if the machine stops. Raises OSError."""
    temporary = file.with_suffix(".tmp")
    temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    with temporary.open("rb+") as stream:
        os.fsync(stream.fileno())  # the bytes are on disk before the name points at them
    temporary.replace(file)


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Give the error of a full disk a path: a write that fails knows none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.filename = str(folder)
        raise


# ---------------------------------------------------------------------------------------------------------
# checkpoints: runs/x/checkpoints/latest names step_00001000


def is_adapter(directory: Path) -> bool:
    """Whether a checkpoint directory holds adapters, which need the model that they name."""
    return (directory / ADAPTER).is_file()


def is_pointer(path: Path) -> bool:
    """Whether this is a run's `latest` or `best`: a text file that names a checkpoint beside it."""
    return path.name in ("latest", "best") and path.is_file()


def is_model(directory: Path) -> bool:
    """Whether a directory holds a model or adapters, as a checkpoint and what others publish does."""
    return (directory / "config.json").is_file() or is_adapter(directory)


def checkpoints_of(run: Path) -> dict[int, Path]:
    """Step -> directory of every checkpoint that a run keeps."""
    paths = [path for path in (run / "checkpoints").glob("step_*") if path.name[5:].isdecimal()]
    return {int(path.name[5:]): path for path in paths if is_model(path)}


def run_path(path: str | Path) -> Path:
    """Where a run is. NAME alone is runs/NAME. Without such a run it is pretrained/NAME, and a line says so.

    `runs` itself is pretrained/ where it does not exist. What exists is never diverted.
    """
    path = Path(path)
    folder, name = (path, "") if path.name == "runs" else (path.parent, path.name)
    if path.exists() or (folder not in (Path(), Path("runs")) and folder.resolve() != ROOT / "runs"):
        return path
    run, shipped = Path("runs", name) if folder == Path() else path, PRETRAINED / name
    if run.exists():
        return run
    if not shipped.is_dir():
        return path
    shipped = shipped.relative_to(Path.cwd()) if shipped.is_relative_to(Path.cwd()) else shipped
    _say_once(f"{run.as_posix()} is not {'trained' if name else 'there'} yet: using {shipped.as_posix()}")
    return shipped


@cache
def _say_once(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(translated(line), file=sys.stderr, flush=True)


@cache
def hub_snapshot(path: Path) -> Path:
    """The folder of OWNER/NAME in the cache of huggingface_hub, which fetches it if it may; any other path as it is.

    A path whose first folder exists is never such a name. Raises DamagedFile.
    """
    is_name = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path.as_posix())
    if not is_name or path.parts[0] == "runs" or path.suffix == ".json" or path.parent.exists():
        return path
    import huggingface_hub

    wanted = ["*.json", "*.safetensors", "*.jinja"]
    try:
        folder = huggingface_hub.snapshot_download(path.as_posix(), allow_patterns=wanted, ignore_patterns="*/*")
    except Exception as error:  # of several libraries
        reason = str(error).partition("\n")[0].partition(". ")[0][:200]
        remedy = "check the name, the network and HF_HUB_OFFLINE"
        fetched = f"could not be fetched from the Hugging Face Hub ({reason})"
        raise DamagedFile(f"{path}: does not exist here, and {fetched}: {remedy}") from None
    return Path(folder)


def checkpoint_directory(path: str | Path) -> Path:
    """The directory of a model or of adapters: `path` itself, the newest checkpoint of the run at `path` (see
    `run_path`), the one that a run's `latest` or `best` names, or a model of the Hub. Raises DamagedFile, a
    ValueError."""
    path = hub_snapshot(run_path(path))
    if is_model(path):
        return path
    latest = path if is_pointer(path) else path / "checkpoints" / "latest"
    if not latest.is_file():
        if path.exists():
            raise DamagedFile(f"{path}: is neither a run (checkpoints/latest) nor a model directory (config.json)")
        names = {run.parent.name for place in (PRETRAINED, Path("runs")) for run in place.glob("*/checkpoints")}
        hint = did_you_mean(path.name, {name: name for name in names})
        raise DamagedFile(f"{path}: does not exist: name a run that was trained{hint}")
    for _ in range(20):  # while the run replaces it
        name = read_text(latest).strip()
        if not re.fullmatch(r"step_\d+", name):  # a path would lead elsewhere
            raise DamagedFile(f"{latest}: must hold one plain name, such as step_00001000, and holds {name[:40]!r}")
        if is_model(latest.parent / name):
            return latest.parent / name
        time.sleep(0.01)
    raise DamagedFile(f"{latest}: names {name}, which does not exist: give a checkpoint directory instead")


def read_checkpoint(path: str | Path, read: Callable[[Path], Result]) -> Result:
    """read(directory) for the checkpoint that `path` names. Beside a run that trains, all is of one checkpoint:
    if the run removes it in the meantime, the next one is read."""
    while True:
        directory = checkpoint_directory(path)
        try:
            return read(directory)
        except Exception:
            if directory == Path(path) or directory.exists():
                raise
