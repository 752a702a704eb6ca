"""A run that takes a second: the real command line on a small text, in this process or in several
of their own.
"""

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils.hooks import RemovableHandle

import train.loop
from configs.command import exit_on_bad_input
from configs.files import append_line
from data.batches import Batch
from model import load
from tests.processes import print_to, run_main, start
from tests.processes import run_module as run_module
from train import distill, dpo, grpo, sft
from train.config import load_run_config
from train.machine.distributed import full_tensor
from train.pretrain import main
from train.run.run import Run

REPOSITORY = Path(__file__).parents[2]


def write_config(folder: Path, **sections) -> Path:
    """A tiny config in its own folder; keyword arguments replace keys of a section or whole
    top-level keys.
    """
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(f"{i} the cat sat on mat number {i * 7 % 13}.\n" for i in range(400)), encoding="utf-8")
    values = {
        "output_dir": str(folder / "runs"),
        "model": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        "data": {"source": {"kind": "files", "path": str(text)}, "tokenizer": {"kind": "byte"}, "sequence_length": 32},
        "train": {"max_steps": 12, "tokens_per_step": 256, "log_every": 1, "checkpoint_every": 4, "precision": "fp32"},
        "eval": {"every": 4, "sample_tokens": 8, "attention": {"every": 0, "max_tokens": 12}},
        "tracking": {"wandb": "disabled"},
    }
    if sections.get("init_from"):  # whose shape and tokenizer these are not
        del values["model"], values["data"]["tokenizer"]
    for key, value in sections.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    path = folder / "tiny.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
    return path


PAIRS = [{"prompt": f"{i}. Which sound?", "chosen": "Meow" + "!" * (i % 3), "rejected": "Woof"} for i in range(200)]
ROLES = (("user", "prompt"), ("assistant", "chosen"))
CHATS = [{"messages": [{"role": role, "content": pair[key]} for role, key in ROLES]} for pair in PAIRS]
METHODS = {  # the script, what it reads, and the records, if that is not the text of `write_config`
    "pretrain": (main, "text", None),
    "sft": (sft.main, "conversations", CHATS),
    "dpo": (dpo.main, "pairs", PAIRS),
    "grpo": (grpo.main, "conversations", CHATS),
    "distill": (distill.main, "text", None),
}


def method_config(folder: Path, method: str, base: Path, records: list | None = None, **sections) -> Path:
    """A config of a method that goes on from the run `base`: 8 rows of 96 tokens a step."""
    _, kind, usual = METHODS[method]
    records = records or usual
    data = {"sequence_length": 96, "records": kind} | sections.pop("data", {})
    if records is not None:
        (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        data["source"] = {"kind": "files", "path": str(folder / "records.jsonl")}
    own = {
        "grpo": {"grpo": {"reward": "tests.train.grpo_helpers:vowels"}},
        "distill": {"distill": {"teacher": str(base)}},
    }
    train = {"max_steps": 1, "tokens_per_step": 768, "processes": 1} | sections.pop("train", {})
    sections = {"eval": {"hooks": []}} | own.get(method, {}) | sections
    return write_config(folder, data=data, train=train, init_from=str(base), **sections)


def watched(action: Callable[[Run], Any]) -> dict[str, Callable]:
    """Functions for train.loop that call action(run) before the first forward pass of a step, once
    even if the step is repeated. If that returns a hook's handle, the hook is removed after the
    backward passes.
    """
    losses = train.loop.losses
    sum_over_processes = train.loop.sum_over_processes
    last = [None, None]
    hooks = list[RemovableHandle]()

    def with_action(run: Run, *arguments):
        if last[0] is not run or last[1] != run.state.step:
            last[:] = run, run.state.step
            hook = action(run)
            if isinstance(hook, RemovableHandle):
                hooks.append(hook)
        return losses(run, *arguments)

    def without_hooks(run: Run, *arguments):
        while hooks:
            hooks.pop().remove()
        return sum_over_processes(run, *arguments)

    return {"losses": with_action, "sum_over_processes": without_hooks}


def at_each_step(action: Callable[[Run], object]) -> AbstractContextManager:
    """Training in this process calls action(run) at the beginning of each step."""
    return mock.patch.multiple(train.loop, **watched(action))


def stopped_at(step: int | None, number: int = signal.SIGTERM, rank: int = 0) -> AbstractContextManager:
    """Training in this process sends itself a signal when it comes to `step`, if it is the process
    of this rank.
    """

    def stop(run: Run) -> None:
        if run.state.step == step and run.world.rank == rank:
            os.kill(os.getpid(), number)

    return at_each_step(stop)


def pretrain(config: Path, *overrides, code: int = 0, script: Callable[[], int] = main) -> subprocess.CompletedProcess:
    """`python -m train.pretrain config overrides…` in this process; the exit code must be `code`.

    script: the main of another module, for example train.sft's.
    """
    done = run_main(script, config, *overrides)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def refusal(config: Path, *overrides, script: Callable[[], int] = main) -> str:
    """Return a refused run's message: exit code 2, and one line that begins with "error: "."""
    said = pretrain(config, *overrides, code=2, script=script).stderr
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


CLOCKS = {"time_s", "tokens_per_s", "data_wait_share", "memory_gb", "tflops", "eval_s", "save_s"}


def metrics(run: Path, split: str = "", *, without_clocks: bool = True) -> list[dict]:
    """The lines of metrics.jsonl, those of one split or all, without the figures that a clock or
    the system decides.
    """
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    without = CLOCKS if without_clocks else set()
    return [{k: v for k, v in line.items() if k not in without} for line in lines if split in ("", line["split"])]


def losses(run: Path, split: str = "val") -> list[float]:
    return [line["loss"] for line in metrics(run, split)]


# --------------------------------------------------------------------------------------------------
# processes of their own


def run_world(size: int, function: Callable, *arguments) -> list[int | None]:
    """function(*arguments) in `size` processes, as torchrun would start them; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start(_as_rank, rank, size, port, function, *arguments) for rank in range(size)]
    for process in processes:
        process.join(timeout=200)
        process.kill()
    return [process.exitcode for process in processes]


def _as_rank(rank: int, size: int, port: int, function: Callable, *arguments) -> None:
    torch.set_num_threads(1)
    # a process that waits for ever says where, and ends
    faulthandler.dump_traceback_later(150, exit=True)
    if size > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()})
    function(*arguments)


def in_a_group(function: Callable, *arguments) -> None:
    """function(*arguments) in a process of run_world that knows of the others."""
    dist.init_process_group("gloo")
    function(*arguments)
    # without taking the group apart: a gloo thread that wants the GIL at that moment waits for ever
    os._exit(0)


def pretrain_rank(
    config: Path,
    overrides: list[str],
    stop_at: int | None = None,
    script: Callable[[], int] = main,
    number: int = signal.SIGTERM,
) -> None:
    """`python -m train.pretrain config overrides…`; the last process sends itself a signal when it
    comes to `stop_at`.

    script: the main of another module. What a process prints is in config's folder: rank0.txt,
    rank1.txt, …
    """
    print_to(config.with_name(f"rank{os.environ.get('RANK', '0')}.txt"))
    faulthandler.dump_traceback_later(150, exit=True)
    if number == signal.SIGHUP:  # which is ignored where the tests were started with nohup
        signal.signal(number, signal.SIG_DFL)
    sys.argv = ["pretrain", str(config), *overrides]
    with stopped_at(stop_at, number, rank=int(os.environ.get("WORLD_SIZE", "1")) - 1):
        exit_on_bad_input(script)


def kill_at(config: Path, step: int, name: str = "KILL") -> int | None:
    """Run pretrain in a process that sends itself a signal when it comes to `step`; its exit code."""
    [code] = run_world(1, pretrain_rank, config, [], step, main, getattr(signal, f"SIG{name}"))
    return code


def trace(run: Path) -> list[dict]:
    """trace.jsonl: step, batch, loss, grad_norm, lr; exact, as text."""
    return [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]


def held(run: Run, batch: Batch) -> dict[str, Any]:
    """Return sha256 of all that decides a step's update; equal runs take the same step.

    The parameters, the optimizers' state, the random state and the batch.
    """
    moments = {f"{n} {key} {name}": value for n, optimizer in enumerate(run.optimizers)
               for key, state in optimizer.state_dict()["state"].items() for name, value in state.items()}  # fmt: skip
    parts = {"parameters": run.lm.state_dict(), "optimizers": moments, "batch": batch.tensors}
    parts["random state"] = {"cpu": torch.get_rng_state()}
    hashes = {name: sha256() for name in parts}
    for part, tensors in parts.items():
        for name, tensor in sorted(tensors.items()):
            hashes[part].update(name.encode() + full_tensor(tensor.detach()).numpy().tobytes())
    return {"step": run.state.step, "scale": run.scaler.get_scale()} | {k: h.hexdigest() for k, h in hashes.items()}


def noting_rank(config: Path, overrides: list[str], stop_at: int | None = None) -> None:
    """pretrain_rank that writes what it holds before every update into the run's held0.jsonl,
    held1.jsonl, …
    """
    first_scalars = train.loop.first_scalars

    def noting(run: Run, batch: Batch) -> Any:
        append_line(run.config.directory / f"held{run.world.rank}.jsonl", held(run, batch))
        return first_scalars(run, batch)

    with mock.patch.object(train.loop, "first_scalars", noting):
        pretrain_rank(config, overrides, stop_at)


def assert_held_the_same(ours: Path, theirs: Path, rank: int = 0) -> None:
    """At every step, the first ones after a stop too, a process of this run held what that of the
    other one did.
    """
    lines = [(run / f"held{rank}.jsonl").read_text(encoding="utf-8").splitlines() for run in (ours, theirs)]
    for mine, other in zip(*(map(json.loads, each) for each in lines), strict=True):
        assert mine == other


def check_exact_resume(config: Path, script: Callable[[], int], step: int = 4) -> Path:
    """Stopped at this step, it has the same losses and weights in the end, bit by bit. Returns the
    run that never was stopped, which is called `whole`; the other one has the config's name.
    """
    run = load_run_config(config).directory
    whole = run.with_name("whole")
    pretrain(config, "name=whole", "--trust-hooks", script=script)
    with stopped_at(step):
        pretrain(config, "--trust-hooks", script=script, code=143)
    pretrain(config, "--trust-hooks", script=script)
    assert trace(run) == trace(whole)
    stopped, uninterrupted = (load(one).state_dict() for one in (run, whole))
    assert all(torch.equal(stopped[key], uninterrupted[key]) for key in stopped)
    return whole


# --------------------------------------------------------------------------------------------------
# what goes wrong in a step, on purpose


def at_step(monkeypatch, steps: list[int], action: Callable[[Run], Any]) -> list[Run]:
    """Training calls action(run) just before each of these steps; the list grows with the runs."""
    runs = []

    def chosen(run: Run):
        if run.state.step in steps:
            runs.append(run)
            return action(run)
        return None

    for name, function in watched(chosen).items():
        monkeypatch.setattr(train.loop, name, function)
    return runs


def bad_loss(run):
    def spoilt(module, inputs, output):
        return output._replace(loss_sum=output.loss_sum * float("nan"))

    return run.lm.register_forward_hook(spoilt)


def bad_gradient(run):
    weight = run.lm.model.layers[1].mlp.up_proj.weight
    return weight.register_hook(lambda gradient: gradient * float("inf"))
