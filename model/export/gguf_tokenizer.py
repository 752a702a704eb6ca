"""A tokenizer.json as llama.cpp wants it: tokens, merges, and the name of the rule that splits text into words.

llama.cpp knows splitting rules by name (`tokenizer.ggml.pre`) and has no other: a tokenizer with another rule would get
other ids there, without a word. So a rule that is not exactly one of these two is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from configs.command import InputError
from configs.files import read_json

# GPT-2's words. Ours have a longest one (data/words.py): with more than 512 letters in a row, ids may differ.
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
RULES = {  # steps of a tokenizer.json -> llama.cpp's name; SmolLM and GPT-2 had these rules first
    ("digits", "words", "bytes"): "smollm",
    ("digits", "words as bytes"): "smollm",
    ("words as bytes",): "gpt-2",
}
# only transformers knows these tags; an empty comment treats the spaces around it alike
GENERATION = re.compile(r"\{%([+-]?)\s*(?:end)?generation\s*([+-]?)%\}")
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's types of tokens


class _Added(BaseModel):
    id: int = Field(ge=0)
    content: str
    special: bool = False


class _Bpe(BaseModel):
    type: Literal["BPE"]
    vocab: dict[str, int]
    merges: list[str | list[str]]
    byte_fallback: Literal[False] | None = False
    ignore_merges: Literal[False] | None = False


class _File(BaseModel):
    model: dict[str, Any]
    added_tokens: list[_Added] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


class _Bpes(_File):
    model: _Bpe  # type: ignore[assignment]


class _Settings(BaseModel):
    add_bos_token: bool = False
    chat_template: str | None = None


@dataclass(frozen=True)
class GgufTokenizer:
    """What stands in the file. pre: the splitting rule. tokens, types: by id. merges: "left right", the first first."""

    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[str]
    add_bos: bool
    chat_template: str  # "": none


def read_tokenizer(directory: Path, vocab_size: int | None) -> GgufTokenizer:
    """The tokenizer of a model directory. Raises InputError for one that llama.cpp would split text differently with.

    vocab_size: rows of the embedding; ids that no token has are unused ones.
    """
    file = directory / "tokenizer.json"
    described: _File = read_json(file, _File)
    if (kind := described.model.get("type")) != "BPE":
        raise InputError(f"{file}: GGUF: llama.cpp has no {kind} tokenizer, as `char` makes it: train with bpe")
    pre = _splitting_rule(described, file)
    bpe, added = read_json(file, _Bpes).model, described.added_tokens
    by_id = {number: (token, NORMAL) for token, number in bpe.vocab.items()}
    by_id |= {one.id: (one.content, CONTROL if one.special else USER_DEFINED) for one in added}
    if vocab_size is None or max(by_id, default=0) >= vocab_size:
        raise InputError(f"{file}: has id {max(by_id)}, and the model {vocab_size} ids: they do not belong together")
    rows = [by_id.get(number, (f"[PAD{number}]", UNUSED)) for number in range(vocab_size)]
    settings_file, template = directory / "tokenizer_config.json", directory / "chat_template.jinja"
    settings = read_json(settings_file, _Settings) if settings_file.is_file() else _Settings()
    chat_template = template.read_text(encoding="utf-8") if template.is_file() else settings.chat_template or ""
    return GgufTokenizer(
        pre=pre,
        tokens=[token for token, _ in rows],
        types=[kind for _, kind in rows],
        merges=[merge if isinstance(merge, str) else " ".join(merge) for merge in bpe.merges],
        add_bos=settings.add_bos_token,
        chat_template=GENERATION.sub(r"{#\1 \2#}", chat_template),
    )


def _splitting_rule(described: _File, file: Path) -> str:
    """llama.cpp's name for it. Raises InputError if it has none."""
    rule = described.pre_tokenizer or {}
    steps = rule.get("pretokenizers", []) if rule.get("type") == "Sequence" else [rule]
    kinds = tuple(_kind(step) or "" for step in steps)
    if kinds == ("digits", "bytes"):
        raise InputError(f"{file}: GGUF: llama.cpp has no tokenizer of single bytes (`byte`): train with bpe")
    if described.normalizer is not None or kinds not in RULES:
        raise InputError(f"{file}: GGUF: llama.cpp has no name for how this tokenizer splits text, so ids would differ")
    return RULES[kinds]


def _kind(step: Any) -> str | None:
    match step:
        case {"type": "Digits", "individual_digits": True}:
            return "digits"
        case {"type": "Split", "pattern": {"Regex": str(words)}, "behavior": "Isolated", "invert": False}:
            return "words" if re.sub(r"\{1,\d+\}", "+", words) == WORDS else None
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": bool(splits)}:
            return "words as bytes" if splits else "bytes"
    return None
