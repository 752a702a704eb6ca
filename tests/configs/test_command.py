"""How a command ends after Ctrl-C, whatever a library makes of it; and where it keeps compiled code."""

import os
import signal
import sys
import time

import pytest

import configs.command
from configs.command import InputError, exit_on_bad_input
from tests.processes import exit_code

needs_sigint = pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process alone")
ERRORS = {
    "bad input": InputError("step_00000010: cannot resume from here"),
    "a library's error": ValueError("could not determine the shape of object type"),
    "an error like that of a full memory": RuntimeError("interrupted"),
}


def interrupted(name: str) -> None:
    """A command whose library turns KeyboardInterrupt into another error, as safetensors does while it loads."""
    signal.signal(signal.SIGINT, configs.command._on_ctrl_c)

    def command() -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise ERRORS[name] from None
        return 0

    exit_on_bad_input(command)


@needs_sigint
@pytest.mark.parametrize("name", ERRORS)
def test_after_ctrl_c_it_was_stopped_and_nothing_else(name):
    assert exit_code(interrupted, name) == 130


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
