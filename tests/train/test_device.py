"""What `auto` stands for on this machine: what its processor says, and what train.doctor found safe."""

import json
import os
import platform
import subprocess
import sys

import pytest
import torch

from tests.train.helpers import REPOSITORY, write_config
from train.config import load_run_config
from train.device import known_faults, known_peak, memory_of, remember_faults, resolve_device, resolve_precision

AMD = {"cpu_name": "AMD EPYC", "avx512_bf16": True}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A machine of which nothing is known, and whose processor computes in bf16."""
    monkeypatch.setenv("HEADLIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: AMD)
    return tmp_path / "cache"


@pytest.fixture
def config(tmp_path):
    return load_run_config(write_config(tmp_path, train={"precision": "auto", "device": "cpu"}))


@pytest.mark.parametrize(
    ("capabilities", "limit", "chosen"),
    [
        ({}, None, "fp32"),
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, None, "fp32"),
        (AMD, None, "bf16"),
        (AMD, "AVX2", "fp32"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True}, None, "fp32"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, None, "bf16"),
    ],
)
def test_a_cpu_trains_in_bf16_where_that_was_measured_to_be_faster(monkeypatch, capabilities, limit, chosen):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert resolve_precision("auto", "cpu")[0] == chosen
    assert resolve_precision("fp32", "cpu") == ("fp32", "asked for")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the limits are those of oneDNN on x86")
def test_a_processor_without_bf16_trains_in_fp32_whatever_it_is_called(tmp_path):
    """oneDNN and PyTorch are kept to AVX2: bf16 is emulated, many times slower."""
    config = write_config(tmp_path, train={"precision": "auto", "max_steps": 1})
    limits = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "train.pretrain", str(config)]
    done = subprocess.run(command, env=os.environ | limits, cwd=REPOSITORY, capture_output=True, encoding="utf-8")
    assert "precision fp32 (auto: ONEDNN_MAX_CPU_ISA=AVX2)" in done.stdout, done.stderr


# ---------------------------------------------------------------------------------------------------------
# faults


def test_auto_takes_what_is_left_and_says_why(config):
    assert (resolve_device(config).precision, resolve_device(config).attention) == ("bf16", "blocked")
    remember_faults({"attention cpu blocked bf16": "differed"})
    device = resolve_device(config)
    assert (device.precision, device.attention) == ("bf16", "sdpa")
    assert "not blocked: differed (train.doctor, 20" in "; ".join(device.notes)
    remember_faults({"precision cpu bf16": "raised", "compile cpu": "no such instruction"})
    device = resolve_device(config)
    assert (device.precision, device.attention) == ("fp32", "sdpa")
    assert "not bf16: raised (train.doctor, 20" in "; ".join(device.notes)
    remember_faults({"precision cpu bf16": "raised", "attention cpu sdpa fp32": "is not there"})
    assert resolve_device(config).attention == "eager"


def test_a_gpu_that_computes_nothing_right_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    remember_faults({"device cuda": "no kernel image"})
    device = resolve_device(load_run_config(write_config(tmp_path)))
    assert device.device.type == "cpu"
    assert "device cpu (auto: not cuda: no kernel image (train.doctor, 20" in device.notes[0]


def test_a_run_that_has_begun_keeps_what_it_took(config):
    remember_faults({"attention cpu blocked bf16": "differed", "precision cpu bf16": "raised"})
    begun = {"device": "cpu", "precision": "bf16", "attention": "blocked", "compile": False}
    device = resolve_device(config, begun)
    assert (device.precision, device.attention, device.compile) == ("bf16", "blocked", False)


@pytest.mark.parametrize("damage", ["", "[1]", '{"precision cpu bf16": 3}'])
def test_a_damaged_file_knows_nothing_and_one_that_cannot_be_written_stops_nothing(cache, damage):
    remember_faults({"compile cpu": "no"})
    (file,) = cache.iterdir()
    assert list(json.loads(file.read_text())) == list(known_faults()) == ["compile cpu"]
    file.write_text(damage)
    assert known_faults() == {}
    file.unlink()
    file.mkdir()
    remember_faults({"compile cpu": "no"})
    assert known_faults() == {}


@pytest.mark.parametrize(
    ("place", "name", "other"),
    [(torch, "__version__", "3.0.0"), (torch.cpu, "get_capabilities", lambda: {"cpu_name": "another"})],
)
def test_another_machine_or_version_knows_nothing_of_this_one(monkeypatch, place, name, other):
    remember_faults({"compile cpu": "no"})
    monkeypatch.setattr(place, name, other)
    assert known_faults() == {}


# ---------------------------------------------------------------------------------------------------------
# memory, peaks


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("train.device.CGROUP", tmp_path)
    assert memory_of("cpu")[1] == "all RAM"
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("9000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_of("cpu") == (9000, "the limit of its container")
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory_of("cpu")[0] == 1000


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("Tesla T4", 65),
        ("NVIDIA L40S", None),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_peaks_by_name(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    found = known_peak(torch.device("cuda"), torch.bfloat16)
    assert found == (peak and (peak, name))
