"""What can this machine do? `python -m train.doctor [configs/x.yaml] [section.key=value ...]`

One verdict a line, as it goes, in a minute; then the settings for this config, with minutes that were measured. What is
found wrong is kept (train/device.py), and `auto` leaves it out from then on. Exit code 0: training will work
here; 2: it will not, and a line says why.
"""

from __future__ import annotations

import argparse
import copy
import io
import platform
import tempfile
import textwrap
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from itertools import product
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.command import InputError, exit_on_bad_input
from configs.loader import dump_yaml
from configs.text import table
from eval.run_files import read_metrics
from model import LanguageModel, ModelConfig
from model.backends.choice import BACKENDS, Situation, why_not
from model.masks import MaskSpec
from model.transformer import on_meta
from train import device as hardware
from train.budget import check_memory, size_in_words, with_vocabulary
from train.config import RunConfig, load_run_config
from train.device import DTYPES, Device, guessed_seconds, lacks, resolve_device, resolve_kind
from train.pretrain import run as pretrain
from train.processes import World, check_shares, number_of_processes, processes_in_words

BASE, DEMO = (Path(__file__).parents[1] / f"configs/{name}.yaml" for name in ("base", "demo"))
WIDTH, INDENT = 118, 32
# of the length of a model's gradient: several times what was measured on a CPU (4e-7, 2e-2, 2e-3), far below what a
# wrong number makes; tf32 has the digits of fp16
ALLOWED = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 1e-1, "fp16": 2e-2}
# of the largest entry of what attention computes: some ten times what rounding costs
ALLOWED_ATTENTION = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
SMALL = ModelConfig(vocab_size=192, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
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


class Unwell(Exception):
    """A verdict other than ok. state: "--": not for this machine | note: training works, but look at it | FAIL."""

    def __init__(self, state: str, words: str):
        super().__init__(words)
        self.state = state


def main() -> int:
    parser = argparse.ArgumentParser(description="Say what this machine can do, in a minute.")
    parser.add_argument("config", nargs="?", default=str(DEMO), help="a YAML file; default: configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for example train.precision=fp32")
    arguments = parser.parse_intermixed_args()
    run, _ = with_vocabulary(load_run_config(arguments.config, arguments.overrides))
    faults: dict[str, str] = {}
    hardware.remember_faults(faults)  # what was wrong before may be right again

    def check(what: str, test: Callable[[], str], fault: str = "", is_fatal: bool = False) -> bool:
        """Print a verdict. fault: what `auto` must not take if it is FAIL. is_fatal: training will not work then."""
        try:
            state, words = "ok", test()
        except Exception as error:  # a check is there to find them
            state, words = getattr(error, "state", "FAIL"), str(error)
            if not isinstance(error, Unwell | InputError):
                words = f"{type(error).__name__}: {(words.splitlines() or [''])[0][:100]}"
        if state == "FAIL" and fault:
            faults[fault] = words
            hardware.remember_faults(faults)
            words += "; auto leaves it out"
        line = f"{state:<6}{what:<{INDENT - 6}}{words}"
        print(textwrap.fill(line, WIDTH, subsequent_indent=" " * INDENT, break_long_words=False), flush=True)
        if state == "FAIL" and is_fatal:
            raise InputError(f"training will not work here: {what}")
        return state == "ok"

    # one after the other, so that nothing disturbs what is timed
    kind, wanted = resolve_kind(run), run.train.device
    needs_it = wanted != "auto" or kind == "cpu"
    if not check(f"device {kind}", partial(computes, kind), f"device {kind}", is_fatal=needs_it):
        kind = "cpu"
        check("device cpu", partial(computes, kind), is_fatal=True)
    others = psutil.cpu_percent(interval=0.4) / 100  # it sleeps while it looks, so it does not count itself
    check("room", partial(room, run, kind, others))
    for name in ALLOWED:
        check(f"precision {name}", partial(precision, name, kind), f"precision {kind} {name}", name == "fp32")
    for name, number in product(BACKENDS, ("fp32", "bf16", "fp16")):
        what = f"attention {kind} {name} {number}"
        check(f"attention {name} {number}", partial(attention, name, number, kind, run.model), what)
    check("torch.compile", partial(compiling, kind), f"compile {kind}")
    check("this config", partial(this_config, run), is_fatal=True)  # what `auto` stands for, without these faults
    auto = resolve_device(run)
    check("save and resume", partial(save_and_resume, kind, auto.precision), is_fatal=True)

    devices, other = [auto], {"bf16": "fp32", "fp32": "bf16"}.get(auto.precision, "")
    if kind == "cpu" and run.train.precision == "auto" and f"precision cpu {other}" not in faults:
        train = run.train.model_copy(update={"precision": other, "device": "cpu"})
        devices.append(resolve_device(run.model_copy(update={"train": train})))
    print("\n" + recommendation(run, [(device, time_step(run, device)) for device in devices], others))
    return 0


# ---------------------------------------------------------------------------------------------------------
# what is there


def computes(kind: str) -> str:
    """Whether the device computes at all."""
    ones = torch.ones(8, 8, device=kind)
    if (total := float((ones @ ones).sum())) != 512:
        raise Unwell("FAIL", f"a small product gave {total:g}, not 512")
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    kernels = f", kernels for {hardware.processor()['kernels']}" if kind == "cpu" else ""
    return f"{hardware.machine(torch.device(kind))}; {versions}{kernels}"


def room(config: RunConfig, kind: str, others: float) -> str:
    """Memory, the disk of the run directory, and whether other programs have the cores: `others` is their share."""
    memory, free = hardware.memory_of(kind) or (0, "unknown"), psutil.virtual_memory().available
    disk = psutil.disk_usage(str(next(folder for folder in config.directory.absolute().parents if folder.is_dir())))
    words = f"memory: {size_in_words(memory[0])} ({memory[1]}); free: {size_in_words(free)} of RAM, "
    words += f"{size_in_words(disk.free)} of the disk of {config.output_dir}; other programs "
    if others >= BUSY:
        raise Unwell("note", f"{words}use {others:.0%} of the CPU: end them, or training takes longer")
    return f"{words}leave the CPU alone"


def this_config(config: RunConfig) -> str:
    """What it stands for here. Raises InputError where it cannot train, or asks for what computes wrong numbers."""
    device, faults = resolve_device(config), hardware.known_faults()
    check_memory(config, device, 1)
    check_shares(config, World(size=number_of_processes(config)))
    kind = device.device.type
    for key in (f"precision {kind} {device.precision}", f"attention {kind} {device.attention} {device.precision}"):
        if key in faults:
            raise InputError(f"{key}: {faults[key]}: use auto")
    return "; ".join(device.notes)


# ---------------------------------------------------------------------------------------------------------
# does it compute the right numbers?


def precision(name: str, kind: str) -> str:
    """A small model's gradient in this precision, with the formula as attention, beside that in float64."""
    if problem := lacks(name, kind):
        raise Unwell("--", problem)
    error = model_error(name, kind)
    if not error <= ALLOWED[name]:
        raise Unwell("FAIL", f"the gradient differs from float64 by {error:.0e}")
    return f"a model's gradient is right within {error:.0e}"


def model_error(name: str, kind: str) -> float:
    """Length of the difference of the gradients on packed rows, as a share of the length in float64."""
    torch.manual_seed(0)
    lm = LanguageModel(SMALL).train()
    for parameter in lm.parameters():  # at first the output projections are zero, and hide what attention does
        parameter.data += 0.1 * torch.randn_like(parameter)
    lm.set_attn_implementation("eager")
    ids, documents = torch.randint(0, 192, (2, 96)), (torch.arange(96) // 40).expand(2, 96)
    exact = copy.deepcopy(lm).double()
    logits = exact(ids, document_ids=documents)
    exact_loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    lm.to(kind)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else before)
    try:
        with torch.autocast(kind, DTYPES[name]) if name in ("bf16", "fp16") else nullcontext():
            loss, _ = lm(ids.to(kind), labels=ids.to(kind), document_ids=documents.to(kind))
        gradients = []
        for model, model_loss in ((exact, exact_loss), (lm, loss)):
            parts = torch.autograd.grad(model_loss, list(model.parameters()))
            gradients.append(torch.cat([part.cpu().double().flatten() for part in parts]))
    finally:
        torch.set_float32_matmul_precision(before)
    return float((gradients[1] - gradients[0]).norm() / gradients[0].norm())


def attention(name: str, precision: str, kind: str, model: ModelConfig) -> str:
    """A backend on this model's heads, on rows of one document and of several."""
    errors = []
    for documents in (False, True):
        here = Situation.of(model, kind, DTYPES[precision], gradients=True, documents=documents)
        if problem := lacks(precision, kind) or why_not(name, here):
            raise Unwell("--", problem)
        errors.append(kernel_error(name, here, model.num_attention_heads // model.kv_heads))
        if not errors[-1] <= ALLOWED_ATTENTION[precision]:  # nor if it is NaN
            raise Unwell("FAIL", f"differs from float64 by {errors[-1]:.0e}")
    return f"right within {max(errors):.0e}, packed or not"


def kernel_error(name: str, here: Situation, groups: int) -> float:
    """How far a backend is from the formula in float64: the largest error of its output and of its gradients, each as a
    share of the largest entry. Two rows of 192 tokens, two key/value heads. Raises whatever the kernel raises.
    """
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
        results.append([x.detach().cpu().double() for x in (out, *torch.autograd.grad(out, leaves, above))])
    errors = [(computed - exact).abs().max() / exact.abs().max() for exact, computed in zip(*results, strict=True)]
    return float(torch.stack(errors).max())  # NaN, if the kernel gave one


def compiling(kind: str) -> str:
    """Whether something small can be compiled, and has the gradients that it has without compiling."""
    if problem := hardware.compiler_problem(kind):
        raise Unwell("--", f"{problem}; training works without it")

    def work(x: Tensor, w: Tensor) -> Tensor:
        return F.silu(x @ w).softmax(-1).square().sum()

    inputs = [torch.randn(64, 64).to(kind).requires_grad_() for _ in range(2)]
    plain, compiled = (torch.autograd.grad(f(*inputs), inputs) for f in (work, torch.compile(work, dynamic=False)))
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(compiled, plain, strict=True))
    if not error <= 1e-3:
        raise Unwell("FAIL", f"the compiled gradient differs by {error:.0e}")
    return "something small was compiled, and has the same gradients"


# ---------------------------------------------------------------------------------------------------------
# real runs: is a stopped one exact, and how long does a step take?


def save_and_resume(kind: str, precision: str) -> str:
    """Train a tiny run, whole and in two halves: every weight must come out equal to the last bit."""
    with tempfile.TemporaryDirectory(prefix="headlight-doctor-", ignore_cleanup_errors=True) as folder:
        overrides = [*TINY.split(), f"output_dir={folder}", f"train.device={kind}", f"train.precision={precision}"]
        for name, steps in (("whole", STEPS), ("halves", STEPS // 2), ("halves", STEPS)):
            train_quietly(BASE, [*overrides, f"name={name}", f"train.max_steps={steps}"])
        whole, halves = (Path(folder, name, f"checkpoints/step_{STEPS:08}") for name in ("whole", "halves"))
        files = ("model.safetensors", "training/optimizer.safetensors")
        if all((whole / file).read_bytes() == (halves / file).read_bytes() for file in files):
            return "in two halves or whole, the weights are equal to the last bit"
    if kind == "cpu":
        raise Unwell("FAIL", "a resumed run gave other weights than one that never stopped")
    raise Unwell("note", f"works, but not to the last bit: kernels of {kind} add up in changing order")


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


def recommendation(run: RunConfig, timings: list[tuple[Device, float]], others: float) -> str:
    """A table of the seconds that a step takes, and the settings to take, with the minutes to expect.

    timings: what `auto` takes comes first. others: share of the CPU that other programs use.
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
    notes = [
        f"recommended: train.device={device.device.type} train.precision={device.precision} "
        f"model.attn_implementation={device.attention} train.compile={str(device.compile).lower()}"
    ]
    notes.append("auto takes these by itself" if device is auto[0] else "auto does not: name them on the command line")
    expected = f"about {steps * seconds / 60:,.1f} minutes" if steps else f"{limit:g} minutes, as it says"
    notes.append(f"expect {expected} of training; evaluations and checkpoints come on top")
    if others >= BUSY:
        notes.append(f"other programs use {others:.0%} of the CPU: without them it is quicker")
    if (number := number_of_processes(run)) > 1:
        notes.append(processes_in_words(number, max(1, torch.get_num_threads() // number)))
    if device.compile:
        notes.append("compiled steps, which were not timed, are quicker still")
    return "\n".join([table(columns, lines), "", "\n  ".join(notes)])


if __name__ == "__main__":
    exit_on_bad_input(main)
