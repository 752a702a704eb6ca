"""Random runs, each killed four times at random moments, end as the runs that nobody killed: the first of the trials of
`python -m tests.train.trials`, which runs hundreds."""

import os

import pytest

from tests.train.trials import attempt

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
QUICK, ALL = 1, 30


@pytest.mark.parametrize("n", [n if n < QUICK else pytest.param(n, marks=pytest.mark.slow) for n in range(ALL)])
def test_killed_four_times_at_random_it_ends_as_the_run_that_nobody_killed(tmp_path, n):
    assert attempt(0, n, tmp_path / "trial").startswith("equal after")


@pytest.mark.slow
def test_the_same_under_compile(tmp_path):
    assert attempt(0, 0, tmp_path / "trial", compiled=True).startswith("equal after")
