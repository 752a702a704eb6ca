"""Try what works on this machine: `python -m train.doctor [configs/x.yaml] [section.key=value ...]`

It takes a minute, and prints a line for each check. Then it recommends settings for this config,
with measured minutes. Exit code 0: training will work here; 2: it will not.
"""

import io
import platform
import tempfile
import textwrap
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch

from configs.command import InputError, add_config, command_parser
from configs.parse import dump_yaml
from configs.text import table
from eval.run_files import read_metrics
from model import ModelConfig
from model.accounting import flops_per_token
from model.attention import eager
from model.backends.choice import BACKENDS, Backend, Situation, why_not
from model.masks import MaskSpec
from model.transformer import on_meta
from train.config import RunConfig, load_run_config
from train.machine import device as hardware
from train.machine.budget import check_memory, size_in_words, with_vocabulary
from train.machine.cpu_processes import number_of_processes
from train.machine.device import DTYPES, Device, guess_seconds, guess_speed, lacks, resolve_device
from train.machine.distributed import World, check_shares
from train.pretrain import run as pretrain

# The allowed error, as a share of the largest entry: five to fifty times that of rounding.
ALLOWED = {"fp32": 1e-3, "bf16": 1e-1, "fp16": 5e-2}
FORMULA = "attention eager "  # A precision in which the formula is wrong is not taken.
BUSY = 10  # Per cent of the cores that other programs may use.
CLEARLY = 1.1  # A smaller speed-up may be noise.
STEPS = 4  # Each run here takes so many steps.
STEP_S = 1.0  # A timed step has as many rows as fit into this guess of its seconds.
# A tiny run on bytes: nothing is downloaded, and no tokenizer is trained.
STORIES = """
data.source={"kind":"storyworld","documents":200,"validation_documents":8}
data.tokenizer={"kind":"byte"} data.records=text data.rows_joined=1
init_from=null lora=null dpo=null distill=null grpo=null rungs=null outcome=null
model.vocab_size=null model.bos_token_id=null model.eos_token_id=null model.pad_token_id=null
train.max_tokens=null train.max_minutes=null train.micro_batch_size=auto train.schedule=constant
train.log_every=1 train.checkpoint_every=0 train.compile=false eval.hooks=[] tracking.wandb=disabled
"""
# ok | "--": not for this machine | note: training works, but look at it | FAIL; and the reason.
Verdict = tuple[str, str]
Test = Callable[..., Verdict]


def main() -> int:
    parser = command_parser(__doc__)
    add_config(parser, default="configs/demo.yaml")
    args = parser.parse_intermixed_args()
    faults: set[str] = set()

    def configure(*settings: str) -> RunConfig:
        return with_vocabulary(load_run_config(args.config, [*args.overrides, *settings]))[0]

    def check(name: str, test: Test, *inputs: Any, is_needed: bool = False) -> None:
        """Print a verdict. is_needed: training will not work if it fails."""
        try:
            state, reason = test(*inputs)
        except InputError as error:
            state, reason = "FAIL", str(error)
        except Exception as error:  # checks exist to find errors of any kind
            message = (str(error).splitlines() or [""])[0][:100]
            state, reason = "FAIL", f"{type(error).__name__}: {message}"
        lines = textwrap.wrap(reason, 86, break_long_words=False)
        print(f"{state:<6}{name:<26}" + f"\n{'':32}".join(lines), flush=True)
        if state == "FAIL":
            faults.add(name)
            if is_needed:
                raise InputError(f"training will not work here: {name}")

    def choose(*settings: str) -> Device:
        """Return what `auto` stands for with these settings, without what has failed."""
        if "torch.compile" in faults:
            settings += ("train.compile=false",)
        backends = ((), ("model.attn_implementation=sdpa",), ("model.attn_implementation=eager",))
        # From what is wanted to what always works: take the first without a fault.
        for precision, backend in product(((), ("train.precision=fp32",)), backends):
            device = resolve_device(configure(*settings, *precision, *backend))
            kernel = f"attention {device.attention} {device.precision}"
            if faults.isdisjoint({kernel, FORMULA + device.precision}):
                break
        return device

    # One after the other, so that nothing disturbs a timing.
    run = configure()
    kind = hardware.resolve_kind(run)
    settings = []
    must_work = kind == "cpu" or run.train.device != "auto"
    check(f"device {kind}", computes, kind, is_needed=must_work)
    if faults:
        kind = "cpu"
        settings = ["train.device=cpu"]
        check("device cpu", computes, kind, is_needed=True)
    for name, precision in product(BACKENDS, ALLOWED):
        row = f"attention {name} {precision}"
        if name != "mine":
            must_work = row == FORMULA + "fp32"
            check(row, attention, name, precision, kind, run.model, is_needed=must_work)
    check("torch.compile", compiling, kind, run.model)
    device = choose(*settings)
    check("this config", this_config, run, device, is_needed=True)
    check("save and resume", save_and_resume, run, device, is_needed=True)

    timings = [(device, time_step(run, device))]
    other = "bf16" if device.precision == "fp32" else "fp32"
    if kind == "cpu" and run.train.precision == "auto" and FORMULA + other not in faults:
        device = choose(*settings, f"train.precision={other}")
        timings.append((device, time_step(run, device)))
    print("\n" + recommendation(run, timings, not faults))
    return 0


# -------------------------------------------------------------------------------------------------
# this machine and this config


def computes(kind: str) -> Verdict:
    """Multiply on the device, and look at its memory and at other programs."""
    ones = torch.ones(8, 8, device=kind)
    total = float((ones @ ones).sum())
    # 8 x 8 entries, and each is 8
    if total != 512:
        return "FAIL", f"a small product gave {total:g}, not 512"
    memory, owner = hardware.memory_of(kind) or (0, "unknown")
    machine = f"{hardware.machine(torch.device(kind))}, {size_in_words(memory)} ({owner})"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    others = psutil.cpu_percent(interval=0.4)  # it sleeps meanwhile, so it does not count itself
    if others < BUSY:
        return "ok", f"{machine}; {versions}"
    busy = f"other programs use {others:.0f}% of the CPU: end them, or training takes longer"
    return "note", f"{machine}; {versions}; {busy}"


def this_config(config: RunConfig, device: Device) -> Verdict:
    """Resolve the config. Raises InputError if it cannot train here."""
    check_memory(config, device, 1)
    check_shares(config, World(size=number_of_processes(config)))
    return "ok", "; ".join(device.notes)


# -------------------------------------------------------------------------------------------------
# numbers, beside those of the formula in float64


def attention(name: str, precision: str, kind: str, model: ModelConfig) -> Verdict:
    """Compare a backend on rows of one document, then of several. Raises what the kernel raises."""
    verdict = ("--", lacks(precision, kind))
    if verdict[1]:
        return verdict
    for packed in (False, True):
        here = Situation.of(model, kind, DTYPES[precision], gradients=True, documents=packed)
        problem = why_not(name, here)
        if problem:
            return "--", problem
        verdict = judge(BACKENDS[name], precision, here, model)
        if verdict[0] == "FAIL":
            break
    return verdict


def compiling(kind: str, model: ModelConfig) -> Verdict:
    problem = hardware.compiler_problem(kind)
    if problem:
        return "--", f"{problem}; training works without it"
    here = Situation.of(model, kind, torch.float32)
    return judge(Backend(torch.compile(eager, dynamic=False)), "fp32", here, model)


def judge(backend: Backend, precision: str, here: Situation, model: ModelConfig) -> Verdict:
    """Find the largest error of the output and the gradients, as a share of the largest entry."""
    # Two rows of 192 tokens: q (2, H, T, D), k and v (2, 2, T, D), with this model's D.
    generator = torch.Generator().manual_seed(0)
    heads = 2 * model.num_attention_heads // model.kv_heads
    shapes = [(heads, model.head_size), (2, model.head_size), (2, model.value_size)]
    inputs = []
    for number, size in shapes:
        inputs.append(torch.randn(2, number, 192, size, generator=generator).to(here.dtype))
    results = []
    formula = (BACKENDS["eager"], "cpu", torch.float64)
    for each, device, dtype in (formula, (backend, here.device, here.dtype)):
        positions = torch.arange(192, device=device)
        # three documents in each row, and their borders fit no block of a kernel
        documents = (positions[None] // 70).expand(2, 192) if here.documents else None
        spec = MaskSpec(positions, positions, 2, None, documents, None, not here.masked)
        q, k, v = leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
        out = each.compute(q, k, v, each.mask(spec), 0.0)
        # another gradient for each number, so that two mistakes cannot cancel out
        above = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
        grads = torch.autograd.grad(out, leaves, above.to(out.dtype).to(device))
        results.append([x.detach().cpu().double() for x in (out, *grads)])
    errors = [(a - b).abs().max() / a.abs().max() for a, b in zip(*results, strict=True)]
    error = float(torch.stack(errors).max())
    if error <= ALLOWED[precision]:
        return "ok", f"right within {error:.0e}"
    return "FAIL", f"differs from float64 by {error:.0e}"  # it may be NaN


# -------------------------------------------------------------------------------------------------
# real runs: is a stopped one exact, and how long does a step take?


def save_and_resume(run: RunConfig, device: Device) -> Verdict:
    """Train some steps, at once and in two halves: weights must be equal to the last bit."""
    with tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True) as folder:
        for name, steps in (("whole", STEPS), ("halves", STEPS // 2), ("halves", STEPS)):
            settings = (f"name={name}", f"train.max_steps={steps}", "train.processes=1")
            train_quietly(run, device, folder, *settings)
        is_equal = []
        for file in ("model.safetensors", "training/optimizer.safetensors"):
            path = f"checkpoints/step_{STEPS:08}/{file}"
            whole = Path(folder, "whole", path).read_bytes()
            is_equal.append(whole == Path(folder, "halves", path).read_bytes())
    if all(is_equal):
        return "ok", "in two halves or whole, the weights are equal to the last bit"
    if device.device.type == "cpu":
        return "FAIL", "a resumed run gave other weights than one that never stopped"
    return "note", "works, but not to the last bit: kernels of this device add up in changing order"


def time_step(run: RunConfig, device: Device) -> float:
    """Measure the seconds of a step of this config, in some real steps."""
    with tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True) as folder:
        timed = train_quietly(run, device, folder, f"train.max_steps={STEPS}")
        lines = read_metrics(timed.directory, lambda problem: None)
    speed = max(line["tokens_per_s"] for line in lines if line["split"] == "train")
    # The timed steps may have fewer rows, and the vocabulary of bytes. FLOPs give the ratio.
    flops = []
    for model in (run.model, with_vocabulary(timed)[0].model):
        flops.append(flops_per_token(on_meta(model), run.data.sequence_length))
    return run.train.tokens_per_step / speed * flops[0] / flops[1]


def train_quietly(run: RunConfig, device: Device, folder: str, *overrides: str) -> RunConfig:
    """Train this config for a few steps; return the config of that run. Raises InputError."""
    number = number_of_processes(run)
    length = run.data.sequence_length
    row_s = guess_seconds(run, length, guess_speed(device.device.type, device.precision))
    rows = min(run.rows_per_step // number, max(1, int(STEP_S / row_s))) * number
    file = Path(folder, "config.yaml")
    file.write_text(dump_yaml(run.model_dump()), encoding="utf-8")
    settings = [
        *STORIES.split(),
        *chosen(device),
        f"output_dir={folder}",
        f"train.tokens_per_step={rows * length}",
        f"train.processes={number}",
    ]
    config = load_run_config(file, [*settings, *overrides])
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = pretrain(config, "train.doctor")
    if code > 128:
        # 128 + a signal: Ctrl-C reached the run, and is meant for the doctor as well
        raise KeyboardInterrupt
    if code:
        raise InputError(f"a run of {config.max_steps} steps ended with exit code {code}")
    return config


def chosen(device: Device) -> list[str]:
    """Return the overrides that take these settings."""
    return [
        f"train.device={device.device.type}",
        f"train.precision={device.precision}",
        f"model.attn_implementation={device.attention}",
    ]


def recommendation(run: RunConfig, timings: list[tuple[Device, float]], is_auto: bool) -> str:
    """Return a table of timings, and the settings to take.

    timings: the preferred device first. is_auto: `auto` takes that one by itself.
    """
    rows = []
    for device, seconds in timings:
        steps = run.max_steps or int((run.train.max_minutes or 0.0) * 60 / seconds)
        name = f"{device.precision}, attention {device.attention}"
        speed = run.train.tokens_per_step / seconds
        minutes = f"{steps * seconds / 60:,.1f}"
        rows.append((name, f"{seconds:.3f}", f"{speed:,.0f}", f"{steps:,}", minutes))
    columns = (run.name, "s a step", "tokens/s", "steps", "minutes")

    best = min(range(len(timings)), key=lambda number: timings[number][1])
    if timings[0][1] < CLEARLY * timings[best][1]:
        best = 0
    device, _ = timings[best]
    is_auto = is_auto and best == 0
    return f"""{table(columns, rows)}

recommended: {" ".join(chosen(device))} train.compile={str(device.compile).lower()}
  {"auto takes these by itself" if is_auto else "auto may not: name them on the command line"}
  expect about {rows[best][-1]} minutes of training; evaluations and checkpoints come on top"""
