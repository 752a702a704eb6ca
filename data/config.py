"""DataConfig: what is read, how it is cut into tokens, how long a row is."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from configs.meaning import Meaning, Section

Name = Annotated[str, Field(min_length=1)]
Names = Name | Annotated[list[Name], Field(min_length=1)]


class StoryworldSource(Section):
    """The built-in corpus: stories made on the spot, with a known entropy."""

    kind: Literal["storyworld"] = Field("storyworld", description="The built-in world.")
    documents: int = Field(40000, ge=1, description="Number of training stories (or conversations).")
    validation_documents: int = Field(1000, ge=1, description="Number of held-out stories, from other seeds.")
    seed: int = Field(0, ge=0, description="Another seed, other stories.")
    level: Literal[1, 2] = Field(1, description="1 = short stories of three friends | 2 = longer ones, more of them.")
    chats: Literal["mixed", "questions"] = Field(
        "mixed",
        description="With records: conversations. mixed = stories on request, questions, longer talks | questions = up "
        "to eight about each story, for answering well after little training.",
    )
    repeats: float = Field(0.0, ge=0, lt=1, description="Share of documents that are random words, told repeatedly.")


class _WithText(Section):
    """What files and datasets have in common: records with a field of text."""

    text_field: str = Field("text", description="Key (a.b for one inside another) that holds the text of a record.")
    document_start: str | None = Field(
        None, description="Pattern of a record's text that begins a document; the records up to the next belong to it."
    )
    max_records: int | None = Field(None, ge=1, description="Read only so many records; null = all.")

    @field_validator("document_start")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"document_start is no regular expression: {error}") from None
        return pattern


class FilesSource(_WithText):
    """Local files: .txt .md .jsonl .json .csv .tsv .parquet, also as .gz and .zst."""

    kind: Literal["files"] = Field(description="Local files.")
    path: Annotated[Names, Meaning.MAY_CHANGE] = Field(
        description="A file, a folder or a pattern such as books/*.txt, or a list of these.",
    )
    validation_path: Annotated[Names | None, Meaning.MAY_CHANGE] = Field(
        None, description="Held-out files; null = validation_fraction is cut from `path`."
    )
    separator: str = Field("<|endoftext|>", min_length=1, description="Stands between two documents of a .txt or .md.")


class HubSource(_WithText):
    """A dataset of the Hugging Face Hub, or a local folder that `datasets` can read."""

    kind: Literal["hub"] = Field(description="A dataset of the Hugging Face Hub.")
    name: Name = Field(description="Dataset name, for example roneneldan/TinyStories.")
    subset: str | None = Field(None, description="Its configuration, where it has several (wikitext-103-raw-v1).")
    data_files: Names | None = Field(None, description="Read only these files of the dataset; null = all.")
    revision: str | None = Field(None, description="Branch, tag or commit; null = the newest.")
    split: str = Field("train", description="Split that is trained on.")
    validation_split: str | None = Field(
        None, description="Split that is held out; null = validation_fraction is cut from `split`."
    )
    streaming: bool = Field(False, description="true: read while downloading, keep no copy (with max_records).")

    @model_validator(mode="after")
    def _check_splits(self) -> HubSource:
        if self.split == self.validation_split:
            raise ValueError(f"validation_split is {self.split}, the split that is trained on: name another, or null")
        return self


class MixPart(Section):
    """One source of a mix."""

    weight: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Share of the mix's text, relative to the other parts' weights."
    )
    source: Annotated[StoryworldSource | FilesSource | HubSource, Field(discriminator="kind")] = Field(
        description="Where this part comes from."
    )


class MixSource(Section):
    """Several sources, mixed document by document so that their shares of the text are as the weights say."""

    kind: Literal["mix"] = Field(description="Several sources.")
    parts: list[MixPart] = Field(min_length=1, description="The parts of the mix: [{weight: 3, source: {kind: …}}, …].")
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = Field(
        "first_exhausted",
        description="first_exhausted: nothing is repeated, the mix ends with the first part that ends | "
        "all_exhausted: parts that end begin again until the last has ended.",
    )


Source = Annotated[StoryworldSource | FilesSource | HubSource | MixSource, Field(discriminator="kind")]


class TokenizerConfig(Section):
    """bpe: byte-level pieces learned from the text. char: one id a character. byte: one id a byte.
    pretrained: a tokenizer.json that exists."""

    kind: Literal["bpe", "char", "byte", "pretrained"] = Field(
        "bpe",
        description="bpe: pieces learned from the text | char: one id a character | byte: one id a byte | "
        "pretrained: one that exists.",
    )
    vocab_size: int | None = Field(
        None, ge=320, description="Size that bpe aims at (null: 2048); of a pretrained one, at least so many ids."
    )
    train_bytes: int = Field(8_000_000, ge=1000, description="Text that bpe learns from, spread over the corpus.")
    path: Annotated[str | None, Meaning.MAY_CHANGE] = Field(
        None, description="pretrained: a tokenizer.json, or a directory or run that holds one."
    )

    @model_validator(mode="after")
    def _check_path(self) -> TokenizerConfig:
        if (self.path is None) == (self.kind == "pretrained"):
            raise ValueError("path: name a tokenizer.json with kind: pretrained, and only then")
        return self


class DataConfig(Section):
    """The `data:` section."""

    source: Source = Field(StoryworldSource(), description="Where the text comes from.")
    records: Literal["text", "conversations"] = Field(
        "text", description="text: documents, every token trained on | conversations: chat, assistant turns only."
    )
    tokenizer: Annotated[TokenizerConfig, Meaning.ROWS] = Field(
        TokenizerConfig(), description="How text becomes token ids."
    )
    sequence_length: Annotated[int, Meaning.ROWS] = Field(
        256, ge=2, description="Tokens a row; the model never sees further back."
    )
    isolate_documents: Annotated[bool, Meaning.ROWS] = Field(
        False, description="true: a document packed behind another one cannot see it."
    )
    restart_positions: Annotated[bool, Meaning.ROWS] = Field(
        False, description="true: RoPE positions count from 0 in every document of a packed row."
    )
    validation_fraction: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Held-out share of files and datasets: documents chosen by hash, or the end of a single text.",
    )
    rows_joined: Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], Meaning.ROWS] = Field(
        "auto",
        description="Conversations: rows that are joined into one, which whole conversations fill better. auto = as "
        "few as make 95 % of the positions real tokens, with isolate_documents; 1 = none.",
    )
    too_long: Annotated[Literal["truncate", "drop"], Meaning.ROWS] = Field(
        "truncate",
        description="Conversations longer than a row. truncate: cut after the last whole turn that fits | drop: left "
        "out.",
    )
    drop_duplicates: bool = Field(False, description="true: of documents that are exactly equal, keep the first.")
    on_bad_record: Literal["stop", "skip"] = Field(
        "stop", description="stop: name file, line and reason | skip: list them, and stop above 1 %."
    )

    @model_validator(mode="after")
    def _check_packing(self) -> DataConfig:
        if self.restart_positions and not self.isolate_documents:
            raise ValueError(
                "restart_positions needs isolate_documents: true, else documents that share positions see each other"
            )
        if self.rows_joined not in ("auto", 1) and not self.isolate_documents:
            raise ValueError("rows_joined needs isolate_documents: true, else a document would see too far back")
        return self
