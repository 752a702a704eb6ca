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
from functools import partial
from pathlib import Path
from statistics import median

from configs.command import InputError, exit_on_bad_input, integer
from configs.files import run_path
from configs.text import table
from eval.load_model import add_device_option


def main() -> None:
    parser = argparse.ArgumentParser(description="Answers a second, of one client and of many.")
    parser.add_argument("run", type=run_path, help="a run with a checkpoint")
    count = integer("--clients, --tokens or --rounds", 1, 10_000)
    parser.add_argument("--clients", type=count, default=64, metavar="N", help="requests at once (64)")
    parser.add_argument("--tokens", type=count, default=64, metavar="N", help="tokens of each answer (64)")
    parser.add_argument("--rounds", type=count, default=3, metavar="N", help="turns (3)")
    add_device_option(parser)
    given = parser.parse_args()
    prompts = [f"Once there was a fox named {chr(65 + number % 26)}{number}. " for number in range(given.clients)]
    ways = {"one after another": 1, "all at once": given.clients}
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    waits: dict[str, list[float]] = {way: [] for way in ways}
    with served(given.run, given.device) as (address, name):
        answer = partial(complete, f"{address}/completions", name, given.tokens)
        for turn in range(given.rounds + 1):  # the ways take turns; the first turn warms up
            for way, workers in ways.items():
                begun = time.perf_counter()
                with ThreadPoolExecutor(workers) as pool:
                    answers = list(pool.map(answer, prompts))
                if turn:
                    speeds[way].append(sum(tokens for _, tokens in answers) / (time.perf_counter() - begun))
                    waits[way] += [seconds for seconds, _ in answers]
    rows = [
        [
            way,
            f"{median(speeds[way]):,.0f}",
            f"{median(speeds[way]) / median(speeds['one after another']):.2f}",
            f"{median(waits[way]):.2f}",
            f"{sorted(waits[way])[int(0.95 * len(waits[way]))]:.2f}",
        ]
        for way in ways
    ]
    what = [f"{given.clients} clients, {given.tokens} tokens each", "tokens/s", "ratio"]
    print(table([*what, "seconds, median", "seconds, 95 %"], rows))


@contextmanager
def served(run: Path, device: str) -> Iterator[tuple[str, str]]:
    """`python -m serve` as a process of its own, while this lasts: the address of its API and the model's name.

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


def complete(address: str, model: str, tokens: int, prompt: str) -> tuple[float, int]:
    """Seconds and tokens of one answer."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    begun = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        usage = json.load(answer)["usage"]
    return time.perf_counter() - begun, usage["completion_tokens"]


if __name__ == "__main__":
    exit_on_bad_input(main)
