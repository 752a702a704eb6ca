"""What can this machine do? `python -m train.doctor [configs/x.yaml] [section.key=value ...]`

One verdict a line, as it goes, in a minute; then the settings for this config, with minutes that were measured. What is
found wrong is kept (train/device.py), and `auto` leaves it out from then on. Exit code 0: training will work
here; 2: it will not, and a line says why.
"""

from __future__ import annotations

import argparse
import io
import platform
import tempfile
import textwrap
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.command import InputError, exit_on_bad_input
from configs.loader import dump_yaml
from configs.text import table
from eval.run_files import read_metrics
from model import ModelConfig
from model.backends.choice import BACKENDS, Situation, why_not
from model.masks import MaskSpec
from model.transformer import on_meta
from train import device as hardware
from train.budget import check_memory, size_in_words, with_vocabulary
from train.config import RunConfig, load_run_config
from train.device import DTYPES, Device, guessed_seconds, lacks, resolve_device, resolve_kind
from train.pretrain import run as pretrain
from train.processes import World, check_shares, number_of_processes

BASE, DEMO = (Path(__file__).parents[1] / f"configs/{name}.yaml" for name in ("base", "demo"))
WIDTH, INDENT = 118, 32
# errors, as a share of the largest entry: five to fifty times what rounding costs; tf32 has the digits of fp16
ALLOWED = {"fp32": 1e-3, "tf32": 5e-2, "bf16": 1e-1, "fp16": 5e-2}
STEPS = 4  # of each run here
QUIET = """
data.source={"kind":"storyworld","documents":200,"validation_documents":8} data.tokenizer={"kind":"byte"}
train.checkpoint_every=0 train.compile=false train.log_every=1 eval.hooks=[] tracking.wandb=disabled
"""
TINY = f"""{QUIET} data.sequence_length=64 train.tokens_per_step=256 train.schedule=constant
model.hidden_size=32 model.num_hidden_layers=2 model.num_attention_heads=2 model.num_key_value_heads=1
model.max_position_embeddings=64 model.hidden_dropout=0.1
"""
TEXT_ALONE = """
init_from=null lora=null dpo=null distill=null grpo=null rungs=null data.records=text data.rows_joined=1
model.vocab_size=null model.bos_token_id=null model.eos_token_id=null model.pad_token_id=null
train.max_tokens=null train.max_minutes=null train.micro_batch_size=auto
"""
BUSY = 0.1  # share of the cores that other programs may use
CLEARLY = 1.1  # times as fast: less is noise
TIMED_S = 2.0  # seconds that a timed step may take, as a guess


Verdict = tuple[str, str]  # ok | "--": not for this machine | note: training works, but look at it | FAIL; and words


def main() -> int:
    parser = argparse.ArgumentParser(description="Say what this machine can do, in a minute.")
    parser.add_argument("config", nargs="?", default=str(DEMO), help="a YAML file; default: configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example train.precision=fp32")
    arguments = parser.parse_intermixed_args()
    run, _ = with_vocabulary(load_run_config(arguments.config, arguments.overrides))
    faults: dict[str, str] = {}
    hardware.remember_faults(faults)  # what was wrong before may be right again

    def check(what: str, test: Callable[..., Verdict], *of: Any, fault: str = "", is_needed: bool = False) -> bool:
        """Print a verdict. fault: what `auto` must not take if it is FAIL. is_needed: else training will not work."""
        try:
            state, words = test(*of)
        except Exception as error:  # a check is there to find them
            state, words = "FAIL", str(error)
            if not isinstance(error, InputError):
                words = f"{type(error).__name__}: {(words.splitlines() or [''])[0][:100]}"
        if state == "FAIL" and fault:
            faults[fault] = words
            hardware.remember_faults(faults)
            words += "; auto leaves it out"
        line = f"{state:<6}{what:<{INDENT - 6}}{words}"
        print(textwrap.fill(line, WIDTH, subsequent_indent=" " * INDENT, break_long_words=False), flush=True)
        if state == "FAIL" and is_needed:
            raise InputError(f"training will not work here: {what}")
        return state == "ok"

    # one after the other, so that nothing disturbs what is timed
    kind = resolve_kind(run)
    needs_it = run.train.device != "auto" or kind == "cpu"
    if not check(f"device {kind}", computes, kind, fault=f"device {kind}", is_needed=needs_it):
        kind = "cpu"
        check("device cpu", computes, kind, is_needed=True)
    check("room", room, run, kind)
    for name in ALLOWED:
        check(f"precision {name}", precision, name, kind, fault=f"precision {kind} {name}", is_needed=name == "fp32")
    for name, number in product(BACKENDS, ("fp32", "bf16", "fp16")):
        what = f"attention {kind} {name} {number}"
        check(f"attention {name} {number}", attention, name, number, kind, run.model, fault=what)
    check("torch.compile", compiling, kind, fault=f"compile {kind}")
    check("this config", this_config, run, is_needed=True)  # what `auto` stands for, without these faults
    auto = resolve_device(run)
    check("save and resume", save_and_resume, kind, auto.precision, is_needed=True)

    devices, other = [auto], {"bf16": "fp32", "fp32": "bf16"}.get(auto.precision, "")
    if kind == "cpu" and run.train.precision == "auto" and f"precision cpu {other}" not in faults:
        train = run.train.model_copy(update={"precision": other, "device": "cpu"})
        devices.append(resolve_device(run.model_copy(update={"train": train})))
    print("\n" + recommendation(run, [(device, time_step(run, device)) for device in devices]))
    return 0


# ---------------------------------------------------------------------------------------------------------
# what is there


def computes(kind: str) -> Verdict:
    """Whether the device computes at all."""
    ones = torch.ones(8, 8, device=kind)
    if (total := float((ones @ ones).sum())) != 512:
        return "FAIL", f"a small product gave {total:g}, not 512"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    kernels = f", kernels for {hardware.processor()['kernels']}" if kind == "cpu" else ""
    return "ok", f"{hardware.machine(torch.device(kind))}; {versions}{kernels}"


def room(config: RunConfig, kind: str) -> Verdict:
    """Memory, the disk of the run directory, and whether other programs have the cores."""
    memory, free = hardware.memory_of(kind) or (0, "unknown"), psutil.virtual_memory().available
    disk = psutil.disk_usage(str(next(folder for folder in config.directory.absolute().parents if folder.is_dir())))
    words = f"memory: {size_in_words(memory[0])} ({memory[1]}); free: {size_in_words(free)} of RAM, "
    words += f"{size_in_words(disk.free)} of the disk of {config.output_dir}; other programs "
    others = psutil.cpu_percent(interval=0.4) / 100  # it sleeps while it looks, so it does not count itself
    if others >= BUSY:
        return "note", f"{words}use {others:.0%} of the CPU: end them, or training takes longer"
    return "ok", f"{words}leave the CPU alone"


def this_config(config: RunConfig) -> Verdict:
    """What it stands for here. Raises InputError where it cannot train, or asks for what computes wrong numbers."""
    device, faults = resolve_device(config), hardware.known_faults()
    check_memory(config, device, 1)
    check_shares(config, World(size=number_of_processes(config)))
    kind = device.device.type
    for key in (f"precision {kind} {device.precision}", f"attention {kind} {device.attention} {device.precision}"):
        if key in faults:
            return "FAIL", f"{key}: {faults[key]}: use auto"
    return "ok", "; ".join(device.notes)


# ---------------------------------------------------------------------------------------------------------
# does it compute the right numbers?


def precision(name: str, kind: str) -> Verdict:
    """The gradient of a small computation in this precision, beside that in float64."""
    if problem := lacks(name, kind):
        return "--", problem
    inputs = [torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    exact = gradients(small_computation, [x.double() for x in inputs])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else before)
    try:
        with torch.autocast(kind, DTYPES[name]) if name in ("bf16", "fp16") else nullcontext():
            computed = gradients(small_computation, [x.to(kind) for x in inputs])
    finally:
        torch.set_float32_matmul_precision(before)
    return judge(largest_error(computed, exact), name)


def small_computation(x: Tensor, w: Tensor) -> Tensor:
    """Of what a network is made: norm, product, activation, softmax."""
    return F.silu(F.rms_norm(x, x.shape[-1:]) @ w / 8).float().softmax(-1).square().sum()


def gradients(compute: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    return list(torch.autograd.grad(compute(*leaves), leaves))


def largest_error(computed: list[Tensor], exact: list[Tensor]) -> float:
    """The largest of all differences, each as a share of the largest entry of its tensor; NaN if there is one."""
    pairs = [(a.detach().cpu().double(), b.detach().cpu().double()) for a, b in zip(computed, exact, strict=True)]
    return float(torch.stack([(a - b).abs().max() / b.abs().max() for a, b in pairs]).max())


def judge(error: float, precision: str) -> Verdict:
    if not error <= ALLOWED[precision]:  # nor if it is NaN
        return "FAIL", f"differs from float64 by {error:.0e}"
    return "ok", f"right within {error:.0e}"


def attention(name: str, precision: str, kind: str, model: ModelConfig) -> Verdict:
    """A backend on this model's heads, on rows of one document and of several."""
    errors = []
    for documents in (False, True):
        here = Situation.of(model, kind, DTYPES[precision], gradients=True, documents=documents)
        if problem := lacks(precision, kind) or why_not(name, here):
            return "--", problem
        errors.append(kernel_error(name, here, model.num_attention_heads // model.kv_heads))
    return judge(float(torch.tensor(errors).max()), precision)


def kernel_error(name: str, here: Situation, groups: int) -> float:
    """How far a backend's output and gradients are from those of the formula in float64, on two rows of 192 tokens and
    two key/value heads. Raises whatever the kernel raises."""
    generator, sizes = torch.Generator().manual_seed(0), (here.head_dim, here.head_dim, here.value_dim or here.head_dim)
    shapes = [(2, heads, 192, size) for heads, size in zip((2 * groups, 2, 2), sizes, strict=True)]
    inputs = [torch.randn(shape, generator=generator).to(here.dtype) for shape in shapes]
    results = []
    for backend, device, dtype in (("eager", "cpu", torch.float64), (name, here.device, here.dtype)):
        places = torch.arange(192, device=device)
        documents = (places[None] // 70).expand(2, 192) if here.documents else None
        spec = MaskSpec(places, places, 2, None, documents, None, not here.masked)
        q, k, v = leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
        out = BACKENDS[backend].compute(q, k, v, BACKENDS[backend].mask(spec), 0.0)
        above = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype).to(device)
        results.append([out, *torch.autograd.grad(out, leaves, above)])
    return largest_error(results[1], results[0])


def compiling(kind: str) -> Verdict:
    """Whether something small can be compiled, and has the gradients that it has without compiling."""
    if problem := hardware.compiler_problem(kind):
        return "--", f"{problem}; training works without it"
    inputs = [torch.randn(64, 64).to(kind) for _ in range(2)]
    compiled = torch.compile(small_computation, dynamic=False)
    return judge(largest_error(gradients(compiled, inputs), gradients(small_computation, inputs)), "fp32")


# ---------------------------------------------------------------------------------------------------------
# real runs: is a stopped one exact, and how long does a step take?


def save_and_resume(kind: str, precision: str) -> Verdict:
    """Train a tiny run, whole and in two halves: every weight must come out equal to the last bit."""
    with tempfile.TemporaryDirectory(prefix="headlight-doctor-", ignore_cleanup_errors=True) as folder:
        overrides = [*TINY.split(), f"output_dir={folder}", f"train.device={kind}", f"train.precision={precision}"]
        for name, steps in (("whole", STEPS), ("halves", STEPS // 2), ("halves", STEPS)):
            train_quietly(BASE, [*overrides, f"name={name}", f"train.max_steps={steps}"])
        whole, halves = (Path(folder, name, f"checkpoints/step_{STEPS:08}") for name in ("whole", "halves"))
        files = ("model.safetensors", "training/optimizer.safetensors")
        if all((whole / file).read_bytes() == (halves / file).read_bytes() for file in files):
            return "ok", "in two halves or whole, the weights are equal to the last bit"
    if kind == "cpu":
        return "FAIL", "a resumed run gave other weights than one that never stopped"
    return "note", f"works, but not to the last bit: kernels of {kind} add up in changing order"


def time_step(run: RunConfig, device: Device) -> float:
    """Seconds of a step of this config: some real steps are taken, on stories in bytes.

    A step that would take long is extended from fewer of its rows, and from the vocabulary of bytes to that of the
    config by its FLOPs.
    """
    kind, length, number = device.device.type, run.data.sequence_length, number_of_processes(run)
    rows = run.rows_per_step // number
    rows = min(rows, max(1, int(TIMED_S / guessed_seconds(run, length, kind, device.precision))))
    with tempfile.TemporaryDirectory(prefix="headlight-doctor-", ignore_cleanup_errors=True) as folder:
        config = Path(folder, "config.yaml")
        config.write_text(dump_yaml(run.model_dump()), encoding="utf-8")
        overrides = [*QUIET.split(), *TEXT_ALONE.split(), f"output_dir={folder}", "name=timed", f"train.device={kind}"]
        overrides += [f"train.precision={device.precision}", f"model.attn_implementation={device.attention}"]
        overrides += [f"train.max_steps={STEPS}", f"train.tokens_per_step={rows * number * length}"]
        timed = train_quietly(config, [*overrides, f"train.processes={number}"])
        lines = read_metrics(timed.directory, lambda problem: None)
    speed = max(line["tokens_per_s"] for line in lines if line["split"] == "train")
    flops = [on_meta(model).flops_per_token(length) for model in (run.model, with_vocabulary(timed)[0].model)]
    return run.train.tokens_per_step / speed * flops[0] / flops[1]


def train_quietly(path: Path, overrides: list[str]) -> RunConfig:
    """A run of which nothing is printed; its config. Raises InputError if it fails."""
    config = load_run_config(path, overrides)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = pretrain(config, "train.doctor")
    if code > 128:
        raise KeyboardInterrupt
    if code:
        raise InputError(f"a run of {config.max_steps} steps ended with exit code {code}")
    return config


def recommendation(run: RunConfig, timings: list[tuple[Device, float]]) -> str:
    """A table of the seconds that a step takes, and the settings to take, with the minutes to expect.

    timings: what `auto` takes comes first.
    """
    steps, limit, tokens = run.max_steps, run.train.max_minutes or 0.0, run.train.tokens_per_step
    lines = []
    for device, seconds in timings:
        length = steps * seconds / 60 if steps else limit * 60 / seconds
        name = f"{device.precision}, attention {device.attention}"
        lines.append((name, f"{seconds:.3f}", f"{tokens / seconds:,.0f}", f"{length:,.1f}"))
    heading = f"{run.name}: {f'{steps:,} ' if steps else ''}steps of {tokens:,} tokens"
    columns = (heading, "s a step", "tokens/s", "minutes" if steps else f"steps in {limit:g} minutes")

    auto, best = timings[0], min(timings, key=lambda timing: timing[1])
    device, seconds = auto if auto[1] < CLEARLY * best[1] else best
    expected = f"about {steps * seconds / 60:,.1f} minutes" if steps else f"{limit:g} minutes, as it says"
    notes = [
        f"recommended: train.device={device.device.type} train.precision={device.precision} "
        f"model.attn_implementation={device.attention} train.compile={str(device.compile).lower()}",
        "auto takes these by itself" if device is auto[0] else "auto does not: name them on the command line",
        f"expect {expected} of training; evaluations and checkpoints come on top",
    ]
    if device.compile:
        notes.append("compiled steps, which were not timed, are quicker still")
    return "\n".join([table(columns, lines), "", "\n  ".join(notes)])


if __name__ == "__main__":
    exit_on_bad_input(main)
