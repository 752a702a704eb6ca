"""What text does a tokenizer learn from? All of it for char, an even sample for bpe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from data.chat import segments
from data.config import DataConfig, Drills, FilesSource, StoryworldSource
from data.reading import sources
from data.reading.documents import files_of
from data.reading.file_bytes import COMPRESSED
from data.reading.pairs import Pair
from data.reading.records import Conversation
from data.words import cut

EXCERPT = 1 << 14  # characters of a long document that a tokenizer learns from at a time
PACKED = 4  # how much larger than its file a compressed text may be, about


def tokenizer_texts(config: DataConfig) -> Iterator[str]:
    """What a tokenizer learns from: for char everything; for bpe about train_bytes of the training part. From files
    they are spread evenly over all of the text; from other sources they are the first ones, of the built-in world
    without its drills."""
    kind, wanted = config.tokenizer.kind, config.tokenizer.train_bytes
    if kind in ("byte", "pretrained"):
        return
    if kind == "bpe" and isinstance(config.source, StoryworldSource):
        # drills are the same few words again and again: cut by what they hold, a story would be in crumbs
        stories = config.source.model_copy(update={"drills": Drills(), "course": [], "validation_documents": 0})
        config = config.model_copy(update={"source": stories})
    share = _share(config.source, wanted) if kind == "bpe" else 1.0
    seen = taken = 0
    for document in sources.read(config):
        if kind == "bpe" and document.split != "train":
            continue
        for text in plain_texts(document.content):
            for piece in cut(text, EXCERPT, inside=len):
                if kind == "char" or taken <= share * seen:
                    yield piece
                    taken += len(piece.encode("utf-8", "surrogatepass"))
                seen += len(piece.encode("utf-8", "surrogatepass"))
        if kind == "bpe" and taken >= wanted:
            return


def _share(source: Any, wanted: int) -> float:
    """The share of the text that makes about this many bytes; all of it where its size is unknown."""
    if not isinstance(source, FilesSource) or source.max_records is not None:
        return 1.0
    found = files_of(source)
    is_packed = any(file.suffix.lower() in {*COMPRESSED, ".parquet"} for file in found)
    size = sum(file.stat().st_size for file in found) * (PACKED if is_packed else 1)
    return wanted / max(1, size)


def plain_texts(content: str | Conversation | Pair, flag: int = 0) -> list[str]:
    """The text of a document. Of a conversation: what is not special and, if given, has the flag. Of a pair: likewise
    of both answers, and without a flag of the prompt."""
    if isinstance(content, str):
        return [content]
    if isinstance(content, Pair):
        parts = content.answers if flag else [content.prompt, *content.answers]
        return [text for part in parts for text in plain_texts(part, flag)]
    return [s.text for s in segments(content) if not s.special and s.flags & flag == flag]
