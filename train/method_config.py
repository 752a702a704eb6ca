"""The sections of the methods that come after pretraining. Each is null, which is off, or holds the method's keys.

A method adds its section here, its defaults to configs/base.yaml (null), and its page to train/documentation.py.
"""

from __future__ import annotations

from configs.run_keys import RunKeys


class Methods(RunKeys):
    """What RunConfig (train/config.py) inherits."""
