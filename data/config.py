"""DataConfig: what is read, how it is cut into tokens, how long a row is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StoryworldSource(_Section):
    """The built-in corpus: stories made on the spot, with a known entropy."""

    kind: Literal["storyworld"] = "storyworld"
    documents: int = Field(40000, ge=1, description="Number of training stories.")
    validation_documents: int = Field(1000, ge=1, description="Number of held-out stories, from other seeds.")
    seed: int = Field(0, ge=0, description="Another seed, other stories.")


class FilesSource(_Section):
    """A local file: .txt is one document, .jsonl is one document a line."""

    kind: Literal["files"]
    path: str = Field(description="A .txt or .jsonl file, relative to where the command runs.")
    text_field: str = Field("text", description="Key that holds the text of a .jsonl line.")


class HubSource(_Section):
    """A dataset of the Hugging Face Hub, or a local folder that `datasets` can read."""

    kind: Literal["hub"]
    name: str = Field(description="Dataset name, for example roneneldan/TinyStories.")
    split: str = Field("train", description="Split of that dataset; the validation part is cut from it.")
    text_field: str = Field("text", description="Column that holds the text.")


Source = Annotated[StoryworldSource | FilesSource | HubSource, Field(discriminator="kind")]


class TokenizerConfig(_Section):
    """bpe: byte-level pieces learned from the text. char: one id a character. byte: one id a byte."""

    kind: Literal["bpe", "char", "byte"] = Field("bpe", description="bpe | char | byte.")
    vocab_size: int = Field(
        2048, ge=320, description="Size that bpe aims at, rounded up to a multiple of 64; others ignore it."
    )


class DataConfig(_Section):
    """The `data:` section."""

    source: Source = Field(StoryworldSource(), description="Where the text comes from.")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="How text becomes token ids.")
    sequence_length: int = Field(256, ge=2, description="Tokens a row; the model never sees further back.")
    isolate_documents: bool = Field(False, description="true: a document packed behind another one cannot see it.")
    restart_positions: bool = Field(
        False, description="true: RoPE positions count from 0 in every document of a packed row."
    )
    validation_fraction: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Held-out share of a file or dataset: its end (.txt) or documents chosen by hash.",
    )

    @model_validator(mode="after")
    def _check_packing(self) -> DataConfig:
        if self.restart_positions and not self.isolate_documents:
            raise ValueError(
                "restart_positions needs isolate_documents: true, else documents that share positions see each other"
            )
        return self
