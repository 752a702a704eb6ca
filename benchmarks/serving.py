"""How many clients can `python -m serve` answer at once? `python -m benchmarks.serving runs/demo [--clients 64]`

Starts the server on a free port and asks it over HTTP: all clients one after another, then all at once; and in the same
process, without a server, the model alone. Medians of several turns. Prompts differ and share no beginning.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

from configs.bounds import MOST_ROUNDS, whole
from configs.command import exit_on_bad_input
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
    from serve.app import LOCAL, create_app, make_server  # torch
    from serve.library import Library
    from serve.limits import Limits

    library = Library(given.run, given.device)
    (name,) = library.runs()
    server = make_server(create_app(library, Limits(), LOCAL), "127.0.0.1", 0, 30)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        print(measure(f"http://127.0.0.1:{port}/v1/completions", name, given.clients, given.tokens, given.rounds))
    finally:
        server.should_exit = True
        thread.join()
    return 0


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
