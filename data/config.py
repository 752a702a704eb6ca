"""DataConfig: which text is read, how it becomes tokens, how long a row is."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, field_validator, model_validator

from configs.loader import PathText, Section, Tag
from data.reading.records import ROLES, USUAL
from storyworld.recall import BlockDocuments, RecallDocuments

# A vocabulary has at most this many tokens: the largest known ones have some 260,000.
MOST_TOKENS = 2**20
Split = Literal["train", "validation"]
Name = Annotated[str, Field(min_length=1)]
OnePath = Annotated[PathText, Field(min_length=1)]
Paths = OnePath | Annotated[list[OnePath], Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[int, Field(ge=0, le=100)]
# The classes of questions about a story, and the small tasks of storyworld/drills.py.
# docs/data_formats.md shows each.
QuestionClass = Literal[
    "who_has", "where", "who_wanted", "who_said", "first", "feeling", "yes_no", "who_did"
]
Drill = Literal[
    "words", "pairs", "ask_pairs", "by_name", "ask_by_name",
    "crowds", "told_crowds", "compare", "judge", "one_fact",
]  # fmt: skip


def _check_shares(drills: dict[str, float]) -> dict[str, float]:
    total = sum(drills.values())
    # what is left of 1 is the share of stories
    if total > 1:
        raise ValueError(
            f"drills are shares of all chats, and add up to {total:g}: make them 1 at most"
        )
    # the order decides which chat is of which drill
    return {name: drills[name] for name in get_args(Drill) if name in drills}


Drills = Annotated[dict[Drill, Share], AfterValidator(_check_shares)]


class CourseStep(Section):
    """One step of a course."""

    weight: float = Field(1.0, ge=1e-6)
    """Share of the documents, relative to the other steps."""
    drills: Drills = Field({})
    """Drills of this step, in place of those of the source."""


class StoryworldSource(Section):
    """The built-in corpus: generated stories. Their entropy, the lowest possible loss, is known."""

    kind: Literal["storyworld"] = "storyworld"
    """The built-in world."""
    documents: int = Field(40000, ge=1)
    """Number of training stories (or conversations)."""
    validation_documents: int = Field(1000, ge=1)
    """Number of held-out documents, from other seeds; repeats holds for them, too."""
    seed: int = Field(0, ge=0)
    """Another seed gives other stories."""
    level: Literal[1, 2] = 1
    """1 = short stories of three friends | 2 = longer stories, more friends."""
    chats: Literal["mixed", "questions"] = "mixed"
    """With records: conversations. mixed = stories on request, questions, longer talks | questions
    = many about each story, to answer well after little training."""
    questions: int = Field(8, ge=1, le=100)
    """chats: questions. Questions about each story, at most."""
    told: Share = 0.0
    """chats: questions. Share of conversations in which the assistant tells the story. In the
    others, the user gives it."""
    told_weight: Literal[0, 1] = 0
    """chats: questions. 1: the stories that the assistant tells are trained on as well."""
    echoed: Share = 0.0
    """chats: questions. Share of the told stories in which names are repeated after facts about
    them; only these names are trained on."""
    class_weights: dict[QuestionClass, Weight] = Field({}, examples=[{"yes_no": 3, "feeling": 6}])
    """chats: questions. Weight of each class of questions, after the first question. Default: 3 for
    who_has and where, 1 for the others."""
    repeats: float = Field(0.0, ge=0, lt=1)
    """Share of documents (or chats) of repeated random words, from which heads learn to copy."""
    drills: Drills = Field({}, examples=[{"words": 0.2, "pairs": 0.4}])
    """With records: conversations. Chats that train one small skill, each with its share of all
    chats."""
    course: list[CourseStep] = Field([], max_length=100)
    """Steps from easy to difficult, each with drills of its own. Empty = the same drills all the
    way. Needs data.shuffle: false."""
    checked: Share = 0.0
    """With chats: questions, share of the answers after which the same is asked as yes or no."""
    other_names: Share = 0.0
    """Share of training documents with names of other forms (Ubora, Bororuzi), so that the model
    copies any name."""
    recall: RecallDocuments | None = Field(
        None,
        examples=[{"people": 6, "facets": 2, "values": 8, "questions": 12, "several": 0.5}],
    )
    """In place of stories: facts, then questions about them with exact answers. null = stories."""
    blocks: BlockDocuments | None = Field(
        None, examples=[{"shortest": 2, "longest": 20, "between": 3, "length": 47}]
    )
    """In place of stories: a few characters in random order, again and again. null = stories."""

    @property
    def tells_stories(self) -> bool:
        return self.recall is None and self.blocks is None

    @model_validator(mode="after")
    def _check_documents(self) -> StoryworldSource:
        # Every document has facts then, so the repeats would never be seen.
        if self.recall is not None and self.repeats:
            raise ValueError("recall documents have no repeats: set repeats: 0.0, or recall: null")
        if self.blocks is not None and (self.repeats or self.recall is not None):
            raise ValueError("blocks: repeats must be 0.0, and recall null")
        return self


class _WithText(Section):
    """Keys of files and datasets: records with a field of text."""

    text_field: str = "text"
    """Key of a record that holds its text (a.b for one inside another)."""
    document_start: str | None = Field(None, max_length=1000)
    """Regular expression for the text of a record that begins a document; the records up to the
    next one belong to it."""
    max_records: int | None = Field(None, ge=1)
    """Read only this many records. null = all."""

    @field_validator("document_start")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        try:
            # here, where the error has the line of the key, not in the middle of reading
            re.compile(pattern or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"document_start is not a regular expression: {error}") from None
        return pattern


class FilesSource(_WithText):
    """Local files: .txt .md .jsonl .json .csv .tsv .parquet .arrow, also as .gz and .zst."""

    kind: Literal["files"]
    """Local files."""
    path: Annotated[Paths, Tag.RUNTIME]
    """A file, a folder or a pattern such as books/*.txt, or a list of these."""
    validation_path: Annotated[Paths | None, Tag.RUNTIME] = None
    """Held-out files, as in path. null = hold out validation_fraction of path."""
    separator: str = Field("<|endoftext|>", min_length=1)
    """Separates two documents of a .txt or .md file."""


class HubSource(_WithText):
    """A dataset of the Hugging Face Hub, or a local folder that `datasets` can read."""

    kind: Literal["hub"]
    """A dataset of the Hugging Face Hub."""
    name: Name
    """Name of the dataset, for example roneneldan/TinyStories."""
    subset: str | None = None
    """Its configuration, if it has several (wikitext-103-raw-v1)."""
    data_files: Name | Annotated[list[Name], Field(min_length=1)] | None = None
    """Read only these files of the dataset. null = all."""
    revision: str | None = None
    """Branch, tag or commit. null = the newest."""
    split: str = "train"
    """Split to train on."""
    validation_split: str | None = None
    """Split to hold out. null = hold out validation_fraction of split."""
    streaming: bool = False
    """true: read while downloading, keep no copy (with max_records)."""

    @model_validator(mode="after")
    def _check_splits(self) -> HubSource:
        # the held-out loss would be that of texts which the model has learned
        if self.split == self.validation_split:
            raise ValueError("validation_split is the split to train on: name another, or null")
        return self


class MixPart(Section):
    """One source of a mix."""

    weight: float = Field(1.0, ge=1e-6)
    """Share of the mix's text, relative to the other weights."""
    source: Annotated[StoryworldSource | FilesSource | HubSource, Field(discriminator="kind")]
    """Source of this part."""


class MixSource(Section):
    """Several sources, mixed document by document. The weights are their shares of the text."""

    kind: Literal["mix"]
    """Several sources."""
    parts: list[MixPart] = Field(min_length=1)
    """The sources: [{weight: 3, source: {kind: …}}, …]."""
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = "first_exhausted"
    """first_exhausted: the mix ends with the first part that ends, nothing is repeated |
    all_exhausted: a part that ends begins again, until the last one has ended."""


Source = Annotated[
    StoryworldSource | FilesSource | HubSource | MixSource, Field(discriminator="kind")
]


class TokenizerConfig(Section):
    """bpe: byte-level pieces learned from the text. char: one id a character. byte: one id a byte.
    pretrained: an existing tokenizer.json."""

    kind: Literal["bpe", "char", "byte", "pretrained"] = "bpe"
    """bpe: pieces of words, learned from the text | char: one token per character | byte: one per
    byte | pretrained: an existing one."""
    vocab_size: int | None = Field(None, ge=320, le=MOST_TOKENS)
    """bpe: number of tokens to learn (null: 2048), rounded up to a multiple of 64. pretrained: the
    least number of tokens."""
    train_bytes: int = Field(8_000_000, ge=1000)
    """Bytes of text, from all over the corpus, that bpe learns from."""
    path: Annotated[PathText | None, Tag.RUNTIME] = None
    """pretrained: a tokenizer.json, or a directory or run that holds one. null = that of
    init_from."""

    @model_validator(mode="after")
    def _check_path(self) -> TokenizerConfig:
        if (self.path is None) == (self.kind == "pretrained"):
            raise ValueError("path: set it (or init_from) with kind: pretrained, and only then")
        return self


class DataConfig(Section):
    """The `data:` section."""

    source: Source = Field(
        StoryworldSource(),
        examples=[
            {"kind": "files", "path": "books/*.txt"},
            {"kind": "hub", "name": "roneneldan/TinyStories", "validation_split": "validation"},
        ],
    )
    """The text: a path such as my.txt or a folder, or {kind: storyworld | files | hub | mix, …}
    (docs/data_formats.md)."""
    records: Literal["text", "conversations", "pairs"] = "text"
    """text: train on every token | conversations: only on the assistant's messages | pairs: a
    better and a worse answer to one prompt (train.dpo)."""
    chat_fields: dict[str, Name | None] = Field(
        {}, examples=[{"messages": "data", "user": "customer"}]
    )
    """Conversations and pairs: the names of fields and roles in your records, if they are unusual.
    null = ignore the field."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes numbers (tokens)."""
    sequence_length: int = Field(256, ge=2)
    """Tokens in a row: the longest text the model sees at once in training."""
    shuffle: bool = True
    """false: rows keep the order of the source, for one that goes from easy to difficult."""
    isolate_documents: bool = True
    """true: documents that share a row cannot see each other."""
    restart_positions: bool = False
    """true: positions count from 0 in every document of a row, not through the row."""
    validation_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of files and datasets that is held out, to test the model on."""
    rows_joined: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """Conversations: this many rows become one long row, so that less of it is padding. auto = the
    fewest that fill 95 % of it (needs isolate_documents) | 1 = none."""
    too_long: Literal["truncate", "drop"] = "truncate"
    """Conversations longer than a row: truncate (to whole turns) | drop."""
    drop_duplicates: bool = False
    """true: keep only the first of documents that are exactly equal."""
    on_bad_record: Literal["stop", "skip"] = "stop"
    """stop: name file, line and reason | skip: list them, and stop above 1 %."""

    @model_validator(mode="after")
    def _check_together(self) -> DataConfig:
        sources: list = [self.source]
        if isinstance(self.source, MixSource):
            sources = [part.source for part in self.source.parts]
        if self.shuffle:
            for source in sources:
                # A step of the course is a range of documents: shuffled rows would mix all steps.
                if isinstance(source, StoryworldSource) and source.course:
                    raise ValueError("source.course has a fixed order: set data.shuffle: false")
        unknown = self.chat_fields.keys() - USUAL.keys() - ROLES.keys()
        if self.chat_fields and (self.records == "text" or unknown):
            raise ValueError(
                f"chat_fields can name {', '.join(USUAL)} and roles, of chats and pairs "
                "(data.records)"
            )
        if self.restart_positions and not self.isolate_documents:
            # else two tokens have the same position
            raise ValueError("restart_positions needs isolate_documents: true")
        if self.rows_joined not in ("auto", 1) and not self.isolate_documents:
            # else a document would see further back than a row
            raise ValueError("rows_joined needs isolate_documents: true")
        return self


class CorpusConfig(Section, extra="ignore"):
    """The keys of a run's config that data.prepare and data.inspect read; see train/config.py."""

    output_dir: PathText = "runs"
    seed: int = Field(0, ge=0, lt=2**63)
    init_from: PathText | None = None
    data: DataConfig = DataConfig()
