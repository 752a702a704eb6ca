"""Which records does a dataset of the Hugging Face Hub hold, or a local folder that `datasets` can read?"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from configs.command import InputError
from data.config import HubSource
from data.reading.files import Record, rows_of

RETRIES = re.compile(r"\bretr(y|ies|ying)\b|thrown while requesting", re.IGNORECASE)  # what the libraries log
ROWS = 1000  # rows taken from the dataset at a time


def records(source: HubSource, split: str) -> Iterator[Record]:
    """Every row of a split, in order. Raises InputError if the Hub cannot be reached (its library retries five times)
    or has no such dataset, subset or split."""
    import datasets

    with _clear_errors(source, split):
        rows = datasets.load_dataset(
            source.name,
            source.subset,
            split=split,
            data_files=source.data_files,
            revision=source.revision,
            streaming=source.streaming,
        )
        number = 0
        for table in rows.with_format("arrow").iter(batch_size=ROWS):
            for row in rows_of(table):
                number += 1
                yield Record(f"{source.name} ({split}), row {number}", row)


def count_rows(source: HubSource, split: str) -> int | None:
    """Rows of a split, if that is known without reading them."""
    with _clear_errors(source, split):
        known = _builder(source).info.splits or {}
        return known[split].num_examples if split in known else None


def identity(source: HubSource) -> str:
    """Changes when the dataset's files change: a hash of the commit on the Hub, or of the local files' dates."""
    with _clear_errors(source, source.split):
        return _builder(source).hash


def _builder(source: HubSource) -> Any:
    import datasets

    return datasets.load_dataset_builder(
        source.name, source.subset, data_files=source.data_files, revision=source.revision
    )


@contextmanager
def _clear_errors(source: HubSource, split: str) -> Iterator[None]:
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        with _retries_in_one_line():
            yield
    except Exception as error:  # the libraries beneath raise whatever they like
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = ""
        if "save_to_disk" in reason:  # their remedy is Python
            reason, remedy = "save_to_disk wrote this folder", f": read it as files (data.source={source.name[:100]})"
        elif isinstance(error, ConnectionError):
            remedy = ": check the network and HF_HUB_OFFLINE, or give local files (data.source.kind=files)"
        raise InputError(
            f"data.source: cannot read {source.name[:100]} ({split[:100]}) from the Hugging Face Hub: "
            f"{reason[:300]}{remedy}"
        ) from None


@contextmanager
def _retries_in_one_line() -> Iterator[None]:
    """While inside, a single line takes the place of all that the libraries log about their retries."""
    shown = False

    def is_shown(record: logging.LogRecord) -> bool:
        nonlocal shown
        if not RETRIES.search(record.getMessage()):
            return True
        if not shown:
            print("the Hugging Face Hub does not answer; trying again …", file=sys.stderr, flush=True)
        shown = True
        return False

    handlers = [one for name in ("huggingface_hub", "datasets") for one in logging.getLogger(name).handlers]
    for handler in handlers:
        handler.addFilter(is_shown)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_shown)
