"""What bigger models would need, for docs/scaling_out.md: `python -m train.scaling` prints its tables.

Estimates from train.budget's formulas, with the assumptions that the page names; NOTHING HERE WAS MEASURED ON A GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from configs.loader import exit_on_bad_input
from train.budget import flops_per_token, parameter_count_by_part, step_memory
from train.config import RunConfig, load_run_config
from train.machine.hardware import PEAK_TFLOPS

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
    """The run of a shape, with its vocabulary filled in as the tokenizer would."""
    run = load_run_config(BASE, SHAPES[name])
    return run.model_copy(update={"model": run.model.model_copy(update={"vocab_size": run.data.tokenizer.vocab_size})})


def memory_per_process(run: RunConfig, rows: int, processes: int) -> dict[str, float]:
    """Bytes that one of `processes` GPUs needs for a step in bf16, under `ddp` and `fsdp2`, without accumulation.

    ddp: what one GPU alone needs. fsdp2: weights, gradients and optimizer state divided by the processes; besides,
    in bf16, embedding and head, which stay gathered, and two layers at a time; and before they are shared out, the
    gradients of embedding and head, and of one layer, in bf16 and float32.
    """
    parts = step_memory(run, rows, half=True, device="cuda")
    count = parameter_count_by_part(run.model)
    lasting = sum(parts[name] for name in ("weights", "gradients", "optimizer state"))
    ends = count["embedding"] + count["head"]
    layer = (count["attention"] + count["feed-forward"]) / run.model.num_hidden_layers
    gathered = 2 * (ends + 2 * layer) + (2 + 4) * (ends + layer)
    passes = parts["activations"] + parts["loss"] + gathered
    step = parts["instead of these three, Muon's step"]  # every process orthogonalises whole matrices
    return {"ddp": parts["at the fullest moment"], "fsdp2": lasting / processes + max(passes, step)}


def hours(run: RunConfig, gpu: str, processes: int) -> float:
    """Of training on TOKENS_PER_PARAMETER tokens a parameter, at MFU of the peak, evaluations not counted."""
    tokens = TOKENS_PER_PARAMETER * parameter_count_by_part(run.model)["total"]
    return (
        tokens
        * flops_per_token(run.model, run.data.sequence_length)
        / (processes * PEAK_TFLOPS[gpu] * 1e12 * MFU)
        / 3600
    )


def memory_table() -> list[str]:
    """GB that a GPU must hold for a step of ROWS rows, a line each model; docs/scaling_out.md shows it."""
    heading = f"| | parameters | tokens a row | activations and loss of {ROWS} rows | one GPU, or ddp |"
    lines = [heading + "".join(f" fsdp2, {n} GPUs |" for n in PROCESSES), "|---|" + "---:|" * (4 + len(PROCESSES))]
    for name in SHAPES:
        run = configured(name)
        parts = step_memory(run, ROWS, half=True, device="cuda")
        needs = [memory_per_process(run, ROWS, n) for n in PROCESSES]
        sizes = [parts["activations"] + parts["loss"], needs[0]["ddp"], *(need["fsdp2"] for need in needs)]
        total = f"{parameter_count_by_part(run.model)['total'] / 1e6:,.0f} M"
        length = run.data.sequence_length
        lines.append(
            f"| `{name}` | {total} | {length:,} | " + " | ".join(f"{size / 1e9:.1f} GB" for size in sizes) + " |"
        )
    return lines


def time_table() -> list[str]:
    names = " | ".join(f"{count} × {gpu.split(' 80GB')[0].split('-')[0]}" for gpu, count in MACHINES)
    lines = [f"| | tokens | FLOP a token | FLOP in all | {names} |", "|---|" + "---:|" * (3 + len(MACHINES))]
    for name in SHAPES:
        run = configured(name)
        tokens = TOKENS_PER_PARAMETER * parameter_count_by_part(run.model)["total"]
        each = flops_per_token(run.model, run.data.sequence_length)
        cells = [f"{tokens / 1e9:.1f} billion", f"{each / 1e9:.2f} G", f"{tokens * each:.1e}"]
        cells += [_duration(hours(run, gpu, count)) for gpu, count in MACHINES]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def _duration(in_hours: float) -> str:
    return f"{in_hours / 24:.1f} days" if in_hours >= 48 else f"{in_hours:.1f} hours"


def main() -> int:
    argparse.ArgumentParser(description="Print the tables of docs/scaling_out.md.").parse_args()
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    print("\n".join([*memory_table(), "", *time_table()]))
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)
