"""How many clients can `python -m serve` answer at once? `python -m benchmarks.serving runs/demo [--clients 64]`

Starts the server as a process on a free port and asks it over HTTP: all clients one after another, then all at once.
Medians of several turns. Prompts differ and share no beginning.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from configs.bounds import MOST_ROUNDS, whole
from configs.command import InputError, exit_on_bad_input
from configs.tables import table
from eval.opening import add_device_option

PROMPT = "Once there was a fox named {}{}. "


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("run", type=Path, help="a run with a checkpoint")
    for option, most, default, meaning in (
        ("--clients", 1000, 64, "requests at once"),
        ("--tokens", 10_000, 64, "tokens of each answer"),
        ("--rounds", MOST_ROUNDS, 3, "turns"),
    ):
        parser.add_argument(
            option, type=whole(option, 1, most), default=default, metavar="N", help=f"{meaning} ({default})"
        )
    add_device_option(parser)
    given = parser.parse_args()
    with served(given.run, given.device) as (address, name):
        print(measure(f"{address}/completions", name, given.clients, given.tokens, given.rounds))
    return 0


@contextmanager
def served(run: Path, device: str) -> Iterator[tuple[str, str]]:
    """`python -m serve` as a process of its own, while this lasts: the address of its API, and the model's name.

    Raises InputError if it ends before it answers.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "serve", str(run), "--port", str(port), "--device", device])
    address = f"http://127.0.0.1:{port}/v1"
    try:
        while True:
            try:
                with urllib.request.urlopen(f"{address}/models") as answer:
                    name = json.load(answer)["data"][0]["id"]
                break
            except urllib.error.URLError:
                if server.poll() is not None:
                    raise InputError(f"python -m serve {run} ended with exit code {server.returncode}") from None
                time.sleep(0.1)
        yield address, name
    finally:
        server.terminate()
        server.wait()


def measure(address: str, name: str, clients: int, tokens: int, rounds: int) -> str:
    """A table: tokens/s, and seconds until a client has its answer, one after another and all at once."""

    def ask(number: int) -> tuple[float, int]:
        prompt = PROMPT.format(chr(65 + number % 26), number)
        body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
        begun = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            written = json.load(answer)["usage"]["completion_tokens"]
        return time.perf_counter() - begun, written

    rows, speeds = [], {}
    for label, workers in (("one after another", 1), ("all at once", clients)):
        found, waits = [], []
        for turn in range(rounds + 1):
            begun = time.perf_counter()
            with ThreadPoolExecutor(workers) as pool:
                answers = list(pool.map(ask, range(clients)))
            if turn:  # the first one warms up
                found.append(sum(written for _, written in answers) / (time.perf_counter() - begun))
                waits += [seconds for seconds, _ in answers]
        speeds[label] = median(found)
        slow = quantiles(waits, n=20)[-1] if len(waits) > 1 else waits[0]
        rows.append([label, f"{speeds[label]:,.0f}", f"{median(waits):.2f}", f"{slow:.2f}"])
    ratio = speeds["all at once"] / speeds["one after another"]
    head = [f"{clients} clients, {tokens} tokens each", "tokens/s", "seconds, median", "seconds, 95 %"]
    return f"{table(head, rows)}\n\nall at once: {ratio:.1f} × as many tokens/s"


if __name__ == "__main__":
    exit_on_bad_input(main)
