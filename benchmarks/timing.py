"""Shared by the benchmarks: the command line, the clock, and transformers' model with our weights.

A machine is noisy, so candidates take turns within one run, and medians are printed.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from configs.command import add_config, add_number, command_parser
from model import LanguageModel, save
from train.config import RunConfig, load_run_config
from train.machine.budget import with_vocabulary
from train.machine.device import keep_freed_memory, machine, synchronize

Call = Callable[[], object]


def command_line(description: str | None) -> argparse.ArgumentParser:
    """Return the parser for a config, the rounds, and the peer."""
    parser = command_parser(description)
    add_config(parser, default="configs/base.yaml")
    about = "beside transformers' model with the same weights"
    parser.add_argument("--versus", choices=["transformers"], help=about)
    add_number(parser, "--rounds", 5, "turns of each")
    return parser


def measured_config(args: argparse.Namespace) -> tuple[RunConfig, torch.device]:
    """Return the config with its vocabulary, and the device. Prints both. Raises InputError."""
    run, source = with_vocabulary(load_run_config(args.config, args.overrides))
    use_gpu = run.train.device == "cuda"
    if run.train.device == "auto":
        use_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if use_gpu else "cpu")
    keep_freed_memory()  # as a run does
    print(f"{machine(device)}, torch {torch.__version__}")
    print(f"vocabulary {run.model.vocab_size:,}: {source}", flush=True)
    return run, device


def alternate(
    candidates: Mapping[str, Call],
    rounds: int,
    device: torch.device,
    patience_s: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each candidate, called in turns, for patience_s at most."""
    for call in candidates.values():
        call()  # the first call compiles, allocates and fills caches
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    began = clock()
    for _ in range(rounds):
        for name, call in candidates.items():
            seconds[name].append(seconds_of(call, device, clock))
        # after a whole round, so that all candidates have the same number of calls
        if clock() - began > patience_s:
            break
    return {name: statistics.median(times) for name, times in seconds.items()}


def seconds_of(
    call: Call, device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of one call, including the GPU's work."""
    synchronize(device)  # a call returns before the GPU has finished
    before = clock()
    call()
    synchronize(device)
    return clock() - before


def in_transformers(lm: LanguageModel, **options: Any) -> Any:
    """Return transformers' model with the same weights. options: of its `from_pretrained`."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        # through files, as a user would: the comparison also shows that the format is right
        save(lm, directory)
        return AutoModelForCausalLM.from_pretrained(directory, **options)
