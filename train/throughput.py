"""How fast it is here: `python -m train.throughput [configs/x.yaml] --attention | --decode | --packing`

    --attention   every attention backend, sequence lengths 512 to 8192, MHA / GQA / MQA, forward + backward
    --decode      tokens/s with and without each key-value cache, batch 1 and 16; --versus transformers alternates
                  with its `generate` on the same weights
    --packing     training on the config's data: rows filled with documents against one document a row

The model is that of the config, or 6 layers x 256, 8 query / 2 key-value heads, without one. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from configs.loader import InputError, exit_on_bad_input

DEFAULT_MODEL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}


def main() -> int:
    arguments = parse_arguments()
    from model.config import ModelConfig
    from train.config import load_run_config

    config, run = ModelConfig(**DEFAULT_MODEL), None
    if arguments.config:
        run = load_run_config(arguments.config, arguments.overrides)
        config = run.model
        config = config if config.vocab_size else config.model_copy(update={"vocab_size": 4096})
    elif arguments.overrides:
        raise InputError("section.key=value changes a config: name one before it")

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler that counts memory announces itself otherwise
    import torch

    from train.device import machine

    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device is cuda, but PyTorch {torch.__version__} finds none here")
    print(f"{machine(device)}, torch {torch.__version__}")
    if arguments.packing:
        from train.throughput_packing import compare_packing

        if run is None:
            raise InputError("--packing reads the data of a config: name one, for example configs/demo.yaml")
        compare_packing(run, arguments.rounds)
    elif arguments.attention:
        from train.throughput_attention import compare_backends

        compare_backends(config, device, arguments.lengths, arguments.rounds)
    else:
        from train.throughput_decode import compare_decoding

        compare_decoding(config, device, arguments.rounds, arguments.versus == "transformers")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure speed and memory on this machine.")
    parser.add_argument("config", nargs="?", help="a YAML file; default: a 6 x 256 model")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example model.head_dim=64")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--attention", action="store_true", help="compare the attention backends")
    what.add_argument("--decode", action="store_true", help="compare the key-value caches")
    what.add_argument("--packing", action="store_true", help="compare filled rows with one document a row")
    parser.add_argument("--versus", choices=["transformers"], help="with --decode: against transformers' generate")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed; medians are printed")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192], help="with --attention"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 1 or min(arguments.lengths) < 1:
        parser.error("--rounds and --lengths must be 1 or more")
    return arguments


if __name__ == "__main__":
    exit_on_bad_input(main)
