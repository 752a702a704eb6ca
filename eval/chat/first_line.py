"""What could you type to a run that continues texts? Something from the world that it was trained on."""

from __future__ import annotations

from pathlib import Path

from configs.files import checkpoint_directory
from eval.run_files import SAMPLES, read_samples

WORDS = 6
MOST = 60  # characters; Chinese has no spaces


def first_line(run: str | Path) -> str:
    """The prompt of the run's newest sample, or the first words of it; "" where a directory has no samples."""
    directory = checkpoint_directory(run)
    for folder in (directory, *directory.parents[:2]):
        if (folder / SAMPLES).is_file():
            lines = read_samples(folder, lambda problem: None)
            newest = lines[-1] if lines else {"prompt": "", "text": ""}
            words = (newest["prompt"] or newest["text"]).split()
            return " ".join(words if newest["prompt"] else words[:WORDS])[:MOST].strip()
    return ""
