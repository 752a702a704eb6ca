"""Every key of `data:` changes the text that is read, the tokens, or the rows; of a source alone and in a mix."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.command import InputError
from configs.loader import load_config, validate
from data.config import DataConfig, HubSource, TokenizerConfig
from data.packing import IGNORED
from data.prepare import SPLITS, describe, prepare, source_identity
from data.reading.sources import read
from data.storyworld.drills import DRILLS
from data.storyworld.questions import KINDS
from data.tokenizer import train_tokenizer
from tests.configs.every_key import Change, each, keys_of, shows, together
from tests.train.helpers import write_config
from train.config import load_run_config
from train.objective import TextBatches


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A text, records, and a local dataset of two splits, two subsets and two files, with tiny.yaml beside them."""
    folder = tmp_path_factory.mktemp("data")
    write_config(folder, train={"tokens_per_step": 64})
    (folder / "text.txt").write_text("".join(f"text {i}.\n<|endoftext|>" for i in range(40)), "utf-8")
    (folder / "other.txt").write_text("".join(f"other {i}.\n=== {i}\n" for i in range(40)), "utf-8")
    for name in ("stories.jsonl", "hub/train.jsonl", "hub/extra.jsonl", "hub/test.jsonl", "hub/other/train.jsonl"):
        lines = [{"text": f"Start {i} of {name}" if i % 4 == 0 else f"line {i}", "title": f"T{i}"} for i in range(60)]
        _write_lines(folder / name, [*lines, lines[1]])
    _write_lines(folder / "bad.jsonl", [{"text": f"line {i}"} for i in range(200)] + [{"no": "text"}])
    turns = [[{"role": role, "content": f"{role} {i}"} for role in ("user", "assistant")] for i in range(60)]
    _write_lines(folder / "chats.jsonl", [{"messages": turns[i] * (1 + i % 6)} for i in range(60)])
    files = {"default": {"train": "train.jsonl", "test": "test.jsonl"}, "other": {"train": "other/train.jsonl"}}
    named = [{"config_name": subset, "data_files": _splits(splits)} for subset, splits in files.items()]
    (folder / "hub/README.md").write_text(f"---\n{yaml.safe_dump({'configs': named})}---\n", "utf-8")
    for kind in ("byte", "char"):
        train_tokenizer(TokenizerConfig(kind=kind), ["a b c"]).save(folder / kind)
    return folder


def _write_lines(file: Path, lines: list[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def _splits(files: dict[str, str]) -> list[dict[str, str]]:
    return [{"split": split, "path": file} for split, file in files.items()]


@pytest.fixture(autouse=True)
def _in_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


# ---------------------------------------------------------------------------------------------------------
# sources: which documents come, in which split


@dataclass(frozen=True)
class SourceChange:
    """A key of a source changes which documents are read: those that are trained on, those held out, or both."""

    key: str  # of the source
    value: Any
    seen: str
    source: dict[str, Any]
    records: str = "text"

    def __str__(self) -> str:
        return f"{self.source['kind']}.{self.key}"


STORIES = {"kind": "storyworld", "documents": 12, "validation_documents": 4}
ASKED = STORIES | {"chats": "questions"}
WEIGHED = ASKED | {"documents": 24, "validation_documents": 24, "class_weights": {"who_has": 3}}
DRILLED = STORIES | {"drills": {}}
RECALL = STORIES | {"recall": {"people": 2}}
FILES = {"kind": "files", "path": "stories.jsonl"}
PLAIN = {"kind": "files", "path": ["other.txt", "text.txt"]}
HUB = {"kind": "hub", "name": "hub"}
BOTH = "training, held out"

SOURCES = [
    SourceChange("documents", 20, "training", STORIES),
    SourceChange("validation_documents", 6, "held out", STORIES),
    SourceChange("seed", 1, BOTH, STORIES),
    SourceChange("level", 2, BOTH, STORIES),
    SourceChange("chats", "questions", BOTH, STORIES, "conversations"),
    SourceChange("questions", 4, BOTH, ASKED, "conversations"),
    SourceChange("told", 1.0, BOTH, ASKED, "conversations"),
    SourceChange("told_weight", 1, BOTH, ASKED | {"told": 1.0}, "conversations"),
    SourceChange("echoed", 1.0, BOTH, ASKED | {"told": 1.0}, "conversations"),
    *(SourceChange(f"class_weights.{kind}", 30, BOTH, WEIGHED, "conversations") for kind in KINDS),
    SourceChange("other_names", 1.0, "training", STORIES),
    SourceChange("repeats", 0.5, BOTH, STORIES),
    *(SourceChange(f"drills.{drill}", 0.5, BOTH, DRILLED, "conversations") for drill in DRILLS),
    SourceChange("course", [{"drills": {"words": 0.5}}], BOTH, STORIES, "conversations"),
    SourceChange("checked", 1.0, BOTH, ASKED, "conversations"),
    SourceChange("recall", {"people": 2}, BOTH, STORIES),
    SourceChange("recall.people", 3, BOTH, RECALL),
    SourceChange("recall.facets", 1, BOTH, RECALL),
    SourceChange("recall.values", 3, BOTH, RECALL),
    SourceChange("recall.questions", 5, BOTH, RECALL),
    SourceChange("recall.several", 1.0, BOTH, RECALL),
    SourceChange("path", "text.txt", BOTH, FILES),
    SourceChange("path", ["stories.jsonl", "bad.jsonl"], BOTH, FILES | {"max_records": 70}),
    SourceChange("validation_path", "text.txt", BOTH, FILES),
    SourceChange("separator", "===", BOTH, PLAIN),
    *(
        change
        for source in (FILES, HUB)
        for change in (
            SourceChange("text_field", "title", BOTH, source),
            SourceChange("document_start", "^Start", BOTH, source),
            SourceChange("max_records", 5, "training, held out?", source),
        )
    ),
    SourceChange("name", "hub/other", BOTH, HUB),
    SourceChange("subset", "other", BOTH, HUB),
    SourceChange("data_files", "extra.jsonl", BOTH, HUB),
    SourceChange("split", "test", BOTH, HUB),
    SourceChange("validation_split", "test", BOTH, HUB),
]


def of_source(change: SourceChange, mixed: bool) -> list[str]:
    """The keys that a change of a source is a case of: the same key, of a source alone and of a part of a mix."""
    return f"data.source.{'mix.parts.source.' * mixed}{change}"


def documents(source: dict[str, Any], records: str, mixed: bool) -> dict[str, Any]:
    source = {"kind": "mix", "parts": [{"source": source}]} if mixed else source
    overrides = [f"data.source={json.dumps(source)}", f"data.records={records}", "data.validation_fraction=0.3"]
    overrides += ["data.shuffle=false"]  # else a course is refused; it changes rows, not documents
    found = list(read(validate(DataConfig, load_config("tiny.yaml", overrides), "data")))
    return {
        "training": [document.content for document in found if document.split == "train"],
        "held out": [document.content for document in found if document.split == "validation"],
    }


@shows(*(of_source(change, mixed) for change in SOURCES for mixed in (False, True)))
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mix"])
@pytest.mark.parametrize("change", SOURCES, ids=str)
def test_it_changes_which_documents_are_read(change, mixed):
    before = documents(change.source, change.records, mixed)
    section, _, key = change.key.rpartition(".")
    changed = change.source[section] | {key: change.value} if section else change.value
    after = documents(change.source | {section or key: changed}, change.records, mixed)
    together(Change(of_source(change, mixed), change.value, change.seen)).check(before, after)


COURSE = ("weight", *(f"drills.{drill}" for drill in DRILLS))


@shows(*(f"data.source.{'mix.parts.source.' * mixed}storyworld.course.{key}" for mixed in (0, 1) for key in COURSE))
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mix"])
@pytest.mark.parametrize("drill", DRILLS)
def test_a_step_of_a_course_has_its_own_drills_and_length(drill, mixed):
    def training(weight, share):
        course = [{"weight": weight, "drills": {drill: share}}, {"drills": {}}]
        return documents(STORIES | {"course": course}, "conversations", mixed)["training"]

    plain, short, long = training(1.0, 0.0), training(1.0, 1.0), training(3.0, 1.0)
    changed = [[one != other for one, other in zip(plain, found, strict=True)] for found in (short, long)]
    half = len(plain) // 2
    assert changed[0] == [True] * half + [False] * half
    assert sum(changed[1]) == 0.75 * len(plain)


@shows("data.source.kind", "data.source.mix.parts.source.kind")
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mix"])
def test_each_kind_of_source_reads_something_else(mixed):
    first = {source["kind"]: documents(source, "text", mixed)["training"][0] for source in (STORIES, FILES, HUB)}
    assert first["files"] == "Start 0 of stories.jsonl"
    assert first["hub"] == "Start 0 of hub/train.jsonl"
    assert len(first["storyworld"]) > 100


@shows("data.source.hub.streaming", "data.source.mix.parts.source.hub.streaming")
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mix"])
def test_streaming_keeps_no_copy(tmp_path, monkeypatch, mixed):
    import datasets

    copies = {}
    for streaming in (False, True):
        cache = tmp_path / str(streaming)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
        copies[streaming] = documents(HUB | {"streaming": streaming}, "text", mixed), any(cache.rglob("*.arrow"))
    assert copies[False][0] == copies[True][0]
    assert (copies[False][1], copies[True][1]) == (True, False)


@shows("data.source.hub.revision", "data.source.mix.parts.source.hub.revision")
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mix"])
def test_the_revision_is_what_the_hub_is_asked_for(monkeypatch, mixed):
    """A local folder has no revisions, and the Hub is out of reach here: what `datasets` is called with has to do."""
    import datasets

    asked: list[str] = []
    for name in ("load_dataset", "load_dataset_builder"):
        monkeypatch.setattr(datasets, name, noting(asked, getattr(datasets, name)))
    documents(HUB | {"revision": "v2"}, "text", mixed)
    source_identity(HubSource(**HUB, revision="v2"), Path("unused"))
    assert len(asked) >= 2
    assert set(asked) == {"v2"}


def noting(asked: list[str], real: Callable) -> Callable:
    def noted(*arguments, **options):
        asked.append(options["revision"])
        return real(*arguments, **options)

    return noted


# ---------------------------------------------------------------------------------------------------------
# everything else: text -> tokens -> rows


def mix(*parts: tuple[float, str], **more: str) -> dict[str, Any]:
    sources = [{"weight": weight, "source": {"kind": "files", "path": path}} for weight, path in parts]
    return {"kind": "mix", "parts": sources, **more}


TEXTS = "training text, held-out text"
ROWS = "rows?, documents?, positions?, trained?, epoch?"
TWO = mix((1.0, "stories.jsonl"), (1.0, "text.txt"))
BPE = ("data.tokenizer={kind: bpe, vocab_size: 512}", f"data.source={json.dumps(STORIES)}")
LONG = ("data.sequence_length=512", "train.tokens_per_step=1024", "data.isolate_documents=true")
CHATS = (*BPE, *LONG, "data.records=conversations")
TALKS = ("data.source={kind: files, path: chats.jsonl}", "data.records=conversations")
TALKS = (*TALKS, "data.sequence_length=128", "train.tokens_per_step=256")

CHANGES = each(
    [
        Change(
            "data.source.mix.parts",
            mix((1.0, "text.txt"))["parts"],
            f"{TEXTS}, {ROWS}, left out",
            (f"data.source={json.dumps(TWO)}",),
        ),
        Change("data.records", "conversations", f"{TEXTS}, {ROWS}, vocabulary?, left out?", CHATS[:-1]),
        Change("data.tokenizer.kind", "char", f"vocabulary, {ROWS}"),
        Change("data.tokenizer.vocab_size", 384, f"vocabulary, {ROWS}", BPE),
        Change("data.tokenizer.train_bytes", 1000, f"vocabulary, {ROWS}", BPE),
        Change(
            "data.tokenizer.path",
            "char",
            f"vocabulary, {TEXTS}, {ROWS}",
            ("data.tokenizer={kind: pretrained, path: byte}",),
        ),
        Change("data.sequence_length", 16, "rows, trained, epoch"),
        Change("data.shuffle", False, "trained"),
        Change("data.isolate_documents", True, "documents"),
        Change("data.restart_positions", True, "positions", ("data.isolate_documents=true",)),
        Change("data.validation_fraction", 0.5, f"{TEXTS}, {ROWS}"),
        Change("data.rows_joined", 2, "rows, documents, positions?, trained, epoch", (*CHATS, "data.rows_joined=1")),
        Change("data.too_long", "drop", "epoch, left out, trained?", TALKS),
        Change("data.drop_duplicates", True, f"training text, held-out text?, left out, {ROWS}"),
        Change(
            "data.on_bad_record",
            "skip",
            "complaint, training text, held-out text, vocabulary, rows, trained, epoch, left out",
            ("data.source={kind: files, path: bad.jsonl}",),
        ),
    ]
)


def observed(overrides: list[str]) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(
        "complaint vocabulary rows documents positions trained epoch".split() + TEXTS.split(", ") + ["left out"]
    )
    config = load_run_config("tiny.yaml", ["data.source={kind: files, path: stories.jsonl}", *overrides])
    try:
        data = prepare(config.data, Path(config.output_dir))
        source = TextBatches(config, data)
        batches = source.batches
    except InputError as error:
        return nothing | {"complaint": str(error)}
    batch = batches.batch(0)
    texts = [data.tokenizer.decode(data.stream(split).read(0, len(data.stream(split)))) for split in SPLITS]
    return nothing | {
        "vocabulary": data.tokenizer.sha256(),
        **dict(zip(TEXTS.split(", "), texts, strict=True)),
        "rows": batch["input_ids"].shape,
        "documents": batch.tensors.get("document_ids"),
        "positions": batch.tensors.get("position_ids"),
        "trained": batch["labels"] != IGNORED,
        "epoch": batches.rows.per_epoch,
        "left out": (source.notes, describe(data).splitlines()[2:]),
    }


@cache
def baseline(folder: Path, given: tuple[str, ...]) -> dict[str, Any]:
    return observed(list(given))


@shows(*keys_of(CHANGES))
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_it_changes_tokens_or_rows(folder, change):
    change.check(baseline(folder, change.given), observed(change.overrides))


@shows("data.source.mix.parts.weight", "data.source.mix.stopping_strategy")
def test_weights_are_shares_and_the_strategy_says_when_a_mix_ends():
    def read_of(name: str, source: dict) -> int:
        return sum(text.startswith(name) for text in documents(source, "text", mixed=False)["training"])

    once, thrice = (mix((1.0, "stories.jsonl"), (weight, "text.txt")) for weight in (1.0, 3.0))
    assert read_of("line", thrice) < read_of("line", once)
    assert read_of("text", once | {"stopping_strategy": "all_exhausted"}) > 40 >= read_of("text", once)
