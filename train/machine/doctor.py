"""What can this machine do? `python -m train.doctor [configs/x.yaml] [section.key=value ...]`

One verdict a line, as it goes, in a minute; then settings for this config without what was found wrong, with minutes
that were measured. Exit code 0: training will work here; 2: it will not, and a line says why.
"""

from __future__ import annotations

import argparse
import io
import platform
import tempfile
import textwrap
from collections.abc import Callable, Collection
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.command import InputError
from configs.loader import dump_yaml
from configs.text import table
from eval.run_files import read_metrics
from model import ModelConfig
from model.accounting import flops_per_token
from model.backends.choice import BACKENDS, Situation, why_not
from model.masks import MaskSpec
from model.transformer import on_meta
from train.config import RunConfig, load_run_config
from train.machine import device as hardware
from train.machine.budget import check_memory, size_in_words, with_vocabulary
from train.machine.cpu_processes import number_of_processes
from train.machine.device import DTYPES, Device, guessed_seconds, lacks, resolve_device, resolve_kind
from train.machine.distributed import World, check_shares
from train.pretrain import run as pretrain

DEMO = Path(__file__).parents[2] / "configs/demo.yaml"
WIDTH, INDENT = 118, 32
# errors, as a share of the largest entry: five to fifty times what rounding costs; tf32 has the digits of fp16
ALLOWED = {"fp32": 1e-3, "tf32": 5e-2, "bf16": 1e-1, "fp16": 5e-2}
STEPS = 4  # of each run here
STORIES = """
data.source={"kind":"storyworld","documents":200,"validation_documents":8} data.tokenizer={"kind":"byte"}
data.records=text data.rows_joined=1 init_from=null lora=null dpo=null distill=null grpo=null rungs=null
model.vocab_size=null model.bos_token_id=null model.eos_token_id=null model.pad_token_id=null
train.max_tokens=null train.max_minutes=null train.micro_batch_size=auto train.schedule=constant train.log_every=1
train.checkpoint_every=0 train.compile=false eval.hooks=[] tracking.wandb=disabled
"""
BUSY = 10  # per cent of the cores that other programs may use
CLEARLY = 1.1  # times as fast: less is noise
TIMED_S = 1.0  # seconds that a timed step may take, as a guess
Verdict = tuple[str, str]  # ok | "--": not for this machine | note: training works, but look at it | FAIL; and words


def main() -> int:
    parser = argparse.ArgumentParser(description="Say what this machine can do, in a minute.")
    parser.add_argument("config", nargs="?", default=str(DEMO), help="a YAML file; default: configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example train.precision=fp32")
    arguments = parser.parse_intermixed_args()

    def opened(*settings: str) -> RunConfig:
        return with_vocabulary(load_run_config(arguments.config, [*arguments.overrides, *settings]))[0]

    run, faults = opened(), set[str]()  # what must not be taken

    def check(what: str, test: Callable[..., Verdict], *of: Any, is_needed: bool = False) -> bool:
        """Print a verdict. is_needed: else training will not work."""
        try:
            state, words = test(*of)
        except Exception as error:  # a check is there to find them
            state, words = "FAIL", str(error)
            if not isinstance(error, InputError):
                words = f"{type(error).__name__}: {(words.splitlines() or [''])[0][:100]}"
        line = f"{state:<6}{what:<{INDENT - 6}}{words}"
        print(textwrap.fill(line, WIDTH, subsequent_indent=" " * INDENT, break_long_words=False), flush=True)
        if state == "FAIL":
            faults.add(what)
            if is_needed:
                raise InputError(f"training will not work here: {what}")
        return state != "FAIL"

    # one after the other, so that nothing disturbs what is timed
    kind, settings = resolve_kind(run), list[str]()
    if not check(f"device {kind}", computes, kind, is_needed=kind == "cpu" or run.train.device != "auto"):
        kind, settings = "cpu", ["train.device=cpu"]
        check("device cpu", computes, kind, is_needed=True)
    check("room", room, run, kind)
    for name in ALLOWED:
        check(f"precision {name}", precision, name, kind, is_needed=name == "fp32")
    for name, number in product([name for name in BACKENDS if name != "mine"], ("fp32", "bf16", "fp16")):
        check(f"attention {name} {number}", attention, name, number, kind, run.model)
    check("torch.compile", compiling, kind)
    sound = without_faults(opened, faults, *settings)
    check("this config", this_config, run, sound, is_needed=True)
    check("save and resume", save_and_resume, run, sound, is_needed=True)

    devices, other = [sound], {"bf16": "fp32", "fp32": "bf16"}.get(sound.precision, "")
    if kind == "cpu" and run.train.precision == "auto" and f"precision {other}" not in faults:
        devices.append(without_faults(opened, faults, *settings, f"train.precision={other}"))
    print("\n" + recommendation(run, [(device, time_step(run, device)) for device in devices], not faults))
    return 0


def without_faults(opened: Callable[..., RunConfig], faults: Collection[str], *settings: str) -> Device:
    """What `auto` stands for with these settings, without what is wrong here."""
    chosen = [*settings, *["train.compile=false"] * ("torch.compile" in faults)]
    for safe in ("train.precision=fp32", "model.attn_implementation=sdpa", "model.attn_implementation=eager"):
        device = resolve_device(opened(*chosen))
        kernel = f"attention {device.attention} {device.precision}"
        if (f"precision {device.precision}" if "precision" in safe else kernel) in faults:
            chosen.append(safe)
    return resolve_device(opened(*chosen))


# ---------------------------------------------------------------------------------------------------------
# what is there


def computes(kind: str) -> Verdict:
    """Whether the device computes at all."""
    ones = torch.ones(8, 8, device=kind)
    if (total := float((ones @ ones).sum())) != 512:
        return "FAIL", f"a small product gave {total:g}, not 512"
    machine = hardware.machine(torch.device(kind))
    return "ok", f"{machine}; torch {torch.__version__}, Python {platform.python_version()}"


def room(config: RunConfig, kind: str) -> Verdict:
    """Memory, the disk of the run directory, and whether other programs have the cores."""
    memory, whose = hardware.memory_of(kind) or (0, "unknown")
    disk = psutil.disk_usage(str(next(folder for folder in config.directory.absolute().parents if folder.is_dir())))
    others = psutil.cpu_percent(interval=0.4)  # it sleeps while it looks, so it does not count itself
    words = f"{size_in_words(memory)} of memory ({whose}), {size_in_words(disk.free)} free on the disk of "
    words += f"{config.output_dir}; other programs use {others:.0f}% of the CPU"
    return ("note", f"{words}: end them, or training takes longer") if others >= BUSY else ("ok", words)


def this_config(config: RunConfig, device: Device) -> Verdict:
    """What it stands for here. Raises InputError where it cannot train."""
    check_memory(config, device, 1)
    check_shares(config, World(size=number_of_processes(config)))
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
            return judge(gradients(small_computation, [x.to(kind) for x in inputs]), exact, name)
    finally:
        torch.set_float32_matmul_precision(before)


def small_computation(x: Tensor, w: Tensor) -> Tensor:
    """Of what a network is made: norm, product, activation, softmax."""
    return F.silu(F.rms_norm(x, x.shape[-1:]) @ w / 8).softmax(-1).square().sum()


def gradients(compute: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    return list(torch.autograd.grad(compute(*leaves), leaves))


def judge(computed: list[Tensor], exact: list[Tensor], precision: str) -> Verdict:
    """By the largest of all differences, each as a share of the largest entry of its tensor."""
    pairs = [(a.detach().cpu().double(), b.detach().cpu().double()) for a, b in zip(computed, exact, strict=True)]
    error = float(torch.stack([(a - b).abs().max() / b.abs().max() for a, b in pairs]).max())
    if not error <= ALLOWED[precision]:  # nor if it is NaN
        return "FAIL", f"differs from float64 by {error:.0e}"
    return "ok", f"right within {error:.0e}"


def attention(name: str, precision: str, kind: str, model: ModelConfig) -> Verdict:
    """A backend's output and gradients beside those of the formula in float64: two rows of 192 tokens, two key/value
    heads of this model's size, rows of one document and of several. Raises whatever the kernel raises."""
    for packed in (False, True):
        here = Situation.of(model, kind, DTYPES[precision], gradients=True, documents=packed)
        if problem := lacks(precision, kind) or why_not(name, here):
            return "--", problem
        draw, sizes = torch.Generator().manual_seed(0), (here.head_dim, here.head_dim, here.value_dim or here.head_dim)
        heads = zip((2 * model.num_attention_heads // model.kv_heads, 2, 2), sizes, strict=True)
        inputs = [torch.randn(2, number, 192, size, generator=draw).to(here.dtype) for number, size in heads]
        results = []
        for backend, device, dtype in (("eager", "cpu", torch.float64), (name, here.device, here.dtype)):
            places = torch.arange(192, device=device)
            documents = (places[None] // 70).expand(2, 192) if packed else None
            spec = MaskSpec(places, places, 2, None, documents, None, not here.masked)
            q, k, v = leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
            out = BACKENDS[backend].compute(q, k, v, BACKENDS[backend].mask(spec), 0.0)
            above = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype).to(device)
            results.append([out, *torch.autograd.grad(out, leaves, above)])
        verdict = judge(results[1], results[0], precision)
        if verdict[0] == "FAIL":
            break
    return verdict


def compiling(kind: str) -> Verdict:
    """Whether something small can be compiled, and has the gradients that it has without compiling."""
    if problem := hardware.compiler_problem(kind):
        return "--", f"{problem}; training works without it"
    inputs = [torch.randn(64, 64).to(kind) for _ in range(2)]
    compiled = gradients(torch.compile(small_computation, dynamic=False), inputs)
    return judge(compiled, gradients(small_computation, inputs), "fp32")


# ---------------------------------------------------------------------------------------------------------
# real runs: is a stopped one exact, and how long does a step take?


def save_and_resume(run: RunConfig, device: Device) -> Verdict:
    """Train some steps, at once and in two halves: every weight must come out equal to the last bit."""
    with tempfile.TemporaryDirectory(prefix="headlight-doctor-", ignore_cleanup_errors=True) as folder:
        for name, steps in (("whole", STEPS), ("halves", STEPS // 2), ("halves", STEPS)):
            train_quietly(run, device, folder, f"name={name}", f"train.max_steps={steps}", "train.processes=1")
        whole, halves = (Path(folder, name, f"checkpoints/step_{STEPS:08}") for name in ("whole", "halves"))
        files = ("model.safetensors", "training/optimizer.safetensors")
        if all((whole / file).read_bytes() == (halves / file).read_bytes() for file in files):
            return "ok", "in two halves or whole, the weights are equal to the last bit"
    if device.device.type == "cpu":
        return "FAIL", "a resumed run gave other weights than one that never stopped"
    return "note", "works, but not to the last bit: kernels of this device add up in changing order"


def time_step(run: RunConfig, device: Device) -> float:
    """Seconds of a step of this config: some real steps are taken. A step that would take long is extended from fewer
    of its rows, and from the vocabulary of bytes to that of the config by its FLOPs."""
    with tempfile.TemporaryDirectory(prefix="headlight-doctor-", ignore_cleanup_errors=True) as folder:
        timed = train_quietly(run, device, folder, f"train.max_steps={STEPS}")
        lines = read_metrics(timed.directory, lambda problem: None)
    speed, length = max(line["tokens_per_s"] for line in lines if line["split"] == "train"), run.data.sequence_length
    flops = [flops_per_token(on_meta(model), length) for model in (run.model, with_vocabulary(timed)[0].model)]
    return run.train.tokens_per_step / speed * flops[0] / flops[1]


def train_quietly(run: RunConfig, device: Device, folder: str, *overrides: str) -> RunConfig:
    """Train this config for a few steps, on stories in bytes, and print nothing; the config of that run. Raises
    InputError if it fails."""
    file, length, number = Path(folder, "config.yaml"), run.data.sequence_length, number_of_processes(run)
    rows = int(TIMED_S / guessed_seconds(run, length, device.device.type, device.precision))
    rows = min(run.rows_per_step // number, max(1, rows)) * number
    file.write_text(dump_yaml(run.model_dump()), encoding="utf-8")
    own = [*STORIES.split(), *chosen(device), f"output_dir={folder}", f"train.tokens_per_step={rows * length}"]
    config = load_run_config(file, [*own, f"train.processes={number}", *overrides])
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = pretrain(config, "train.doctor")
    if code > 128:
        raise KeyboardInterrupt
    if code:
        raise InputError(f"a run of {config.max_steps} steps ended with exit code {code}")
    return config


def chosen(device: Device) -> list[str]:
    """The overrides that take these settings."""
    kind, attention = device.device.type, f"model.attn_implementation={device.attention}"
    return [f"train.device={kind}", f"train.precision={device.precision}", attention]


def recommendation(run: RunConfig, timings: list[tuple[Device, float]], is_auto: bool) -> str:
    """A table of the seconds that a step takes, and the settings to take, with the minutes to expect.

    timings: the preferred device first. is_auto: whether `auto` takes that one by itself.
    """
    steps, limit, tokens = run.max_steps, run.train.max_minutes or 0.0, run.train.tokens_per_step
    lines = []
    for device, seconds in timings:
        length = steps * seconds / 60 if steps else limit * 60 / seconds
        name = f"{device.precision}, attention {device.attention}"
        lines.append((name, f"{seconds:.3f}", f"{tokens / seconds:,.0f}", f"{length:,.1f}"))
    heading = f"{run.name}: {f'{steps:,} ' if steps else ''}steps of {tokens:,} tokens"
    columns = (heading, "s a step", "tokens/s", "minutes" if steps else f"steps in {limit:g} minutes")

    device, seconds = min(timings, key=lambda timing: timing[1])
    if timings[0][1] < CLEARLY * seconds:
        device, seconds = timings[0]
    is_auto = is_auto and device is timings[0][0]
    expected = f"about {steps * seconds / 60:,.1f} minutes" if steps else f"{limit:g} minutes, as it says"
    notes = [
        f"recommended: {' '.join(chosen(device))} train.compile={str(device.compile).lower()}",
        "auto takes these by itself"
        if is_auto and device is timings[0][0]
        else "auto may not: name them on the command line",
        f"expect {expected} of training; evaluations and checkpoints come on top",
    ]
    return "\n".join([table(columns, lines), "", "\n  ".join(notes)])
