"""report.md's last line: which code made the run."""

import subprocess

from tests.train.helpers import REPOSITORY
from train import report


def test_the_commit_is_that_of_headlights_own_repository(tmp_path, monkeypatch):
    asked = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    head = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    if head:  # "" in a copy without .git, where the report can name none
        told = report.commit()
        assert told.startswith("commit ")
        assert head.startswith(told[7:14])
    else:
        assert report.commit() == ""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)  # somebody else's, into which it is installed
    (tmp_path / "train").mkdir()
    monkeypatch.setattr(report, "__file__", str(tmp_path / "train/report.py"))
    assert report.commit() == ""
    monkeypatch.setenv("PATH", "")
    assert report.commit() == ""
