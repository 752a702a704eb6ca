"""What the machine has and what it showed: `auto` takes what was measured here and what train.doctor found safe."""

import os
import platform
import subprocess
import sys
import time

import pytest
import torch

from tests.train.helpers import REPOSITORY, pretrain, write_config
from train.config import load_run_config
from train.machine import compilation, hardware, machine_cache
from train.machine.device import resolve_device, resolve_precision
from train.machine.machine_cache import Findings, bf16_speed, recall, remember


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A machine of which nothing is known."""
    monkeypatch.setenv("HEADLIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def known(**found) -> None:
    remember(Findings(**{"bf16_speed": 2.0, "checked": "2026-11-22", **found}))


@pytest.mark.parametrize(
    ("speed", "chosen"),
    [
        (1.4, ("bf16", "auto: 1.4 × as fast as fp32 in a trial on this CPU")),
        (1.05, ("fp32", "auto: bf16 is only 1.1 × as fast in a trial on this CPU")),
        (0.0, ("fp32", "auto: bf16 is only 0 × as fast in a trial on this CPU")),
    ],
)
def test_a_cpu_is_measured_once_and_its_speed_decides(monkeypatch, speed, chosen):
    measured = []
    monkeypatch.setattr(machine_cache, "_measured_speed", lambda: measured.append(1) or speed)
    assert resolve_precision("auto", "cpu") == chosen
    assert resolve_precision("auto", "cpu") == chosen
    assert measured == [1]
    assert resolve_precision("fp32", "cpu") == ("fp32", "asked for")


def test_the_trial_is_real_and_leaves_everything_as_it_was(cache):
    torch.set_num_threads(2)
    try:
        before = torch.get_rng_state()
        assert bf16_speed() > 0
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    (file,) = cache.iterdir()
    assert recall().bf16_speed == bf16_speed() == Findings.model_validate_json(file.read_text()).bf16_speed


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the limits are those of oneDNN on x86")
def test_a_processor_without_bf16_trains_in_fp32_whatever_it_is_called(tmp_path):
    """oneDNN and PyTorch are kept to AVX2: bf16 is emulated, many times slower."""
    config = write_config(tmp_path, train={"precision": "auto", "max_steps": 1})
    limits = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "train.pretrain", str(config)]
    done = subprocess.run(command, env=os.environ | limits, cwd=REPOSITORY, capture_output=True, encoding="utf-8")
    assert "precision fp32 (auto: bf16 is only 0." in done.stdout, done.stderr


@pytest.mark.parametrize("damage", ["", '{"bf16_speed": -1}'])
def test_a_damaged_file_is_measured_again(cache, monkeypatch, damage):
    monkeypatch.setattr(machine_cache, "_measured_speed", lambda: 3.0)
    known()
    (file,) = cache.iterdir()
    file.write_text(damage)
    assert recall() == Findings()
    assert bf16_speed() == 3.0
    assert recall().bf16_speed == 3.0


def test_a_folder_that_cannot_be_written_stops_nothing(cache, monkeypatch):
    cache.write_text("a file stands where the folder should be")
    monkeypatch.setattr(machine_cache, "_measured_speed", lambda: 3.0)
    assert resolve_precision("auto", "cpu")[0] == "bf16"
    assert recall() == Findings()


@pytest.mark.parametrize(
    ("place", "name", "other"),
    [
        (torch, "__version__", "3.0.0"),
        (machine_cache, "cpu_kernels", lambda: "VSX"),
        (machine_cache, "cpu_capabilities", lambda: {"cpu_name": "another"}),
    ],
)
def test_another_machine_or_version_knows_nothing_of_this_one(monkeypatch, place, name, other):
    known(faults={"compile cpu": "no"})
    monkeypatch.setattr(place, name, other)
    assert recall() == Findings()


# ---------------------------------------------------------------------------------------------------------
# faults


def test_auto_takes_what_is_left_and_says_why(tmp_path):
    config = load_run_config(write_config(tmp_path, train={"precision": "auto", "device": "cpu"}))
    known()
    assert (resolve_device(config).precision, resolve_device(config).attention) == ("bf16", "blocked")
    known(faults={"attention cpu blocked bf16": "differed"})
    device = resolve_device(config)
    assert (device.precision, device.attention) == ("bf16", "sdpa")
    assert "not blocked: differed (train.doctor, 2026-11-22)" in "; ".join(device.notes)
    known(faults={"precision cpu bf16": "raised"})
    device = resolve_device(config)
    assert (device.precision, device.attention) == ("fp32", "sdpa")
    assert "not bf16: raised (train.doctor, 2026-11-22)" in "; ".join(device.notes)
    known(faults={"precision cpu bf16": "raised", "attention cpu sdpa fp32": "is not there"})
    assert resolve_device(config).attention == "eager"


def test_a_gpu_that_computes_nothing_right_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = load_run_config(write_config(tmp_path))
    known(faults={"device cuda": "no kernel image"})
    device = resolve_device(config)
    assert device.device.type == "cpu"
    assert "device cpu (auto: not cuda: no kernel image (train.doctor, 2026-11-22))" in device.notes


def test_a_compiler_that_failed_is_not_tried_again(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/c++")
    assert compilation._cannot_compile("cpu") == ""
    known(faults={"compile cpu": "no such instruction"})
    assert compilation._cannot_compile("cpu") == "no such instruction (train.doctor, 2026-11-22)"


def test_a_run_that_has_begun_keeps_what_it_took(tmp_path):
    config = load_run_config(write_config(tmp_path, train={"precision": "auto", "device": "cpu"}))
    known(faults={"attention cpu blocked bf16": "differed", "precision cpu bf16": "raised"})
    begun = {"device": "cpu", "precision": "bf16", "attention": "blocked", "compile": False}
    device = resolve_device(config, begun)
    assert (device.precision, device.attention, device.compile) == ("bf16", "blocked", False)


def test_a_real_run_resumes_exactly_though_the_machine_was_measured_again(tmp_path):
    known(bf16_speed=2.0)
    config = write_config(tmp_path, train={"precision": "auto", "max_steps": 4, "schedule": "constant"})
    assert "precision bf16" in pretrain(config).stdout
    known(bf16_speed=0.5)
    said = pretrain(config, "train.max_steps=6").stdout
    assert "precision bf16 (auto: as this run began); attention blocked (auto: as this run began)" in said
    assert "exact until" not in said


# ---------------------------------------------------------------------------------------------------------
# other programs, memory


def test_what_other_programs_use_is_seen():
    until = time.monotonic() + 20
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        while hardware.share_of_others() < 0.7 and time.monotonic() < until:
            pass
        assert hardware.share_of_others() >= 0.6
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_the_limit_of_a_container_counts_at_every_level(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/memory.max").write_text("max\n")
    (tmp_path / "a/memory.max").write_text("1000\n")
    (tmp_path / "memory/docker").mkdir(parents=True)
    (tmp_path / "memory/docker/memory.limit_in_bytes").write_text("9000\n")
    groups = tmp_path / "cgroup"
    groups.write_text("0::/a/b\n7:cpu:/x\n6:memory:/docker\n")
    assert hardware.container_limits(groups, tmp_path) == [1000, 9000]
    assert hardware.container_limits(tmp_path / "none", tmp_path) == []


# freed memory stays with the process: seen by the page faults of a process that asks for the same block again
FAULTS = """
import resource, sys, torch
from train.machine.device import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    print("not here"); sys.exit()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): torch.zeros(16_000_000).add_(1)  # 64 MB; the heap grows a few times until such a block fits
before = faults()
for _ in range(5): torch.zeros(16_000_000).add_(1)
print(faults() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_freed_block_is_used_again_without_a_page_fault():
    def faults(how):
        done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    if (kept := faults("kept")) == "not here":
        pytest.skip("another C library")
    assert int(kept) < 100
    assert int(faults("given back")) > 1000
