"""`python -m serve`: what it says, what it refuses, and how it ends."""

import threading

import httpx
import pytest

from benchmarks.serving import served
from serve.__main__ import main
from tests.processes import run_main, run_module


def refused(*arguments):
    done = run_main(main, *arguments)
    assert done.returncode == 2
    return done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0: others could use your models: give --api-key"),
        (["--host", "example.org"], "give --api-key"),
        (["--port", "0"], "--port"),
        (["--allow-origin", "*"], "every web page could use your models"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_what_is_refused(folder, options, message, monkeypatch):
    monkeypatch.delenv("HEADLIGHT_API_KEY", raising=False)
    assert message in refused(folder, *options)
    assert "holds no run: train one first" in refused(folder / "nowhere")


@pytest.mark.slow
def test_sigterm_finishes_what_is_running(folder):
    lines = []
    begun = threading.Event()

    def read(address, name):
        body = {"model": name, "prompt": "A", "max_tokens": 250, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{address}/completions", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                begun.set()

    with served(folder / "text", "cpu") as started:  # at its end comes SIGTERM
        reader = threading.Thread(target=read, args=started)
        reader.start()
        assert begun.wait(120)
    reader.join(120)
    assert "data: [DONE]" in lines


@pytest.mark.slow
def test_the_benchmark_starts_the_server_and_ends_it(folder):
    done = run_module("benchmarks.serving", folder / "text", "--clients", "3", "--tokens", "4")
    assert done.returncode == 0, done.stderr
    assert "3 clients, 4 tokens each" in done.stdout
    assert "| all at once " in done.stdout
