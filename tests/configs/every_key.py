"""What the tests of test_every_key_*.py share: the keys that there are, which of them have a case, and what differs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import torch
from pydantic import BaseModel
from pydantic.fields import FieldInfo

SHOWN: dict[str, str] = {}  # key -> the test that shows what it does


def shows(*keys: str) -> Callable:
    """Marks the test that shows what these keys do."""

    def note(test: Callable) -> Callable:
        for key in keys:
            assert SHOWN.setdefault(key, test.__name__) == test.__name__, f"{key} is shown by {SHOWN[key]} already"
        return test

    return note


def all_keys(schema: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key that holds a value, with its field: `train.optimizer.lr`. A list or an optional section is a value too.

    Of a union each kind counts by itself: `data.source.files.path`; but for `data.source.kind`, which all have.
    """
    for name, field in schema.model_fields.items():
        path, members = prefix + name, list(_models_in(field.annotation))
        if not members or type(None) in get_args(field.annotation) or get_origin(field.annotation) is list:
            yield path, field
        for member in members:
            kind = f"{_kind(member)}." if len(members) > 1 else ""
            for inner, inner_field in all_keys(member, f"{path}.{kind}"):
                yield inner.replace(f"{path}.{kind}kind", f"{path}.kind"), inner_field


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _kind(member: type[BaseModel]) -> str:
    (kind,) = get_args(member.model_fields["kind"].annotation)
    return kind


@dataclass(frozen=True)
class Change:
    """key=value changes what is `seen`, and nothing else that is looked at. given: overrides on both sides.

    seen: names of aspects, with commas; one with a question mark may change or not.
    """

    key: str
    value: Any
    seen: str
    given: tuple[str, ...] = ()

    @property
    def override(self) -> str:
        in_yaml = re.sub(r"(source)\.(storyworld|files|hub|mix)\.", r"\1.", self.key)
        return f"{in_yaml}={json.dumps(self.value, ensure_ascii=False)}"

    @property
    def surely(self) -> set[str]:
        return {aspect for aspect in self.seen.split(", ") if not aspect.endswith("?")}

    @property
    def perhaps(self) -> set[str]:
        return {aspect.rstrip("?") for aspect in self.seen.split(", ")}


@dataclass(frozen=True)
class Changes:
    """Keys that are changed at once, for time. Each must change something that no other one of them can change."""

    changes: tuple[Change, ...]

    def __post_init__(self) -> None:
        for change in self.changes:
            others = {aspect for other in self.changes if other is not change for aspect in other.perhaps}
            assert change.surely - others, f"{change.key}: what it changes could be the work of another key"

    @property
    def keys(self) -> list[str]:
        return [change.key for change in self.changes]

    @property
    def given(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(override for change in self.changes for override in change.given))

    @property
    def overrides(self) -> list[str]:
        return [*self.given, *(change.override for change in self.changes)]

    def check(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        found = differing(before, after)
        for change in self.changes:
            assert change.surely <= found, f"{change.key}: changed {sorted(found)}, expected {change.seen}"
        allowed = set().union(*(change.perhaps for change in self.changes))
        assert found <= allowed, f"{self}: changed {sorted(found)}, expected {sorted(allowed)}"

    def __str__(self) -> str:
        return " + ".join(self.keys)


def together(*changes: Change) -> Changes:
    return Changes(changes)


def each(changes: Iterable[Change]) -> list[Changes]:
    """Every change by itself."""
    return [Changes((change,)) for change in changes]


def keys_of(groups: Iterable[Changes]) -> list[str]:
    return [key for group in groups for key in group.keys]


def differing(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """The aspects in which two observations differ; of figures by step, those of the steps that both have."""
    assert before.keys() == after.keys()
    return {aspect for aspect in before if not _alike(before[aspect], after[aspect])}


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5)
    if isinstance(a, dict) and isinstance(b, dict) and all(isinstance(key, int) for key in (*a, *b)):
        return all(_alike(a[step], b[step]) for step in a.keys() & b.keys())
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-4)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    return bool(a == b)
