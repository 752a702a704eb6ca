"""`python -m serve`: what it says, what it refuses, and how it ends."""

import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

from tests.processes import run_main, run_module
from tests.train.helpers import REPOSITORY


def refused(*arguments):
    from serve.__main__ import main

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


def test_a_folder_without_runs(tmp_path):
    assert "holds no run: train one first" in refused(tmp_path)
    assert "holds no run" in refused(tmp_path / "nowhere")


@pytest.mark.slow
def test_sigterm_finishes_what_is_running(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "serve", str(folder), "--port", str(port), "--device", "cpu"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == f"looking for models in {folder} …\n"
        assert server.stdout.readline() == "models: chat, text\n"
        assert server.stdout.readline() == f"the page: http://127.0.0.1:{port}/\n"
        assert f"http://127.0.0.1:{port}/v1" in server.stdout.readline()
        address, found = f"http://127.0.0.1:{port}/v1", []
        with httpx.Client(transport=httpx.HTTPTransport(retries=50), timeout=120) as client:
            while True:
                try:
                    client.get(f"{address}/models")
                    break
                except httpx.TransportError:
                    assert server.poll() is None
            body = {"model": "text", "prompt": "A", "max_tokens": 250, "temperature": 0, "stream": True}

            def read():
                with client.stream("POST", f"{address}/completions", json=body) as answer:
                    for line in answer.iter_lines():
                        found.append(line)
                        begun.set()

            begun = threading.Event()
            reader = threading.Thread(target=read)
            reader.start()
            assert begun.wait(120)
            server.send_signal(signal.SIGTERM)
            reader.join(120)
        assert server.wait(120) in (0, -signal.SIGTERM, 143)
    assert "data: [DONE]" in found


@pytest.mark.slow
def test_the_benchmark_starts_the_server_and_ends_it(folder):
    done = run_module("benchmarks.serving", folder / "text", "--clients", "3", "--tokens", "4", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "3 clients, 4 tokens each" in done.stdout
    assert "| all at once " in done.stdout
