"""What does a run do with texts longer than those of its training? `python -m eval.long_context runs/demo`

Reads held-out text and random words of growing length in several ways: as it is, with RoPE scaled (linear, yarn), with
windows. Writes long_context/ into the run: report.md, pictures, and long_context.json with all numbers. Further runs,
for example one that was trained a little at the longer length, are read as they are. docs/long_context.md explains it.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.command import InputError, exit_on_bad_input, numbers, whole
from configs.files import checkpoint_directory
from eval.load_model import add_device_option, data_config, open_model

if TYPE_CHECKING:  # torch takes seconds to import, and --help should not
    from data.config import DataConfig

LENGTHS, TEXTS = [128, 256, 512, 1024], 32
SHORTEST = 16


def main() -> int:
    given = parse()
    config = _config(given.runs[0])
    out = _folder(given)
    from eval.long_context.report import write
    from eval.long_context.study import study

    opened = {run: open_model(run, given.device) for run in given.runs}
    found = study(opened, config, given.lengths, given.texts)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "long_context.json").write_text(json.dumps(found.numbers, indent=1) + "\n", encoding="utf-8")
        file = write(found, out, str(given.runs[0]), train_on(given.runs[0], config, given.lengths[-1]))
    except OSError as error:
        raise InputError(f"--out: {out} cannot be written: {error.strerror}") from None
    print(f"{found.table()}\n\nall numbers and pictures: {file}")
    return 0


def parse() -> argparse.Namespace:
    """The command line. Raises InputError."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m eval.long_context", description=__doc__, formatter_class=form)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run, and others to be read as they are")
    parser.add_argument(
        "--lengths",
        type=numbers("--lengths", SHORTEST),
        default=LENGTHS,
        metavar="N,N",
        help="tokens of a text, growing (128,256,512,1024)",
    )
    parser.add_argument(
        "--texts",
        type=whole("--texts", 1),
        default=TEXTS,
        metavar="N",
        help=f"of each length ({TEXTS})",
    )
    parser.add_argument("--out", help="folder to write; default: long_context in the first run")
    add_device_option(parser)
    given = parser.parse_args()
    if sorted(set(given.lengths)) != given.lengths or len(given.lengths) < 2:
        raise InputError("--lengths: give two or more, each larger than the one before, for example 128,256,512")
    if len(set(given.runs)) < len(given.runs):
        raise InputError("a run is named twice: name each once")
    return given


def _config(run: str) -> DataConfig:
    """What the run was trained on. Raises InputError."""
    try:
        config = data_config(run)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None
    if config is None:
        raise InputError(
            f"{run}: there is no config.yaml beside it, so held-out text and trained length are unknown: name a run"
        )
    return config


def _folder(given: argparse.Namespace) -> Path:
    """Where it is written: --out, or long_context in the run that the first path names."""
    if given.out:
        return Path(given.out)
    return checkpoint_directory(given.runs[0]).resolve().parents[1] / "long_context"


def train_on(run: str, config: DataConfig, length: int) -> str:
    """The command that trains the run on for 100 steps, with RoPE scaled by yarn, on rows of this length."""
    trained, directory = config.sequence_length, checkpoint_directory(run).resolve().parents[1]
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": max(1.0, length / trained)}
    scaling["original_max_position_embeddings"] = trained
    changes = {
        "name": f"{directory.name}-yarn",
        "init_from": run,
        "model.rope_scaling": "{" + ", ".join(f"{key}: {value}" for key, value in scaling.items()) + "}",
        "model.max_position_embeddings": length,
        "data.sequence_length": length,
        "data.isolate_documents": "false",
        "train.tokens_per_step": 2 * length,
        "train.max_steps": 100,
    }
    words = [f"{key}={value}" for key, value in changes.items()]
    file = directory / "config.yaml"
    shown = str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)
    return shlex.join(["python", "-m", "train.pretrain", shown, *words])


if __name__ == "__main__":
    exit_on_bad_input(main)
