"""Every number has two ends: those of all config sections, and those of all command lines."""

import argparse
import math
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from configs.bounds import number, numbers, whole
from configs.command import InputError
from configs.loader import load_config, validate
from configs.meaning import Section
from train.config import RunConfig

COMMANDS = [  # every module that makes an ArgumentParser
    path.relative_to(Path()).with_suffix("").as_posix().replace("/", ".")
    for room in ("model", "data", "eval", "train", "serve", "benchmarks", "notebooks")
    for path in sorted(Path(room).rglob("*.py"))
    if re.search(r"ArgumentParser\(|parse_command_line\(\"", path.read_text(encoding="utf-8"))
]


def open_ended(schema: Any, path: str = "") -> Iterator[str]:
    """Where a JSON Schema takes a number without a smallest or a largest value."""
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number") and not {"enum", "const"} & schema.keys():
            ends = [schema.get("minimum", schema.get("exclusiveMinimum"))]
            ends += [schema.get("maximum", schema.get("exclusiveMaximum"))]
            if any(end is None or not math.isfinite(end) for end in ends):
                yield path
        for key, value in schema.items():
            yield from open_ended(value, f"{path}.{key}")
    elif isinstance(schema, list):
        for place, value in enumerate(schema):
            yield from open_ended(value, f"{path}.{place}")


def test_every_number_of_a_config_has_two_ends():
    assert list(open_ended(RunConfig.model_json_schema())) == []


def test_a_number_without_an_end_would_be_found():
    class Part(BaseModel):
        bounded: int = Field(1, ge=0, le=3)
        unions: list[int | str] | None = None
        half: float = Field(1.0, gt=0)

    class Whole(BaseModel):
        part: Part | None = None

    assert len(list(open_ended(Whole.model_json_schema()))) == 2


def test_no_section_takes_what_is_no_finite_number():
    class Part(Section):
        number: float = 1.0

    for value in (math.inf, -math.inf, math.nan):
        with pytest.raises(ValueError, match="finite"):
            Part(number=value)


@pytest.mark.parametrize("module", COMMANDS)
def test_every_number_of_a_command_line_has_two_ends(module, monkeypatch):
    """A number is read by one of the functions of configs/bounds.py."""
    given: list[tuple[str, Any]] = []
    add = argparse._ActionsContainer.add_argument

    def noted(self, *names, **options):
        given.append((names[0], options.get("type")))
        return add(self, *names, **options)

    monkeypatch.setattr(argparse._ActionsContainer, "add_argument", noted)
    monkeypatch.setattr("sys.argv", [module, "--help"])
    with pytest.raises(SystemExit):
        import_module(module).main()
    assert [name for name, kind in given if kind in (int, float)] == []


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1e3", "", " ", "nan", "१", "9" * 5000, "1_0", "101", "0x10"])
def test_a_whole_number_out_of_range_is_refused(text):
    with pytest.raises(InputError, match=r"^--x is .*: it must be a whole number from 1 to 100$") as caught:
        whole("--x", 1, 100)(text)
    assert len(str(caught.value)) < 120


def test_numbers_within_the_range_are_read():
    assert [whole("--x", 0, 10**6)(text) for text in ("0", "+7", " 12 ", "1000000")] == [0, 7, 12, 10**6]
    assert [number("--x", 0, 1)(text) for text in ("0", "1e-3", "1")] == [0, 1e-3, 1]
    assert numbers("--x", 0, 9)("0,3, 9") == [0, 3, 9]
    for text in ("nan", "inf", "-inf", "1e308", "-0.1", "", "one"):
        with pytest.raises(InputError, match=r"must be a number from 0 to 1$"):
            number("--x", 0, 1)(text)
    with pytest.raises(InputError, match=r"must be a number above 0 and up to 1"):
        number("--x", 0, 1, above=True)("0")
    with pytest.raises(InputError, match="'x'"):
        numbers("--x", 0, 9)("1,x")


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("model.num_hidden_layers=" + "1" + "0" * 30, "must be less than or equal to 1000"),
        ("model.hidden_size=4000000000", "must be less than or equal to 131072"),
        ("train.max_steps=" + "1" + "0" * 30, "must be less than or equal to 99999999"),
        ("train.max_minutes=.inf", "must be a finite number"),
        ("train.max_tokens=900000000000000", ".900,000,000,000,000. makes 439,453,125,000 steps"),
    ],
)
def test_what_is_out_of_range_is_refused_with_its_key(override, problem):
    key = override.partition("=")[0]
    with pytest.raises(InputError, match=rf"{key.rpartition('.')[2]}.*{problem}"):
        validate(RunConfig, load_config("configs/small.yaml", ["train.max_steps=null", override]))
