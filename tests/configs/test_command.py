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


@pytest.mark.parametrize(
    ("first", "last", "code", "said"),
    [
        ("survive_lost_output()", "Path('done').touch()", 0, b""),
        ("pass", "Path('done').touch()", 141, b""),
        ("pass", "raise InputError('no')", 2, b"error: no\n"),
    ],
)
def test_a_run_outlives_its_output_and_other_commands_do_not(tmp_path, first, last, code, said):
    """As when Ctrl-C ends the other side of `… | tee log`: what comes after the line is still done."""
    script, size = tmp_path / "command.py", 1 if code == 2 else 500_000
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom configs.command import *\n"
        f"def command():\n    {first}\n    sys.stdin.read()\n    print('x' * {size})\n    {last}\n"
        "exit_on_bad_input(command)\n"
    )
    buffered, pipe = os.environ | {"PYTHONUNBUFFERED": ""}, subprocess.PIPE
    child = subprocess.Popen([sys.executable, script], env=buffered, stdin=pipe, stdout=pipe, stderr=pipe, cwd=tmp_path)
    child.stdout.close()
    child.stdin.close()
    assert (child.wait(timeout=60), child.stderr.read()) == (code, said)
    assert (tmp_path / "done").exists() == (code == 0)
