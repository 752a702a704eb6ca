"""How fast is it here? `python -m benchmarks.throughput [config] [--ladder | --attention | --decode | --packing]`

    (none)        training steps of the config on random tokens: tokens/s, MFU, memory, and what auto chose;
                  --profile [DIR] writes a trace and says where the time goes
    --versus transformers    its model of the same shape beside ours, training; with --decode, its `generate`
    --ladder      from a beginner's loop upwards, one thing at a time, on the config's data (configs/demo.yaml)
    --attention   every attention backend, sequence lengths 512 to 8192, MHA / GQA / MQA, forward + backward
    --decode      tokens/s with and without each key-value cache, batch 1 and 16
    --packing     training on the config's data: rows filled with documents against one document a row

The model is the config's; without a config, it has 6 layers x 256, 8 query / 2 key-value heads. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.command import InputError, exit_on_bad_input, number, whole

if TYPE_CHECKING:
    import torch

    from train.config import RunConfig

DEFAULT_MODEL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
DEFAULT_RUN: dict[str, Any] = {
    "name": "6x256",
    "data": {"sequence_length": 256, "isolate_documents": False},
    "train": {"tokens_per_step": 4096, "optimizer": {"name": "adamw", "lr": 2e-3}},
}
LADDER_CONFIG = Path(__file__).parents[1] / "configs" / "demo.yaml"


def main() -> int:
    arguments = parse_arguments()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler that counts memory announces itself otherwise
    run, known = run_config(arguments)
    import torch

    from train.device import keep_freed_memory, machine

    keep_freed_memory()
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device is cuda, but PyTorch {torch.__version__} finds none here")
    if arguments.clock == "cpu" and (device.type != "cpu" or torch.get_num_threads() > 1):
        raise InputError("--clock cpu measures a single thread: set OMP_NUM_THREADS=1, and --device cpu")
    if arguments.device:
        train = run.train.model_copy(update={"device": arguments.device})
        run = run.model_copy(update={"train": train})
    print(f"{machine(device)}, torch {torch.__version__}")
    if known:
        print(f"vocabulary {run.model.vocab_size:,}: {known}")
    measure(arguments, run, device)
    return 0


def measure(arguments: argparse.Namespace, run: RunConfig, device: torch.device) -> None:
    """Import what this mode needs, and run it."""
    from benchmarks.timing import CLOCKS

    versus = arguments.versus == "transformers"
    if arguments.packing:
        from benchmarks.packing import compare_packing

        compare_packing(run, arguments.rounds)
    elif arguments.ladder:
        from benchmarks.ladder import climb

        climb(run, arguments.seconds, arguments.skip, CLOCKS[arguments.clock])
    elif arguments.attention:
        from benchmarks.attention import compare_backends

        compare_backends(run.model, device, arguments.lengths, arguments.rounds, CLOCKS[arguments.clock])
    elif arguments.decode:
        from benchmarks.decoding import compare_decoding

        compare_decoding(run.model, device, arguments.rounds, versus)
    elif versus:
        from benchmarks.transformers_model import compare_training

        compare_training(run, arguments.rounds, arguments.skip, CLOCKS[arguments.clock])
    else:
        from benchmarks.training import measure_training

        folder = None if arguments.profile is None else Path(arguments.profile or run.output_dir)
        measure_training(run, arguments.seconds, folder, CLOCKS[arguments.clock])


def run_config(arguments: argparse.Namespace) -> tuple[RunConfig, str]:
    """The named config, or the default of the mode; and where its vocabulary is from, unless data is read for it."""
    from train.budget import with_vocabulary
    from train.config import RunConfig, load_run_config

    path = arguments.config or (LADDER_CONFIG if arguments.ladder else None)
    if path is None:
        if arguments.packing:
            raise InputError("--packing reads the data of a config: name one, for example configs/demo.yaml")
        is_training = not (arguments.attention or arguments.decode)
        model = {**DEFAULT_MODEL, "qk_norm": False} if is_training else DEFAULT_MODEL  # as transformers' Llama
        return RunConfig.model_validate({**DEFAULT_RUN, "model": model}), ""
    run = load_run_config(path, arguments.overrides)
    if arguments.packing or arguments.ladder or run.model.vocab_size:
        return run, ""
    return with_vocabulary(run)


def parse_arguments() -> argparse.Namespace:
    """The command line. Options that cannot be combined end the program with one line."""
    parser = argparse.ArgumentParser(description="Measure speed and memory on this machine.")
    parser.add_argument("config", nargs="?", help="a YAML file; default: a 6 x 256 model")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example model.head_dim=64")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ladder", action="store_true", help="from a beginner's loop upwards, one thing at a time")
    what.add_argument("--attention", action="store_true", help="compare the attention backends")
    what.add_argument("--decode", action="store_true", help="compare the key-value caches")
    what.add_argument("--packing", action="store_true", help="compare filled rows with one document a row")
    parser.add_argument("--versus", choices=["transformers"], help="beside transformers: training, or with --decode")
    parser.add_argument("--profile", nargs="?", const="", metavar="DIR", help="write a trace; default: output_dir")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
    parser.add_argument(
        "--rounds",
        type=whole("--rounds", 1),
        default=5,
        help="how often each is timed; medians are printed",
    )
    parser.add_argument(
        "--seconds",
        type=number("--seconds", 0, above=True),
        help="to measure for, 30; with --ladder, of each rung, 20",
    )
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: the time of this process alone, beside other programs; one thread; not with --decode, --packing",
    )
    parser.add_argument("--skip", nargs="+", default=[], metavar="RUNG", help="leave out, for example compile")
    parser.add_argument(
        "--lengths",
        type=whole("--lengths", 1),
        nargs="+",
        default=[512, 1024, 2048, 4096, 8192],
        help="with --attention",
    )
    arguments = parser.parse_intermixed_args()
    others = arguments.ladder or arguments.attention or arguments.packing
    if arguments.versus and others:
        parser.error("--versus can only be combined with --decode")
    if arguments.profile is not None and (others or arguments.decode or arguments.versus):
        parser.error("--profile cannot be combined with another mode")
    arguments.seconds = (20.0 if arguments.ladder else 30.0) if arguments.seconds is None else arguments.seconds
    if arguments.overrides and not arguments.config:
        parser.error("section.key=value changes a config: name one before it")
    return arguments


if __name__ == "__main__":
    exit_on_bad_input(main)
