"""`auto` resolves by this machine's processor, by train.doctor's findings and by speed."""

import os
import signal
from unittest import mock

import pytest
import torch

from configs.command import usable_cores
from model.backends.choice import choose_device
from tests.processes import exit_code
from tests.train.helpers import pretrain, pretrain_rank, refusal, trace, write_config
from train.config import load_run_config
from train.machine import device
from train.machine.device import Device, fastest_precision, memory_of, resolve_device, set_float32_products

AMD = {"cpu_name": "AMD EPYC", "avx512_bf16": True}


@pytest.fixture(autouse=True)
def processor(monkeypatch):
    """A machine whose processor computes in bf16."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr("train.machine.device.CPU", AMD)


@pytest.fixture
def config(tmp_path):
    return load_run_config(write_config(tmp_path, train={"precision": "auto", "device": "cpu"}))


@pytest.mark.parametrize(
    ("capabilities", "limit", "chosen"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, None, "fp32"),
        (AMD, None, "bf16"),
        (AMD, "AVX2", "fp32"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True}, None, "fp32"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, None, "bf16"),
    ],
)
def test_a_cpu_trains_in_bf16_where_that_was_measured_to_be_faster(monkeypatch, capabilities, limit, chosen):
    monkeypatch.setattr("train.machine.device.CPU", capabilities)
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert fastest_precision("cpu")[0] == chosen


@pytest.fixture
def as_before():
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("capabilities", "writes", "setting"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, False, "medium"),
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, True, "highest"),
        ({"cpu_name": "AMD EPYC", "avx512_f": True, "amx_bf16": True}, False, "highest"),
        ({"cpu_name": "AMD EPYC", "avx2": True}, False, "highest"),
        ({"cpu_name": "Intel Xeon", "avx512_f": True}, False, "highest"),
    ],
)
def test_products_of_float32_are_as_exact_by_the_other_library(monkeypatch, as_before, capabilities, writes, setting):
    monkeypatch.setattr("train.machine.device.CPU", capabilities)
    if setting == "medium" and torch.cpu.get_capabilities().get("amx_bf16"):
        setting = "highest"  # this processor would round, and that is seen
    set_float32_products(Device(torch.device("cpu"), "fp32", False, "sdpa", ()), writes)
    assert torch.get_float32_matmul_precision() == setting
    for rows, inner, columns in ((1, 64, 64), (33, 100, 7), (256, 256, 704), (2048, 128, 384)):
        a = torch.randn(rows, inner)
        b = torch.randn(inner, columns)
        assert ((a @ b).double() - a.double() @ b.double()).abs().max() < 2**-20 * inner
        assert (torch.bmm(a[None], b[None])[0].double() - a.double() @ b.double()).abs().max() < 2**-20 * inner


def test_a_run_leaves_the_products_of_float32_as_they_were(tmp_path, monkeypatch, as_before):
    seen = []
    monkeypatch.setattr(
        "train.pretrain.set_float32_products",
        lambda *args, **options: (torch.set_float32_matmul_precision("high"), seen.append(options)),
    )
    pretrain(write_config(tmp_path, train={"max_steps": 1, "device": "cpu"}))
    assert seen == [{"writes": False}]
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_run_that_has_begun_keeps_what_it_took_but_no_precision_that_this_machine_lacks(config, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: name)
    begun = {"device": "cpu", "precision": "fp32", "attention": "eager", "compile": True}
    device = resolve_device(config, begun)
    assert (device.precision, device.attention, device.compile) == ("fp32", "eager", True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    on_mps = config.model_copy(update={"train": config.train.model_copy(update={"device": "mps"})})
    assert resolve_device(on_mps, {"device": "mps", "precision": "bf16"}).precision == "fp32"


# --------------------------------------------------------------------------------------------------
# memory, peaks


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("train.machine.device.CGROUP_LIMIT", tmp_path / "memory.max")
    assert memory_of("cpu")[1] == "all RAM"
    for text, words in (("max", "all RAM"), ("1000", "the limit of its container")):
        (tmp_path / "memory.max").write_text(f"{text}\n")
        assert memory_of("cpu")[1] == words
    assert memory_of("cpu")[0] == 1000


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_the_quota_of_a_container_counts_as_cores_and_as_threads(tmp_path, monkeypatch, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr("configs.command.CGROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    threads = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    choose_device("cpu")
    assert (usable_cores(), threads) == (cores, [cores])
    monkeypatch.setenv("OMP_NUM_THREADS", "8")  # who says it is meant
    choose_device("cpu")
    assert threads == [cores]


# --------------------------------------------------------------------------------------------------
# `compile: auto`; a compiler that fails, is interrupted or adds up in another order


@pytest.fixture
def pays(monkeypatch):
    """A machine on which compiling twelve steps pays."""
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/c++")
    monkeypatch.setattr(device, "FEW_STEPS", 12)
    monkeypatch.setattr(device, "PAYS_AFTER_MINUTES", {"cpu": 0.0, "cuda": 0.0})


def plain(tmp_path, **train):
    sections = {"train": {"max_steps": 12, "checkpoint_every": 0, **train}, "eval": {"every": 0}}
    return write_config(tmp_path, **sections)


@pytest.mark.parametrize(
    ("kind", "changes", "chosen"),
    [
        ("cpu", ["train.max_steps=2000"], False),  # a minute
        ("cpu", ["train.max_steps=200000"], True),
        ("cpu", ["train.max_steps=null", "train.max_minutes=14"], False),
        ("cpu", ["train.max_steps=null", "train.max_minutes=16"], True),
        ("cuda", ["train.max_steps=500"], False),
        ("cuda", ["train.max_steps=20000"], True),
        ("mps", ["train.max_steps=200000"], False),
    ],
)
def test_auto_compiles_what_is_long_enough_to_pay_for_it(tmp_path, monkeypatch, kind, changes, chosen):
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/c++")
    monkeypatch.setattr("train.machine.device.find_spec", lambda name: name)
    config = load_run_config(plain(tmp_path), changes)
    assert device.pays_to_compile(config, kind, "fp32")[0] == chosen
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert kind != "cpu" or device.pays_to_compile(config, kind, "fp32")[0] is False


def test_a_compiler_that_is_asked_for_and_missing_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = refusal(plain(tmp_path, compile=True))
    assert "compile true needs the C++ compiler no-such-compiler, which is not installed" in said
    assert "compile off" in pretrain(plain(tmp_path, max_steps=1)).stdout  # auto


def test_control_c_while_compiling_stops_the_run_and_is_not_a_failure(tmp_path, pays, monkeypatch):
    def interrupted(model, dynamic):
        def forward(*inputs):
            os.kill(os.getpid(), signal.SIGINT)
            raise RuntimeError("the compiler's process has ended")

        return forward

    monkeypatch.setattr(torch, "compile", interrupted)
    done = pretrain(plain(tmp_path, compile=True), code=130)
    assert "stopped at step 0" in done.stdout
    assert "failed" not in done.stdout + done.stderr


def test_a_compiler_that_fails_is_an_error_only_where_it_was_asked_for(tmp_path, pays, monkeypatch):
    broken = mock.Mock(side_effect=RuntimeError("no such instruction"))
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: broken)
    assert "RuntimeError: no such instruction" in pretrain(plain(tmp_path, compile=True), code=1).stderr
    assert "compile is off: it failed here (RuntimeError: no such instruction)" in pretrain(plain(tmp_path)).stdout


def compiled_on_two_threads(config, name):
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(2)
    pretrain_rank(config, [f"name={name}", "train.compile=true", "train.processes=1"])


@pytest.mark.slow
def test_two_threads_add_up_in_the_same_order_in_compiled_runs_too(tmp_path):
    config = plain(tmp_path, trace=True, tokens_per_step=2048, max_steps=30)
    for name in ("one", "two"):
        assert exit_code(compiled_on_two_threads, config, name) == 0, config.with_name("rank0.txt").read_text()
    assert "compiled in" in config.with_name("rank0.txt").read_text()
    assert trace(tmp_path / "runs/one") == trace(tmp_path / "runs/two")
