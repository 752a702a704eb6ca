"""Freed memory stays with the process: seen by the page faults of a process that asks for the same block again."""

import subprocess
import sys

import pytest

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
