"""Measure the server with many clients: `python -m benchmarks.serving runs/demo`

It starts `python -m serve` on a free port. Clients ask over HTTP, one after another, then all at
once.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from configs.command import InputError, add_number, command_parser, exit_on_bad_input
from configs.files import run_path
from configs.text import table
from eval.load_model import add_device_option


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("run", type=run_path, help="a run with a checkpoint")
    add_number(parser, "--clients", 64, "requests at once", most=10_000)
    add_number(parser, "--tokens", 64, "tokens of each answer", most=10_000)
    add_device_option(parser)
    args = parser.parse_args()
    # About 12 tokens. The server's cache shares only full blocks of 16, so it reads every prompt.
    prompts = [f"Once there was a fox named {chr(65 + i % 26)}{i}. " for i in range(args.clients)]
    rows = []
    with served(args.run, args.device) as (address, name):

        def answer(prompt: str) -> tuple[float, int]:
            body = {"model": name, "prompt": prompt, "max_tokens": args.tokens, "temperature": 0}
            began = time.perf_counter()
            usage = fetch(f"{address}/completions", body)["usage"]
            return time.perf_counter() - began, usage["completion_tokens"]

        answer(prompts[0])  # the first answer is slower
        for label, workers in (("one after another", 1), ("all at once", args.clients)):
            began = time.perf_counter()
            with ThreadPoolExecutor(workers) as pool:
                seconds, tokens = zip(*pool.map(answer, prompts), strict=True)
            speed = sum(tokens) / (time.perf_counter() - began)
            # a mean would hide the clients that wait longest
            slow = sorted(seconds)[int(0.95 * len(seconds))]
            rows.append([label, f"{speed:,.0f}", f"{median(seconds):.2f}", f"{slow:.2f}"])
    title = f"{args.clients} clients, {args.tokens} tokens each"
    print(table([title, "tokens/s", "seconds, median", "seconds, 95 %"], rows))


@contextmanager
def served(run: Path, device: str) -> Iterator[tuple[str, str]]:
    """Run the server; yield the address of its API and the model's name. Raises InputError."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # 0: any free port
        # note: after this block another program could take the port first (unlikely)
        port = free.getsockname()[1]
    options = [str(run), "--port", str(port), "--device", device]
    server = subprocess.Popen([sys.executable, "-m", "serve", *options])
    address = f"http://127.0.0.1:{port}/v1"
    try:
        models = None
        while models is None:
            if server.poll() is not None:
                raise InputError(f"python -m serve {run} ended with exit code {server.returncode}")
            time.sleep(0.1)  # the server loads the model, then listens
            with suppress(urllib.error.URLError):
                models = fetch(f"{address}/models")
        yield address, models["data"][0]["id"]
    finally:
        server.terminate()
        server.wait()


def fetch(address: str, body: dict[str, Any] | None = None) -> Any:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


if __name__ == "__main__":
    exit_on_bad_input(main)
