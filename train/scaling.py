"""What would bigger models need? `python -m train.scaling` prints the tables of docs/scaling_out.md.

These are estimates, with the assumptions that the page names. NOTHING HERE WAS MEASURED ON A GPU.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from configs.command import exit_on_bad_input
from configs.shown_text import code
from configs.tables import table
from train.config import RunConfig, load_run_config
from train.machine.hardware import PEAK_TFLOPS

if TYPE_CHECKING:  # torch takes seconds to import, and --help should not
    from train.step_memory import StepMemory

BASE = Path(__file__).resolve().parents[1] / "configs" / "124m.yaml"
ROWS = 4  # of a micro-batch of one process
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022, arXiv 2203.15556
MFU = 0.4
PROCESSES = (8, 16)
MACHINES = [("RTX 4090", 1), ("A100-SXM4-80GB", 8), ("H100 80GB HBM3", 8), ("H100 80GB HBM3", 16)]
LONGER = """model.max_position_embeddings=2048 data.sequence_length=2048 data.tokenizer.vocab_size=32768
model.num_key_value_heads=gqa""".split()
SHAPES = {  # what the command line of train.budget or train.pretrain adds to configs/124m.yaml
    "124m": [],
    "350m": [*LONGER, "model.hidden_size=1024", "model.num_hidden_layers=24", "model.num_attention_heads=16"],
    "1b": [*LONGER, "model.hidden_size=2048", "model.num_hidden_layers=20", "model.num_attention_heads=32"],
}


def configured(name: str) -> RunConfig:
    """The run of a shape, with the vocabulary that its tokenizer will have."""
    run = load_run_config(BASE, SHAPES[name])
    return run.model_copy(update={"model": run.model.model_copy(update={"vocab_size": run.data.tokenizer.vocab_size})})


@cache
def one_gpu(name: str) -> StepMemory:
    """Of a shape, in bf16, ROWS rows at a time."""
    from train.step_memory import step_memory

    return step_memory(configured(name), ROWS, half=True, device="cuda")


def fsdp2_bytes(name: str, processes: int) -> float:
    """Bytes that one of `processes` GPUs needs for a step under fsdp2, without accumulation.

    Weights, gradients and optimizer state are divided by the processes. Besides, in bf16: embedding and head, which
    stay gathered, and two layers at a time. And before they are divided: the gradients of embedding and head, and of
    one layer, in bf16 and float32.
    """
    from model.counting import parameter_counts

    config, parts = configured(name).model, one_gpu(name)
    count = parameter_counts(config)
    lasting = parts.weights + parts.gradients + parts.optimizer_state
    ends = count["embedding"] + count["head"]
    layer = (count["attention"] + count["feed_forward"]) / config.num_hidden_layers
    gathered = 2 * (ends + 2 * layer) + (2 + 4) * (ends + layer)
    passes, update = parts.passes - lasting + gathered, parts.update - lasting  # every process updates whole matrices
    return lasting / processes + max(passes, update)


def hours(run: RunConfig, gpu: str, processes: int) -> float:
    """Of training on TOKENS_PER_PARAMETER tokens a parameter, at MFU of the peak, evaluations not counted."""
    from model.counting import flops_per_token

    flops = _tokens(run) * flops_per_token(run.model, run.data.sequence_length)
    return flops / (processes * PEAK_TFLOPS[gpu] * 1e12 * MFU) / 3600


def _tokens(run: RunConfig) -> int:
    from model.counting import parameter_counts

    return TOKENS_PER_PARAMETER * parameter_counts(run.model)["total"]


def memory_table() -> str:
    """GB that a GPU must hold for a step of ROWS rows."""
    from model.counting import parameter_counts

    columns = ["parameters", "tokens a row", f"passes of {ROWS} rows", "one GPU, or ddp"]
    lines = []
    for name in SHAPES:
        run, parts = configured(name), one_gpu(name)
        passes = parts.passes - parts.weights - parts.gradients - parts.optimizer_state
        sizes = [passes, parts.fullest, *(fsdp2_bytes(name, n) for n in PROCESSES)]
        total = f"{parameter_counts(run.model)['total'] / 1e6:,.0f} M"
        lines.append([code(name), total, f"{run.data.sequence_length:,}", *(f"{size / 1e9:.1f} GB" for size in sizes)])
    return table(["", *columns, *(f"fsdp2, {n} GPUs" for n in PROCESSES)], lines)


def time_table() -> str:
    """Hours of a whole training run."""
    from model.counting import flops_per_token

    names = [f"{count} × {gpu.split(' 80GB')[0].split('-')[0]}" for gpu, count in MACHINES]
    lines = []
    for name in SHAPES:
        run = configured(name)
        each = flops_per_token(run.model, run.data.sequence_length)
        figures = [f"{_tokens(run) / 1e9:.1f} billion", f"{each / 1e9:.2f} G", f"{_tokens(run) * each:.1e}"]
        lines.append([code(name), *figures, *(_duration(hours(run, gpu, count)) for gpu, count in MACHINES)])
    return table(["", "tokens", "FLOP a token", "FLOP in all", *names], lines)


def _duration(in_hours: float) -> str:
    return f"{in_hours / 24:.1f} days" if in_hours >= 48 else f"{in_hours:.1f} hours"


def main() -> int:
    argparse.ArgumentParser(description="Print the tables of docs/scaling_out.md.").parse_args()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    print(memory_table(), time_table(), sep="\n\n")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
