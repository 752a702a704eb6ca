"""How a command ends, and where it keeps compiled code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.command import InputError, exit_on_bad_input


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


@pytest.mark.parametrize("asked", [None, "avx2"])
@pytest.mark.parametrize("folder", [None, "mine", "/tmp/torchinductor_me"])
def test_other_kernels_have_compiled_code_of_their_own(monkeypatch, asked, folder):
    """With one folder for all, a loss that was compiled for AVX-512 came out at half of its value."""
    given = {"ATEN_CPU_CAPABILITY": asked, "TORCHINDUCTOR_CACHE_DIR": folder}
    kept = {name: value for name, value in (os.environ | given).items() if value is not None}
    monkeypatch.setattr(os, "environ", kept)
    found = []
    with pytest.raises(SystemExit):
        exit_on_bad_input(lambda: found.append(os.environ.get("TORCHINDUCTOR_CACHE_DIR")))
    if asked and folder != "mine":  # PyTorch's own default comes from a program that compiled and started this one
        assert found[0].endswith("_avx2")
    else:
        assert found == [folder]


@pytest.mark.parametrize("survives", [False, True])
def test_a_run_outlives_its_output_and_other_commands_do_not(tmp_path, survives):
    """As when Ctrl-C ends the other side of `… | tee log`: what comes after the line is still done."""
    script = tmp_path / "command.py"
    script.write_text(
        "import sys, time\nfrom pathlib import Path\nfrom configs.command import *\n"
        f"def command():\n    {'survive_lost_output()' if survives else 'pass'}\n    sys.stdin.read()\n"
        "    for _ in range(5): print('x' * 100_000, flush=True)\n    Path('done').touch()\n"
        "exit_on_bad_input(command)\n"
    )
    child = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    child.stdout.close()
    child.stdin.close()
    assert (child.wait(timeout=60), child.stderr.read()) == ((0, b"") if survives else (141, b""))
    assert (tmp_path / "done").exists() == survives


def test_bad_input_keeps_its_code_where_nobody_reads_the_output(tmp_path):
    script = tmp_path / "command.py"
    script.write_text(
        "import sys\nfrom configs.command import *\n"
        "def command():\n    print('x')\n    sys.stdin.read()\n    raise InputError('no')\nexit_on_bad_input(command)\n"
    )
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, script], env=buffered, **pipes)
    child.stdout.close()
    child.stdin.close()
    assert (child.wait(timeout=60), child.stderr.read()) == (2, b"error: no\n")
