"""docs/configuration.md is what the config models say, and says everything that they know."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from configs.loader import key_paths
from tests.train.helpers import run_module
from train import documentation
from train.config import RunConfig

pytestmark = pytest.mark.slow

PAGE = Path("docs/configuration.md")
REMEDY = "run: python -m train.documentation > docs/configuration.md"


def test_the_committed_page_is_the_generated_one():
    done = run_module("train.documentation")
    assert done.returncode == 0, done.stderr
    assert PAGE.read_text(encoding="utf-8") == done.stdout == documentation.page(), REMEDY


def test_every_key_of_a_run_has_a_row_and_every_row_is_a_key():
    rows = re.findall(r"^\| `([a-z_.N]+)` ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    known = {".".join(path) for path in key_paths(RunConfig)}
    # what stands in a list has a number in its path, and a part of a mix is a source like any other
    found = {row.replace(".N", "") for row in rows if row not in ("extends", "texts", "name", "text")} | {"name"}
    assert {key for key in known if not key.startswith("data.source.parts.source.")} == found


def test_every_row_has_a_sentence_and_what_the_key_takes():
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            _, key, takes, default, _, sentence, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
            assert takes, f"{key} takes nothing"
            assert default or "mapping" in takes or key == "`extends`", f"{key} has no default"
            assert sentence.endswith((".", "`.")), f"the sentence of {key} does not end: {sentence!r}"
            assert len(sentence.split()) >= 2, f"{key} has no sentence: {sentence!r}"


class Example(BaseModel):
    """A section
    in two lines.

    A second paragraph."""

    model_config = ConfigDict(extra="forbid")
    some: int = Field(3, ge=1, lt=9, description="A number | none.")
    many: list[float] | None = Field(None, min_length=2, max_length=2, description="Two of them.")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("some", "| `x.some` | integer ≥ 1 and < 9 | `3` | `4` | A number \\| none. |"),
        ("many", "| `x.many` | a list of 2 of: number, or `null` | `null` | | Two of them. |"),
    ],
)
def test_a_row_says_type_range_default_and_what_base_yaml_says(name, row):
    table = {line.split("`")[1]: line for line in documentation._table(Example, "x", {"x": {"some": 4}}) if "`" in line}
    assert table[f"x.{name}"] == row
    assert documentation._introduction(Example) == "A section in two lines."
