"""Windows, macOS and terminals without UTF-8, as far as can be told from Linux: patterns in the source, and the
branches for them, taken. What was never run on a Mac or on Windows is not proven by this, only made likely.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from configs import cores
from model import memory
from tests.train.helpers import REPOSITORY, write_config
from train import meters
from train.config import load_run_config
from train.fits import micro_batch_rows
from train.machine import compilation, device, hardware
from train.machine.device import resolve_device
from train.saving import atomic_save

pytestmark = pytest.mark.slow

ROOMS = "configs model data eval train serve benchmarks notebooks".split()
FILES = sorted(file for room in ROOMS for file in (REPOSITORY / room).rglob("*.py"))

LEXISTS = "pathlib has no lexists before Python 3.12"
# what is right although it looks like one of these, and why
ALLOWED = {
    ("train/saving/atomic_save.py", "rename"): "the target was moved away or never existed; Windows renames that",
    ("model/saving/new_directory.py", "rename"): "the target is removed before",
    ("model/saving/new_directory.py", "os.path"): LEXISTS,
    ("model/export/__main__.py", "os.path"): LEXISTS,
    ("serve/run_folder.py", "posix"): "kill, behind a look at os.name",
    ("eval/compare/__main__.py", "os.path"): "commonpath and relpath are not in pathlib; drives are looked at before",
    ("model/memory.py", "place"): "/proc/meminfo, where it is missing the system is asked otherwise",
    ("eval/chat/__main__.py", "posix module"): "readline, behind suppress(ImportError): Windows edits lines itself",
    ("model/memory.py", "posix"): "sysconf, behind a look at sysconf_names",
    ("train/machine/shared_memory.py", "place"): "/dev/shm, where there is one; else the folder of temporary files",
    ("train/machine/cpu_processes.py", "fork"): "on Linux only; elsewhere a process starts by itself",
    ("train/machine/hardware.py", "place"): "control groups, none where /proc is missing",
    ("configs/checkpoints.py", "os.path"): LEXISTS,
    ("configs/read_back.py", "os.path"): LEXISTS,
    ("eval/compare/runs.py", "os.path"): LEXISTS,
}

POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "readline", "syslog", "termios", "tty"}
POSIX_CALLS = set(
    "chmod chown fork forkpty getpgid getuid kill killpg lchown link mkfifo nice sched_getaffinity".split()
)
POSIX_CALLS |= set("setpgid setsid symlink sync sysconf uname wait waitpid".split())
PORTABLE_SIGNALS = {"SIGINT", "SIGTERM", "SIG_IGN", "Signals", "default_int_handler", "signal", "getsignal"}
TEXT_CALLS = {"open", "read_text", "write_text"}
NOT_FILES = {
    "Image",
    "drawing",
    "gzip",
    "os",
    "webbrowser",
    "zipfile",
}  # what has a method of such a name but no text file


def problems(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(rule, line) of everything that is different on another system."""
    guarded = {id(node) for try_ in ast.walk(tree) if _tries_import(try_) for node in ast.walk(try_)}
    for node in ast.walk(tree):
        for rule, broken in RULES.items():
            if broken(node) and id(node) not in guarded:
                yield rule, node.lineno


def _tries_import(node: ast.AST) -> bool:
    """try: import … except ImportError: …"""
    caught = [handler.type for handler in node.handlers] if isinstance(node, ast.Try) else []
    return any(isinstance(type_, ast.Name) and type_.id == "ImportError" for type_ in caught)


def _called(node: ast.AST) -> tuple[str, str]:
    """(what it is called on, name) of a call: ("os", "fork"), ("", "open"), ("?", "read_text")."""
    if not isinstance(node, ast.Call):
        return "", ""
    if isinstance(node.func, ast.Name):
        return "", node.func.id
    if isinstance(node.func, ast.Attribute):
        return node.func.value.id if isinstance(node.func.value, ast.Name) else "?", node.func.attr
    return "", ""


def _keywords(node: ast.AST) -> set[str | None]:
    return {keyword.arg for keyword in node.keywords} if isinstance(node, ast.Call) else set()


def _texts(node: ast.AST) -> list[str]:
    """The texts that a call is given."""
    given = [*node.args, *(keyword.value for keyword in node.keywords)] if isinstance(node, ast.Call) else []
    return [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def no_encoding(node: ast.AST) -> bool:
    """A text file read or written as this system happens to encode text (Windows: cp1252)."""
    owner, name = _called(node)
    ours = owner == "" and name == "read_text"  # configs.read_back's, which reads UTF-8
    if name not in TEXT_CALLS or owner in NOT_FILES or ours or "encoding" in _keywords(node):
        return False
    return not (name == "open" and any("b" in text and len(text) <= 3 for text in _texts(node)))


def no_encoding_of_process(node: ast.AST) -> bool:
    """What another process prints, decoded as this system happens to encode text."""
    starts = _called(node)[1] in ("Popen", "run", "check_output")
    return starts and bool({"text", "universal_newlines"} & _keywords(node)) and "encoding" not in _keywords(node)


def renames(node: ast.AST) -> bool:
    """Windows renames nothing onto what exists; replace() does, on every system."""
    owner, name = _called(node)
    return name == "rename" or (owner, name) == ("shutil", "move")


def forks(node: ast.AST) -> bool:
    """Processes started otherwise than Windows (and, by default, macOS) can: only "spawn" is everywhere."""
    owner, name = _called(node)
    if name == "get_context":
        return _texts(node) != ["spawn"]
    is_executor = name == "ProcessPoolExecutor" and not ("mp_context" in _keywords(node) or len(node.args) > 1)  # type: ignore[attr-defined]
    return is_executor or (owner == "multiprocessing" and name in ("Process", "Pool")) or name == "set_start_method"


def posix_signal(node: ast.AST) -> bool:
    is_signal = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "signal"
    return is_signal and node.attr not in PORTABLE_SIGNALS  # type: ignore[attr-defined]


def posix_call(node: ast.AST) -> bool:
    owner, name = _called(node)
    return (owner == "os" and name in POSIX_CALLS) or name in ("symlink_to", "hardlink_to", "chmod")


def posix_module(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.split(".")[0] in POSIX_MODULES for name in names)


def joined_path(node: ast.AST) -> bool:
    """os.path instead of pathlib."""
    is_path = isinstance(node, ast.Attribute) and node.attr == "path"
    return is_path and isinstance(node.value, ast.Name) and node.value.id == "os"  # type: ignore[attr-defined]


def posix_place(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text and node.value.startswith(("/dev/", "/proc/", "/tmp", "/usr/", "/etc/", "/sys/"))  # type: ignore[attr-defined]


def double_on_device(node: ast.AST) -> bool:
    """Apple's GPUs have no float64: first to the CPU, then double."""
    if _called(node)[1] != "cpu":
        return False
    inner = node.func.value  # type: ignore[attr-defined]
    return _called(inner)[1] == "double"


RULES = {
    "encoding": no_encoding,
    "encoding of a process": no_encoding_of_process,
    "rename": renames,
    "fork": forks,
    "signal": posix_signal,
    "posix": posix_call,
    "posix module": posix_module,
    "os.path": joined_path,
    "place": posix_place,
    "float64": double_on_device,
}


@cache
def found() -> dict[tuple[str, str], list[int]]:
    lines: dict[tuple[str, str], list[int]] = {}
    for file in FILES:
        for rule, line in problems(ast.parse(file.read_text(encoding="utf-8"))):
            lines.setdefault((file.relative_to(REPOSITORY).as_posix(), rule), []).append(line)
    return lines


def test_nothing_in_the_source_is_for_one_system_only():
    assert len(FILES) > 100
    assert {place: lines for place, lines in found().items() if place not in ALLOWED} == {}


def test_what_is_allowed_is_still_there():
    assert ALLOWED.keys() - found().keys() == set()


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("encoding", "open('x')"),
        ("encoding", "open('x', 'w')"),
        ("encoding", "Path('x').open('a')"),
        ("encoding", "path.read_text()"),
        ("encoding", "(path / 'b').write_text('text')"),
        ("encoding of a process", "subprocess.run(['ls'], text=True)"),
        ("rename", "os.rename(a, b)"),
        ("rename", "path.rename(other)"),
        ("rename", "shutil.move(a, b)"),
        ("fork", "multiprocessing.get_context('fork')"),
        ("fork", "multiprocessing.get_context()"),
        ("fork", "multiprocessing.Process(target=f)"),
        ("fork", "ProcessPoolExecutor(2)"),
        ("signal", "signal.SIGKILL"),
        ("signal", "signal.alarm(3)"),
        ("posix", "os.fork()"),
        ("posix", "os.kill(1, 2)"),
        ("posix", "a.symlink_to(b)"),
        ("posix", "path.chmod(0o600)"),
        ("posix module", "import resource"),
        ("posix module", "from fcntl import flock"),
        ("posix module", "try:\n    import fcntl\nexcept ValueError:\n    pass"),
        ("os.path", "os.path.join(a, b)"),
        ("place", "Path('/dev/shm')"),
        ("float64", "x.double().cpu()"),
    ],
)
def test_each_rule_finds_what_it_is_for(rule, source):
    assert rule in {rule for rule, _ in problems(ast.parse(source))}


@pytest.mark.parametrize(
    "source",
    [
        "open('x', encoding='utf-8')",
        "path.open('rb')",
        "gzip.open(raw)",
        "path.read_text(encoding='utf-8')",
        "drawing.write_text(figure, 1, 2, 'title')",
        "subprocess.run(['ls'], encoding='utf-8')",
        "path.replace(other)",
        "'a-b'.replace('-', '_')",
        "ProcessPoolExecutor(1, multiprocessing.get_context('spawn'))",
        "signal.signal(signal.SIGINT, note)",
        "try:\n    import resource\nexcept ImportError:\n    pass",
        "os.devnull",
        "x.cpu().double()",
    ],
)
def test_what_works_everywhere_is_let_through(source):
    assert list(problems(ast.parse(source))) == []


# ---------------------------------------------------------------------------------------------------------
# the branches for other systems


def in_ascii(*arguments: str) -> subprocess.CompletedProcess:
    """A command where text is ASCII unless one says otherwise: no locale, no UTF-8 mode."""
    plain = {"PYTHONUTF8": "0", "LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0"}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONIOENCODING"} | plain
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        encoding="ascii",
        timeout=300,
    )


def test_a_terminal_that_knows_only_ascii(tmp_path):
    """Chinese text and a Chinese prompt: files are UTF-8, and the screen shows what it can."""
    assert in_ascii("-c", "import locale; print(locale.getpreferredencoding())").stdout == "ANSI_X3.4-1968\n"
    assert "usage: " in in_ascii("-m", "train.pretrain", "--help").stdout
    text = tmp_path / "text.txt"
    text.write_text("".join(f"从前有一只狐狸，它住在第{i}座山上。\n" for i in range(300)), encoding="utf-8")
    evaluation = {"every": 0, "prompts": ["从前"], "attention": {"every": 2, "early": [], "max_tokens": 12}}
    config = write_config(tmp_path, train={"max_steps": 2}, eval=evaluation | {"sample_tokens": 4})
    done = in_ascii("-m", "train.pretrain", str(config))
    assert done.returncode == 0, done.stderr
    assert "\\u4ece\\u524d" in done.stdout  # the sample begins with the prompt
    run = tmp_path / "runs/tiny"
    assert "从前" in (run / "report.md").read_text(encoding="utf-8")
    sample = json.loads((run / "samples.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert sample["prompt"] == "从前"
    assert "从前" in (run / "config.yaml").read_text(encoding="utf-8")


def test_a_name_that_this_locale_has_no_letters_for_is_one_sentence(tmp_path):
    done = in_ascii("-m", "train.pretrain", str(write_config(tmp_path, name="狐狸")))
    assert done.returncode == 2
    assert done.stderr.endswith("which no file's name can hold in this locale: set PYTHONUTF8=1 in the environment\n")
    assert done.stderr.count("\n") == 1


def test_on_windows_directories_are_not_synced_and_files_are_opened_for_writing(tmp_path, monkeypatch):
    """Windows has no fsync of a directory, and syncs only what may be written."""
    file, opened, synced = tmp_path / "a.txt", [], []
    file.write_text("text", encoding="utf-8")
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        windows.setattr(os, "open", lambda path, flags, real=os.open: opened.append(flags) or real(path, flags))
        windows.setattr(os, "fsync", synced.append)
        atomic_save._flush(tmp_path)
        assert (opened, synced) == ([], [])
        atomic_save._flush(file)
    assert opened == [os.O_RDWR]
    assert len(synced) == 1


def test_what_only_some_systems_tell_is_asked_with_a_fallback(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert device.keep_freed_memory() is False
    monkeypatch.setitem(sys.modules, "resource", None)  # importing it fails
    assert meters.memory_gb(torch.device("cpu")) is None
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / "missing")
    found = hardware.device_memory("cpu")
    assert found is not None
    assert found[1] == "all RAM"  # macOS
    monkeypatch.delattr(os, "sysconf_names", raising=False)
    assert hardware.device_memory("cpu") is None  # Windows
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cores.usable_cores() == os.cpu_count()


# ---------------------------------------------------------------------------------------------------------
# Apple's GPUs


def test_auto_takes_an_apple_gpu_and_says_that_it_is_untested(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    config = load_run_config(write_config(tmp_path, train={"precision": "auto"}))
    device = resolve_device(config)
    assert (device.device.type, device.precision, device.attention) == ("mps", "fp32", "sdpa")
    assert "device mps (auto; not tested: no such machine was available)" in device.notes
    assert compilation._cannot_compile("mps") == "not tried on mps"
    assert micro_batch_rows(config, device) == 8
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    assert resolve_device(config).device.type == "cuda"


@pytest.mark.parametrize(("precision", "problem"), [("bf16", "does not train on mps"), ("tf32", "needs CUDA: on mps")])
def test_an_apple_gpu_trains_in_float32_alone(tmp_path, monkeypatch, precision, problem):
    from configs.command import InputError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(InputError, match=problem):
        resolve_device(load_run_config(write_config(tmp_path, train={"precision": precision})))
