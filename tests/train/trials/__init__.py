"""Does a run that is killed end as the run that never was? Hundreds of trials: `python -m tests.train.trials`."""
