"""The cases of test_every_key_*.py are those of all keys that there are, and every key is explained."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from configs.loader import LoadedConfig, load_config
from tests.configs.every_key import SHOWN, Change, all_keys, together
from train.config import RunConfig

CONFIGS = sorted(Path("configs").glob("*.yaml"))
for file in sorted(Path(__file__).parent.glob("test_every_key_*.py")):
    if file.stem != Path(__file__).stem:
        importlib.import_module(f"{__package__}.{file.stem}")

# keys that repeat the config that theirs extends, and why they are written there nevertheless
SHAPE = "a preset shows its whole shape and length, whatever it extends"
DATASET = "it belongs to the dataset that is named beside it, whatever other dataset it extends"
REPEATED = {
    ("gqa.yaml", "model.num_key_value_heads"): "the name of the file promises it",
    ("26m.yaml", "model.num_hidden_layers"): SHAPE,
    ("26m.yaml", "model.num_key_value_heads"): SHAPE,
    ("64m.yaml", "model.num_hidden_layers"): SHAPE,
    ("moe.yaml", "model.num_experts_per_tok"): SHAPE,
    ("124m.yaml", "train.max_steps"): SHAPE,
    ("sft_demo.yaml", "train.tokens_per_step"): "pretraining's number, at another sequence_length",
    ("minimind_pretrain.yaml", "data.drop_duplicates"): DATASET,
    ("wikitext103.yaml", "data.source.validation_split"): DATASET,
}


def test_every_key_has_a_case_and_every_case_a_key():
    keys = {key for key, _ in all_keys(RunConfig)}
    assert len(keys) > 100
    assert keys - SHOWN.keys() == set(), "no test shows what these keys do"
    assert SHOWN.keys() - keys == set(), "there are no such keys any more"


def test_keys_that_change_together_can_be_told_apart():
    rate, size, both = Change("a", 1, "schedule"), Change("b", 1, "rows, passes?"), Change("c", 1, "rows, schedule?")
    together(rate, size)
    for indistinct in ((rate, both), (size, both)):
        with pytest.raises(AssertionError, match="could be the work of another key"):
            together(*indistinct)
    before, only_rate = {"schedule": 1, "rows": 1, "passes": 1}, {"schedule": 2, "rows": 1, "passes": 1}
    together(rate).check(before, only_rate)
    with pytest.raises(AssertionError, match="b: changed"):
        together(rate, size).check(before, only_rate)


def test_a_new_key_would_be_missed():
    class Part(BaseModel):
        new: int = Field(1, description="In a section, in a list and in a list that may be left out.")

    class Whole(RunConfig):
        section: Part = Part()
        several: list[Part] = Field([])
        perhaps: Part | None = None

    new = {key for key, _ in all_keys(Whole)} - {key for key, _ in all_keys(RunConfig)}
    assert new == {"section.new", "several", "several.new", "perhaps", "perhaps.new"}


@pytest.mark.parametrize(
    ("key", "field"), list(all_keys(RunConfig)), ids=lambda value: value if str(value) == value else ""
)
def test_every_key_has_a_sentence(key, field):
    assert field.description, f"{key} has no description"
    assert field.description[0].isupper() or "|" in field.description or ":" in field.description, field.description
    assert field.description.endswith("."), field.description


def written(loaded: LoadedConfig, file: Path) -> Iterator[tuple[tuple[str, ...], int]]:
    """(key, line) of every value that a file writes itself."""
    for key, place in loaded.origins.items():
        if place.startswith(f"{file}:"):
            yield key, int(place.rpartition(":")[2])


def test_every_key_of_a_source_is_in_the_page_about_data():
    page = Path("docs/data_formats.md").read_text(encoding="utf-8")
    names = {key.rpartition(".")[2] for key, _ in all_keys(RunConfig) if key.startswith("data.source.")}
    assert {name for name in names if f"`{name}" not in page and f"{name}:" not in page} == set()


@cache
def dead_keys(file: Path) -> list[str]:
    """Keys that a config writes although what it extends says the same."""
    text = file.read_text(encoding="utf-8")
    parent = next((line.split()[1] for line in text.splitlines() if line.startswith("extends:")), None)
    if parent is None:
        return []
    inherited, loaded = load_config(file.with_name(parent)).values, load_config(file)
    found = []
    for key, _ in written(loaded, file):
        mine, before = loaded.values, inherited
        for part in key:
            mine, before = mine[part], before.get(part, {}) if isinstance(before, dict) else {}
        # `kind` says what the keys beside it are keys of
        if key[-1] != "kind" and not isinstance(mine, dict) and mine == before:
            found.append(".".join(key))
    return found


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_no_config_repeats_what_it_extends(file):
    unknowing = [key for key in dead_keys(file) if (file.name, key) not in REPEATED]
    assert unknowing == [], f"{file}: leave these out, or say in REPEATED why they are written"


def test_the_reasons_for_repeating_are_not_out_of_date():
    assert {(file.name, key) for file in CONFIGS for key in dead_keys(file)} == REPEATED.keys()
