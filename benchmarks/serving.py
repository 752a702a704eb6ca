"""How many clients can `python -m serve` answer at once? `python -m benchmarks.serving runs/demo [--clients 64]`

Starts the server as a process on a free port and asks it over HTTP: all clients one after another, then all at once.
Medians of several turns. Prompts differ and share no beginning. --versus transformers: beside its `generate_batch`,
which is asked for all of them at once, without HTTP.
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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from configs.command import InputError, exit_on_bad_input, whole
from configs.text import table
from eval.load_model import add_device_option

PROMPT = "Once there was a fox named {}{}. "


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("run", type=Path, help="a run with a checkpoint")
    for option, most, default, meaning in (
        ("--clients", 1000, 64, "requests at once"),
        ("--tokens", 10_000, 64, "tokens of each answer"),
        ("--rounds", 1000, 3, "turns"),
    ):
        parser.add_argument(
            option, type=whole(option, 1, most), default=default, metavar="N", help=f"{meaning} ({default})"
        )
    parser.add_argument("--versus", choices=["transformers"], help="beside its continuous batching, in the same run")
    add_device_option(parser)
    given = parser.parse_args()
    with served(given.run, given.device) as (address, name, server):
        clients = Clients(f"{address}/completions", name, given.clients, given.tokens)
        if given.versus:
            print(compare(given.run, clients, server, given.rounds))
        else:
            print(measure(ours(clients), f"{given.clients} clients, {given.tokens} tokens each", given.rounds))
    return 0


@contextmanager
def served(run: Path, device: str) -> Iterator[tuple[str, str, int]]:
    """`python -m serve` as a process of its own, while this lasts: the address of its API, the model's name and
    the number of the process.

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
        yield address, name, server.pid
    finally:
        server.terminate()
        server.wait()


class Clients:
    """They ask a server for the same number of tokens each, and remember what they got."""

    def __init__(self, address: str, name: str, clients: int, tokens: int):
        self.address, self.name, self.clients, self.tokens = address, name, clients, tokens
        self.prompts = [PROMPT.format(chr(65 + number % 26), number) for number in range(clients)]
        self.texts: list[str] = []

    def ask(self, prompt: str) -> tuple[float, int, str]:
        """Seconds, tokens and text of one answer."""
        body = {"model": self.name, "prompt": prompt, "max_tokens": self.tokens, "temperature": 0}
        request = urllib.request.Request(self.address, json.dumps(body).encode(), {"Content-Type": "application/json"})
        begun = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            found = json.load(answer)
        return time.perf_counter() - begun, found["usage"]["completion_tokens"], found["choices"][0]["text"]

    def all_ask(self, workers: int) -> tuple[int, list[float]]:
        """All of them, this many at a time: tokens of all answers, and the seconds of each."""
        with ThreadPoolExecutor(workers) as pool:
            answers = list(pool.map(self.ask, self.prompts))
        self.texts = [text for _, _, text in answers]
        return sum(written for _, written, _ in answers), [seconds for seconds, _, _ in answers]


Way = Callable[[], tuple[int, list[float]]]


def measure(ways: Mapping[str, Way], head: str, rounds: int) -> str:
    """A table: tokens/s, and seconds until a client has its answer. The ways take turns; the first turn warms up."""
    speeds: dict[str, list[float]] = {label: [] for label in ways}
    waits: dict[str, list[float]] = {label: [] for label in ways}
    for turn in range(rounds + 1):
        for label, way in ways.items():
            begun = time.perf_counter()
            written, seconds = way()
            if turn:
                speeds[label].append(written / (time.perf_counter() - begun))
                waits[label] += seconds
    first, rows = median(next(iter(speeds.values()))), []
    for label, found in speeds.items():
        times = waits[label]
        shown = [f"{median(times):.2f}", f"{quantiles(times, n=20)[-1]:.2f}"] if len(times) > 1 else ["–", "–"]
        rows.append([label, f"{median(found):,.0f}", f"{median(found) / first:.2f}", *shown])
    return table([head, "tokens/s", "ratio", "seconds, median", "seconds, 95 %"], rows)


def compare(run: Path, clients: Clients, server: int, rounds: int) -> str:
    """The same beside transformers' generate_batch, and what both hold in memory."""
    import psutil

    from benchmarks.transformers_batches import Answered, generate_batch, their_process

    answered: list[Answered] = []
    with their_process(run) as pool:

        def theirs() -> tuple[int, list[float]]:
            answered.append(pool.submit(generate_batch, clients.prompts, clients.tokens).result())
            return answered[-1].tokens, []

        ways = {**ours(clients), "transformers, generate_batch": theirs}
        shown = measure(ways, f"{clients.clients} clients, {clients.tokens} tokens each", rounds)
    same = sum(one == other for one, other in zip(answered[-1].texts, clients.texts, strict=True))
    held = psutil.Process(server).memory_info().rss
    memory = f"memory: the server {held / 1e6:,.0f} MB, transformers {answered[-1].memory / 1e6:,.0f} MB"
    return f"{shown}\n\n{memory}; {same} of {clients.clients} answers are equal"


def ours(clients: Clients) -> dict[str, Way]:
    """One after another, and all at once."""
    return {"one after another": partial(clients.all_ask, 1), "all at once": partial(clients.all_ask, clients.clients)}


if __name__ == "__main__":
    exit_on_bad_input(main)
