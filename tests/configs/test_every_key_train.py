"""Every key of `train:` and `tracking:`, and the seed, changes what a run does and nothing else."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest
import torch

from tests.configs.every_key import Change, keys_of, shows, together
from tests.configs.observed_run import observed_run
from tests.train.helpers import metrics, pretrain, write_config
from tests.train.worlds import run_world
from train.config import load_run_config
from train.machine.device import resolve_device
from train.machine.distributed import processes, wrap
from train.pretrain import build_model

LEARNING = "learning, last validation"
LIMIT = "schedule, learning, steps, logged, evaluated, last validation, sampled, checkpoints"

CHANGES = [
    together(
        Change("seed", 1, f"{LEARNING}, first validation, first samples?, tokens?"),
        Change("train.max_steps", 10, LIMIT),
    ),
    together(Change("train.max_tokens", 1024, LIMIT, ("train.max_steps=null", "train.max_tokens=1536"))),
    together(
        Change("train.tokens_per_step", 128, f"{LEARNING}, tokens, rows"),
        Change("train.final_lr_fraction", 0.5, f"schedule, {LEARNING}"),
        Change("train.activation_checkpointing", True, "passes"),
    ),
    together(
        Change("train.micro_batch_size", 2, "rows, passes"),
        Change("train.schedule", "cosine", f"schedule, {LEARNING}"),
        Change("train.checkpoint_every", 3, "checkpoints"),
    ),
    together(
        Change("train.warmup_steps", 6, f"schedule, {LEARNING}"),
        Change("train.precision", "bf16", f"dtype, {LEARNING}?, first validation?"),
    ),
    together(
        Change("train.cooldown", 0.2, f"schedule, {LEARNING}"),
        Change("train.log_every", 3, "logged, passes"),
        Change("train.keep_best", False, "checkpoints"),
        Change("train.trace", True, "trace"),
    ),
    together(
        Change("train.keep_last", 3, "checkpoints", ("train.checkpoint_every=3",)),
        Change("train.grad_clip", 0.05, LEARNING, ("train.optimizer.eps=0.001",)),
    ),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    train = {"checkpoint_every": 0, "keep_last": 9, "compile": False}
    attention = {"every": 0, "max_tokens": 12}
    evaluation = {"every": 4, "sample_tokens": 6, "max_tokens": 128, "final_max_tokens": 128, "attention": attention}
    return write_config(tmp_path_factory.mktemp("train"), train=train, eval=evaluation)


@pytest.fixture(scope="module")
def run(tiny):
    return partial(observed_run, tiny, folder=tiny.parent / "runs")


@pytest.fixture(scope="module")
def baseline(run):
    return cache(lambda given: run(list(given)))


@shows(*keys_of(CHANGES))
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_it_changes_the_run(run, baseline, change):
    change.check(baseline(change.given), run(change.overrides))


@shows("train.max_minutes")
def test_under_max_minutes_the_clock_decides(tiny, run):
    """However quick the machine: so short a time is over after the first step."""
    config = load_run_config(tiny, ["train.max_steps=null", "train.max_minutes=2"])
    assert config.progress(step=5, seconds=30) == 0.25
    assert run(["train.max_steps=null", "train.max_minutes=1e-6"])["steps"] == [1]


@shows("train.skip_non_finite")
def test_so_many_non_finite_steps_are_skipped(run):
    blown_up = ["train.optimizer.lr=1e30", "train.max_steps=5"]
    assert len(run(blown_up, code=3)["skipped"]) == 1
    found = run([*blown_up, "train.skip_non_finite=9"])
    assert found["steps"] == [5]
    assert len(found["skipped"]) > 1


@pytest.mark.slow
@shows("train.compile")
def test_compile(tiny, monkeypatch):
    """Traced by torch.compile itself; only what would turn the trace into machine code is left out, for time."""
    import torch._dynamo.utils as dynamo

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    dynamo.counters.clear()
    pretrain(tiny, "name=plain", "train.max_steps=1", "train.compile=false")
    assert not dynamo.counters["stats"]["unique_graphs"]
    pretrain(tiny, "name=compiled", "train.max_steps=1", "train.compile=true")
    assert dynamo.counters["stats"]["unique_graphs"]


@shows("train.processes")
def test_processes(tiny):
    done = pretrain(tiny, "name=two", "train.processes=2", "train.max_steps=2", "eval.every=0")
    assert "(8 rows of 32, 4 at a time)" in done.stdout
    assert "2 processes of 1 thread each" in done.stdout


@shows("train.device")
def test_device(tiny, monkeypatch):
    """One that is missing is refused; one that PyTorch says is there is taken (where it says so)."""
    missing = "mps" if not torch.backends.mps.is_available() else "cuda"
    assert f"train.device is {missing}: not available here" in pretrain(tiny, f"train.device={missing}", code=2).stderr
    assert resolve_device(load_run_config(tiny, ["train.device=cpu"])).device.type == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device(load_run_config(tiny, ["train.device=mps"])).device.type == "mps"


def test_a_precision_that_the_device_lacks_is_refused(tiny):
    done = pretrain(tiny, "train.device=cpu", "train.precision=tf32", code=2)
    assert "train.precision is tf32, which needs CUDA" in done.stderr


def kind_of_model(config_file: Path, parallel: str) -> None:
    """Of each process: writes what holds the parameters, and what training calls."""
    config = load_run_config(config_file, [f"train.parallel={parallel}", "model.vocab_size=192"])
    with processes(config.train.parallel, "cpu") as world:
        device = resolve_device(config)
        lm = build_model(config, device, world, None, None)  # type: ignore[arg-type]
        called = wrap(lm, world, device.device)
        kinds = f"{type(next(lm.parameters())).__name__} {type(called).__name__}"
        config_file.with_name(f"{parallel}{world.rank}").write_text(kinds, encoding="utf-8")
        del called, lm  # DDP must not outlive the processes' connection


@pytest.mark.slow
@shows("train.parallel")
@pytest.mark.parametrize(
    ("parallel", "kinds"), [("ddp", "Parameter DistributedDataParallel"), ("fsdp2", "DTensor FSDPLanguageModel")]
)
def test_parallel(tmp_path, parallel, kinds):
    config = write_config(tmp_path, train={"device": "cpu"})
    assert run_world(2, kind_of_model, config, parallel) == [0, 0]
    assert [(tmp_path / f"{parallel}{rank}").read_text(encoding="utf-8") for rank in (0, 1)] == [kinds, kinds]


@pytest.mark.slow
@shows("tracking.wandb", "tracking.project")
def test_the_project_is_in_what_wandb_would_send(tmp_path):
    """As a protobuf string, its length in front; in quotes it is there as well, in the resolved config."""
    tracking = {"wandb": "offline", "project": "other-project"}
    config = write_config(tmp_path, train={"max_steps": 1}, eval={"every": 0}, tracking=tracking)
    pretrain(config, "name=untracked", "tracking.wandb=disabled")
    assert not (tmp_path / "runs/untracked/wandb").exists()
    pretrain(config)
    (file,) = tmp_path.glob("runs/tiny/wandb/offline-run-*/*.wandb")
    assert bytes([len("other-project")]) + b"other-project" in file.read_bytes()


@shows("tracking.tensorboard")
def test_tensorboard_reads_the_figures_of_the_run(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = write_config(tmp_path, train={"max_steps": 2}, eval={"every": 2})
    pretrain(config, "name=without")
    assert not (tmp_path / "runs/without/tensorboard").exists()
    pretrain(config, "tracking.tensorboard=true")
    found = events.EventAccumulator(str(tmp_path / "runs/tiny/tensorboard")).Reload()
    said = {m["step"]: m["loss"] for m in metrics(tmp_path / "runs/tiny") if m["split"] == "val"}
    assert {one.step: one.value for one in found.Scalars("val/loss")} == pytest.approx(said)


@pytest.mark.slow
def test_online_asks_for_the_network_and_offline_does_not(tmp_path, run, monkeypatch):
    """Without a login, wandb's own refusal is what shows that it was asked to be online."""
    for name in ("HOME", "USERPROFILE", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert run(["train.max_steps=1", "tracking.wandb=offline"])["failures"] == []
    (failure,) = run(["train.max_steps=1", "tracking.wandb=online"])["failures"]
    assert failure.startswith("warning: wandb is off from here")
