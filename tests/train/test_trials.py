"""Random runs, each killed four times at random moments, end as the runs that nobody killed: a few of the trials of
`python -m tests.train.trials`, which runs hundreds."""

import sys

import pytest

from tests.train.trials.settings import draw
from tests.train.trials.trial import attempt, undisturbed

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs timers of the kernel")

SHARE = 3  # trials of one setting
QUICK, SLOW = 2, 10  # settings


@pytest.mark.parametrize(
    "setting", [n if n < QUICK else pytest.param(n, marks=pytest.mark.slow) for n in range(QUICK + SLOW)]
)
def test_killed_four_times_at_random_it_ends_as_the_run_that_nobody_killed(tmp_path, setting):
    drawn = draw(1, setting)
    whole = undisturbed(drawn, tmp_path / "whole")
    trials = [attempt(setting * SHARE + n, 1, drawn, whole, tmp_path / f"trial-{n}") for n in range(SHARE)]
    assert [str(trial) for trial in trials if trial.problem] == []
    assert all(trial.ends and trial.resumed for trial in trials)
