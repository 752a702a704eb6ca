"""What was read so far, and what was wrong with it?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from configs.command import InputError
from data.reading.pairs import Pair
from data.reading.records import Conversation

Split = Literal["train", "validation"]
LISTED = 1000  # bad records that are listed one by one
FEW = 1000  # records after which a share of bad ones means something


class Document(NamedTuple):
    """A text or a conversation of one split. A very long text comes in pieces: `first` and `last` are its ends."""

    content: str | Conversation | Pair
    split: Split
    where: str
    number: int  # the fingerprint of the content
    first: bool = True
    last: bool = True

    @property
    def size(self) -> int:
        """Characters, about."""
        return len(self.content) if isinstance(self.content, str) else len(repr(self.content))


@dataclass
class Ledger:
    """What was read: records, empty texts, exact duplicates, and what could not be read and where. Progress is
    done / total, in bytes of the files or in records; total None = unknown."""

    records: int = 0
    empty: int = 0
    duplicates: int = 0
    bad: int = 0
    bad_records: list[str] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)  # of a mix: what each one gave
    left_out: list[str] = field(default_factory=list)  # files of a folder that are not read, and why
    unseparated: int = 0  # plain text files that are one document and have blank lines
    unit: str = "records"
    done: int = 0
    total: int | None = None

    def advance(self, count: int, unit: str) -> None:
        """Count what was read, if progress is counted in this unit."""
        self.done += count * (unit == self.unit)

    def note_bad(self, where: str, reason: str, skip: bool) -> None:
        """Count a bad record. Raises InputError unless they are to be skipped and are at most 1 %."""
        if not skip:
            raise InputError(f"{where}: {reason} (or leave such records out: data.on_bad_record=skip)")
        self.bad += 1
        if len(self.bad_records) < LISTED:
            self.bad_records.append(f"{where}: {reason}")
        self.check_share(at_least=FEW)

    def check_share(self, at_least: int = 0) -> None:
        """Raises InputError if more than 1 % of the records are bad, once there are enough of them to tell."""
        if self.bad > 0.01 * self.records and self.records >= at_least:
            shown = "; ".join(self.bad_records[:3])
            raise InputError(
                f"data.source: {self.bad:,} of {self.records:,} records cannot be used, more than 1 %: {shown}"
                f"{'; …' if self.bad > 3 else ''}: repair them, or name other files (data.source.path)"
            )
