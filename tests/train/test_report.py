"""report.md's last line: which code made the run."""

import subprocess

from tests.train.helpers import REPOSITORY
from train import report


def test_the_commit_is_that_of_headlights_own_repository(tmp_path, monkeypatch):
    asked = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    head = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    told = report.commit()
    assert told == "" or head.startswith(told[7:14])  # "" in a copy without .git
    monkeypatch.setattr(report, "__file__", str(tmp_path / "train/report.py"))
    assert report.commit() == ""  # installed
