"""Which records does a dataset of the Hugging Face Hub hold, or a local folder that `datasets` can read?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from configs.command import InputError
from data.config import HubSource
from data.reading.files import ROWS, Record, rows_of


def records(source: HubSource, split: str) -> Iterator[Record]:
    """Every row of a split, in order. Raises InputError if the Hub cannot be reached (its library retries five times)
    or has no such dataset, subset or split."""
    with _clear_errors(source, split) as datasets:
        rows = datasets.load_dataset(**_named(source), split=split, streaming=source.streaming)
        number = 0
        for table in rows.with_format("arrow").iter(batch_size=ROWS):
            for row in rows_of(table):
                number += 1
                yield Record(f"{source.name} ({split}), row {number}", row)


def count_rows(source: HubSource, split: str) -> int | None:
    """Rows of a split, if that is known without reading them."""
    with _clear_errors(source, split) as datasets:
        known = datasets.load_dataset_builder(**_named(source)).info.splits or {}
        return known[split].num_examples if split in known else None


def identity(source: HubSource) -> str:
    """Changes when the dataset's files change: a hash of the commit on the Hub, or of the local files' dates."""
    with _clear_errors(source, source.split) as datasets:
        return datasets.load_dataset_builder(**_named(source)).hash


def _named(source: HubSource) -> dict[str, Any]:
    return {
        "path": source.name,
        "name": source.subset,
        "data_files": source.data_files,
        "revision": source.revision,
    }


@contextmanager
def _clear_errors(source: HubSource, split: str) -> Iterator[Any]:
    """The library; whatever it and the libraries beneath it raise becomes one line."""
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield datasets
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = ""
        if "save_to_disk" in reason:  # their remedy is Python
            reason, remedy = "save_to_disk wrote this folder", f": read it as files (data.source={source.name})"
        elif isinstance(error, ConnectionError):
            remedy = ": check the network and HF_HUB_OFFLINE, or give local files (data.source.kind=files)"
        raise InputError(
            f"data.source: cannot read {source.name} ({split}) from the Hugging Face Hub: {reason[:300]}{remedy}"
        ) from None
