"""Random runs, each killed four times at random moments, end as the runs that nobody killed: a few of the trials of
`python -m tests.train.trials`, which runs hundreds."""

import sys
from dataclasses import replace
from signal import SIGKILL, SIGTERM

import pytest

from tests.train.trials.lives import End
from tests.train.trials.settings import draw
from tests.train.trials.trial import attempt, undisturbed

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs timers of the kernel")

SHARE = 3  # trials of one setting
QUICK, SLOW = 1, 5  # settings
CAREFUL = {  # which kills, one after the other; `at` 0 is the beginning of it, 1 its end
    "a signal before an evaluation, a kill after it": [
        End(SIGTERM, "evaluate", at=0, entry=2),
        End(SIGKILL, "evaluate", at=1, entry=1),
        End(SIGTERM, "evaluate", at=0, entry=1),
        End(SIGKILL, "save", at=1, entry=1),
        End(SIGKILL, "evaluate", at=1, entry=2),
    ],
    "the same before the first step": [
        End(SIGTERM, "evaluate", at=0, entry=1),
        End(SIGKILL, "evaluate", at=1, entry=1),
        End(SIGTERM, "evaluate", at=1, entry=1),
        End(SIGKILL, "save", at=0, entry=2),
    ],
    "kills around the evaluation at the end": [
        End(SIGKILL, "save", at=1, entry=3),
        End(SIGTERM, "evaluate", at=0, entry=0, steps=99),
        End(SIGKILL, "evaluate", at=1, entry=0, steps=99),
        End(SIGKILL, "evaluate", at=1, entry=0, steps=99),
        End(SIGKILL, "complete", at=1, steps=99),
    ],
}


@pytest.fixture(scope="module")
def careful(tmp_path_factory):
    """A run that evaluates, looks at its heads and saves at other steps each, undisturbed."""
    drawn = draw(1, 3)
    train = {"max_steps": 13, "max_tokens": None, "checkpoint_every": 3, "log_every": 1, "keep_last": 2}
    values = drawn.values | {
        "train": drawn.values["train"] | train,
        "eval": {"every": 4, "sample_tokens": 2, "attention": {"every": 5, "early": [1], "max_tokens": 8}},
    }
    setting = replace(drawn, values=values, threads=1, draws=False)
    return setting, undisturbed(setting, tmp_path_factory.mktemp("careful") / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", CAREFUL)
def test_nothing_is_missing_and_nothing_is_there_twice_after(name, careful, tmp_path):
    trial = attempt(0, 0, *careful, tmp_path / "trial", CAREFUL[name])
    assert not trial.problem
    assert len(trial.ends) >= len(CAREFUL[name])
    assert not any("late" in end for end in trial.ends)


@pytest.mark.parametrize(
    "setting", [n if n < QUICK else pytest.param(n, marks=pytest.mark.slow) for n in range(QUICK + SLOW)]
)
def test_killed_four_times_at_random_it_ends_as_the_run_that_nobody_killed(tmp_path, setting):
    drawn = draw(1, setting)
    whole = undisturbed(drawn, tmp_path / "whole")
    trials = [attempt(setting * SHARE + n, 1, drawn, whole, tmp_path / f"trial-{n}") for n in range(SHARE)]
    assert [str(trial) for trial in trials if trial.problem] == []
    assert all(trial.ends and trial.resumed for trial in trials)
