"""Runs of several processes on this machine (gloo)."""

import faulthandler
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from configs.command import exit_on_bad_input
from tests.processes import print_to, start
from tests.train.helpers import stopped_at
from train.pretrain import main


def run_world(size: int, function: Callable, *arguments) -> list[int | None]:
    """function(*arguments) in `size` processes, as torchrun would start them; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start(_as_rank, rank, size, port, function, *arguments) for rank in range(size)]
    for process in processes:
        process.join(timeout=200)
        process.kill()
    return [process.exitcode for process in processes]


def _as_rank(rank: int, size: int, port: int, function: Callable, *arguments) -> None:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(150, exit=True)  # a process that waits for ever says where, and ends
    if size > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()})
    function(*arguments)


def pretrain_rank(
    config: Path, overrides: list[str], stop_at: int | None = None, script: Callable[[], int] = main
) -> None:
    """`python -m train.pretrain config overrides…`; the last process sends itself SIGTERM when it comes to `stop_at`.

    script: the main of another module. What a process prints is in config's folder: rank0.txt, rank1.txt, …
    """
    print_to(config.with_name(f"rank{os.environ.get('RANK', '0')}.txt"))
    faulthandler.dump_traceback_later(150, exit=True)
    sys.argv = ["pretrain", str(config), *overrides]
    last = int(os.environ.get("WORLD_SIZE", "1")) - 1
    with stopped_at(-1 if stop_at is None else stop_at, rank=last):
        exit_on_bad_input(script)


def failing_on_rank_1(config: Path, overrides: list[str]) -> None:
    """The same, but on rank 1 the second capture of every look finds that its map is not the kernel's."""
    import eval.attention.snapshots as record

    capture, calls = record.capture, [0]

    def wrong(*arguments, **options):
        maps = capture(*arguments, **options)
        calls[0] += 1
        if os.environ.get("RANK") == "1" and calls[0] == 2:
            raise RuntimeError("layer 0: the recomputed attention weights do not give the kernel's output")
        return maps

    record.capture = wrong
    pretrain_rank(config, overrides)


def trace(run: Path) -> list[dict]:
    """trace.jsonl: step, batch, loss, grad_norm, lr; exact, as text."""
    return [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]
