"""Exit codes and last lines of commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.command import InputError, exit_on_bad_input

ROOT = Path(__file__).parents[2]
ROOMS = ("configs", "model", "storyworld", "data", "eval", "train", "serve", "benchmarks")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("a.yaml:3: no \x1b"), 2, "error: a.yaml:3: no ⟨U+001B⟩"),
        (KeyboardInterrupt(), 130, "stopped; run the same command again to continue"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "error: out of memory: use a smaller model"),
        (ZeroDivisionError("of ours"), 1, "error: ZeroDivisionError: of ours (traceback: "),
    ],
)
def test_a_command_ends_with_one_line_and_a_code(capsys, error, code, line):
    def command() -> int:
        raise error

    with pytest.raises(SystemExit) as ended:
        exit_on_bad_input(command)
    (said,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, said[: len(line)]) == (code, line)
    if code == 1:
        assert "in command\n" in Path(said.split("traceback: ")[1].rstrip(")")).read_text()


def test_a_command_whose_output_nobody_reads_ends_like_others(tmp_path):
    """`… | head -1`"""
    script = tmp_path / "command.py"
    pipe = subprocess.PIPE
    script.write_text(
        "import sys\nfrom configs.command import *\ndef command():\n    sys.stdin.read()\n    print('x' * 500_000)\n"
        "exit_on_bad_input(command)\n"
    )
    child = subprocess.Popen([sys.executable, script], stdin=pipe, stdout=pipe, stderr=pipe)
    child.stdout.close()
    child.stdin.close()
    assert (child.wait(timeout=60), child.stderr.read()) == (141, b"")


def test_a_file_of_a_command_runs_like_its_module():
    """Python puts the folder of a file that it runs before its own modules."""
    names = {file.stem for room in ROOMS for file in (ROOT / room).rglob("*.py")}
    # data/inspect is a folder that gives way
    assert names & {*sys.stdlib_module_names} <= {"__main__", "__future__"}
    found = subprocess.run(
        [sys.executable, "data/prepare.py", "--help"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert found.returncode == 0


def test_a_command_ends_without_a_search_for_garbage():
    lines = [
        "import atexit, gc",
        "from configs.command import exit_on_bad_input",
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000))",  # the last one to be called
        "exit_on_bad_input(lambda: 0)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
