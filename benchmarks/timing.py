"""How do we measure fairly on a noisy machine? What is compared takes turns within one run, and medians are printed.

Here is what every benchmark shares: the command line, the clock, and transformers' model with our weights.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from configs.command import integer
from model import LanguageModel, save
from train.config import RunConfig, load_run_config
from train.machine.budget import with_vocabulary
from train.machine.device import keep_freed_memory, machine, synchronize


def command_line(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """The options of a benchmark of a config: which one, how often, beside whom."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=form)
    parser.add_argument("config", nargs="?", default="configs/base.yaml", help="a YAML file (configs/base.yaml)")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example train.device=cuda")
    parser.add_argument("--versus", choices=["transformers"], help="beside transformers' model with the same weights")
    parser.add_argument("--rounds", type=integer("--rounds", 1), default=rounds, help=f"turns of each ({rounds})")
    return parser


def measured_config(given: argparse.Namespace) -> tuple[RunConfig, torch.device]:
    """The config with its vocabulary, and where it computes; printed, with the machine. Raises InputError."""
    run, known = with_vocabulary(load_run_config(given.config, given.overrides))
    on_gpu = run.train.device == "cuda" or (run.train.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda" if on_gpu else "cpu")
    keep_freed_memory()
    print(f"{machine(device)}, torch {torch.__version__}\nvocabulary {run.model.vocab_size:,}: {known}", flush=True)
    return run, device


def alternate(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    device: torch.device,
    patience_s: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of one call of each, `rounds` times in turn after a first call that does not count.

    Stops after whole rounds once patience_s is spent, so that the slowest one does not take an hour.
    """
    for call in candidates.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    began = clock()
    for _ in range(rounds):
        for name, call in candidates.items():
            seconds[name].append(seconds_of(call, device, clock))
        if clock() - began > patience_s:
            break
    return {name: statistics.median(turns) for name, turns in seconds.items()}


def seconds_of(
    call: Callable[[], object], device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of one call, the GPU's work included."""
    synchronize(device)
    before = clock()
    call()
    synchronize(device)
    return clock() - before


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """How many bytes of a GPU a call holds at its fullest moment, beyond what is held before it."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def in_transformers(lm: LanguageModel, **options: Any) -> Any:
    """transformers' model with identical weights, read from the directory that Headlight saves.

    options: of `from_pretrained`. It needs requirements-dev.txt.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        save(lm, directory)
        return AutoModelForCausalLM.from_pretrained(directory, **options)
