"""tokenizer.json and tokenizer_config.json with a wrong value in them, or a part of another kind of tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.attack.attack import Case
from tests.attack.mutations import WRONG, change_json, mutated
from tests.attack.victims import foreign

CHAT = ("eval.chat", "model", "--max-new-tokens", "2")
ADOPT = ("data.prepare", "tiny.yaml", "data.tokenizer={kind: pretrained, path: model}")
INIT = ("train.pretrain", "tiny.yaml", "name=other", "init_from=model")
SETTINGS = ("pad_token", "bos_token", "eos_token")
PARTS = "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model".split()
MODEL = (
    "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback vocab merges".split()
)
VALUES = {what: WRONG[what] for what in ("a string", "null", "true", "-1", "an object", "a list", "10**30")}
CHANGED: dict[str, Callable[[Any], Any]] = {
    "an id of 10**9": lambda all_: _in_model(all_, vocab=all_["model"]["vocab"] | {"zzz": 10**9}),
    "an id of 2**32": lambda all_: _in_model(all_, vocab=all_["model"]["vocab"] | {"zzz": 2**32}),
    "an id twice": lambda all_: _in_model(all_, vocab=dict.fromkeys(all_["model"]["vocab"], 7)),
    "an empty vocabulary": lambda all_: _in_model(all_, vocab={}),
    "a merge of unknown tokens": lambda all_: _in_model(all_, merges=[["zz", "zzz"]]),
    "a merge of one token": lambda all_: _in_model(all_, merges=["a"]),
    "a dropout of 1": lambda all_: _in_model(all_, dropout=1.0),
    "a word model": lambda all_: all_ | {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "no"}},
    "a word-piece model": lambda all_: (
        all_
        | {
            "model": {
                "type": "WordPiece",
                "vocab": {"a": 0},
                "unk_token": "no",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 3,
            }
        }
    ),
    "a unigram model without its unknown token": lambda all_: (
        all_ | {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False}}
    ),
    "a unigram model with an id that is not there": lambda all_: (
        all_ | {"model": {"type": "Unigram", "unk_id": 9, "vocab": [["a", -1.0]], "byte_fallback": False}}
    ),
    "a unigram model of nothing": lambda all_: (
        all_ | {"model": {"type": "Unigram", "unk_id": 0, "vocab": [], "byte_fallback": False}}
    ),
    "a broken regular expression": lambda all_: (
        all_ | {"pre_tokenizer": {"type": "Split", "invert": False, "pattern": {"Regex": "(("}, "behavior": "Isolated"}}
    ),
    "a broken normalizer": lambda all_: all_ | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a normalizer of no bytes": lambda all_: all_ | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    "an empty replacement": lambda all_: (
        all_ | {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}}
    ),
    "a special token of no character": lambda all_: _token(all_, content=""),
    "a special token with another's id": lambda all_: _token(all_, id=1),
    "a special token with a far id": lambda all_: _token(all_, id=2**31),
    "no special tokens": lambda all_: all_ | {"added_tokens": []},
    "a template without its token": lambda all_: (
        all_
        | {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "no", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        }
    ),
    "padding to 10**15 tokens": lambda all_: (
        all_
        | {
            "padding": {
                "strategy": {"Fixed": 10**15},
                "direction": "Left",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "<|pad|>",
            }
        }
    ),
    "truncation with a stride beyond its length": lambda all_: (
        all_ | {"truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5}}
    ),
    "200 nested normalizers": lambda all_: all_ | {"normalizer": _nested(200)},
}


def cases() -> Iterator[Case]:
    for setting in SETTINGS:
        values = WRONG | {"a token as an object": {"content": "<|eos|>", "lstrip": False}, "an unknown token": "<|no|>"}
        values |= {"an object without content": {"lstrip": 1}, "an object with a number": {"content": 3}, "nothing": ""}
        for what, value in values.items():
            yield _case("tokenizer_config.json", f"{setting} is {what}", partial(_with, key=setting, value=value))
    for keys, inside in ((PARTS, None), (MODEL, "model")):
        for key in keys:
            yield _case("tokenizer.json", f"{key} is left out", partial(_without, key=key, inside=inside))
            for what, value in VALUES.items():
                yield _case("tokenizer.json", f"{key} is {what}", partial(_with, key=key, value=value, inside=inside))
    for seed in range(90):
        yield _case("tokenizer.json", f"mutation {seed}", partial(mutated, seed=seed))
    for what, change in CHANGED.items():
        for command in (CHAT, ADOPT, INIT):
            yield _case("tokenizer.json", f"{what}, for {command[0]}", change, command)


def _case(file: str, name: str, change: Callable[[Any], Any], command: tuple[str, ...] = CHAT) -> Case:
    return Case(f"{file}: {name}", command, partial(damage, file=file, change=change), b"a fox\n", may_work=True)


def damage(folder: Path, file: str, change: Callable[[Any], Any]) -> None:
    """Change a file of a model directory."""
    change_json(foreign(folder) / file, change)


def _with(values: dict[str, Any], key: str, value: Any, inside: str | None = None) -> dict[str, Any]:
    return values | {key: value} if inside is None else values | {inside: values[inside] | {key: value}}


def _without(values: dict[str, Any], key: str, inside: str | None = None) -> dict[str, Any]:
    del (values if inside is None else values[inside])[key]
    return values


def _in_model(values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return values | {"model": values["model"] | changes}


def _token(values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return values | {"added_tokens": [values["added_tokens"][0] | changes, *values["added_tokens"][1:]]}


def _nested(depth: int) -> Any:
    return {"type": "NFC"} if depth == 0 else {"type": "Sequence", "normalizers": [_nested(depth - 1)]}
