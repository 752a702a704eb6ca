"""Configs and overrides that are not YAML, more of YAML than a config needs, or files without an end.

Each damage is met as a config file, as a file that another one extends, as a probe file and as an override.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.attack.attack import Case
from tests.attack.victims import trained, write_config

PLACES = {  # how a file is reached -> the command
    "as a config": ("train.pretrain", "bad.yaml"),
    "as what a config extends": ("train.budget", "extends.yaml"),
    "as a config of data.prepare": ("data.prepare", "bad.yaml"),
}
SEED = "seed: 1\n"
TEXTS = {
    "a key twice": "seed: 1\nseed: 2\n",
    "a key twice in a section": "train:\n  max_steps: 1\n  max_steps: 2\n",
    "a key twice in a list": "eval:\n  hooks:\n  - {name: samples, every: 1, every: 2}\n",
    "a key twice in a mix": "data: {source: {kind: mix, parts: [{weight: 1, weight: 2}]}}\n",
    "extends twice": "extends: tiny.yaml\nseed: 1\nextends: tiny.yaml\n",
    "a sexagesimal number": "train:\n  max_steps: 12:30\n",
    "a sexagesimal seed": "seed: 1:30:00\n",
    "yes": "allow_mismatch: yes\n",
    "no in a section": "data: {drop_duplicates: no}\n",
    "on": "train: {trace: on}\n",
    "off": "data: {isolate_documents: off}\n",
    "a number with underscores": "seed: 1_000\n",
    "a binary number": "seed: 0b11\n",
    "a date": "seed: 2020-01-02\n",
    "a time": "seed: 2001-12-14t21:59:43.10-05:00\n",
    "a date that does not exist": "seed: 2020-13-45\n",
    "10,000 lists in one another": "eval: {prompts: " + "[" * 10_000 + "]" * 10_000 + "}\n",
    "1,000 mappings in one another": "".join(" " * i + "a:\n" for i in range(1000)),
    "30 lists in one another": "eval: {prompts: " + "[" * 30 + "]" * 30 + "}\n",
    "300 flow mappings in one another": "model: " + "{a: " * 300 + "1" + "}" * 300 + "\n",
    "a NUL": "seed: 1\0\n",
    "a NUL in quotes": 'name: "a\0b"\n',
    "an escape character": "seed: \x1b[31m1\n",
    "an alias": "seed: &a 1\nname: *a\n",
    "an alias of itself": "model: &a {b: *a}\n",
    "a merge key": "model: &a {hidden_size: 8}\ntrain:\n  <<: *a\n",
    "a billion laughs": "a: &a [x, x, x]\n"
    + "".join(f"{c}: &{c} [*{p}, *{p}, *{p}]\n" for p, c in zip("abcdefghij", "bcdefghijk", strict=True)),
    "a Python object": "seed: !!python/object/apply:os.getpid []\n",
    "a Python name": "name: !!python/name:os.system\n",
    "a tag of its own": "seed: !mine 1\n",
    "a set": "model: !!set {a, b}\n",
    "bytes": "name: !!binary aGk=\n",
    "an explicit number": 'seed: !!int "3"\n',
    "a tab": "model:\n\thidden_size: 8\n",
    "two documents": "seed: 1\n---\nseed: 2\n",
    "a document that ends twice": "seed: 1\n...\n...\nseed: 2\n",
    "a directive of YAML 9": "%YAML 9.0\n---\nseed: 1\n",
    "a directive of YAML 1.3 and a bad key": "%YAML 1.3\n---\nsed: 1\n",
    "a reserved letter": "seed: `1`\n",
    "an at sign": "@seed: 1\n",
    "an open quote": 'name: "abc\n',
    "an open list": "eval: {prompts: [a, b\n",
    "an escape that does not exist": 'name: "\\q"\n',
    "a character that does not exist": 'name: "\\UFFFFFFFF"\n',
    "half a character": 'name: "\\ud800"\n',
    "a key that is a list": "? [1, 2]\n: 3\n",
    "a key that is a mapping": "? {a: 1}\n: 3\n",
    "a key that is a number": "1: 2\n",
    "a key that is null": "null: 2\n",
    "a key that is true": "true: 2\n",
    "an empty key": ": 2\n",
    "an empty key in quotes": '"": 2\n',
    "a key of 2,000 letters": "a" * 2000 + ": 1\n",
    "a key of a million letters": "? " + "a" * 10**6 + "\n: 1\n",
    "a number as a key of a hook": "eval: {hooks: [{name: samples, 1: 2}]}\n",
    "a number of 5,000 digits": "seed: " + "9" * 5000 + "\n",
    "a number of 5,000 hexadecimal digits": "seed: 0x" + "f" * 5000 + "\n",
    "a float of 5,000 digits": "model: {rope_theta: 1." + "9" * 5000 + "}\n",
    "a million": "seed: " + "9" * 10**6 + "\n",
    "nothing": "",
    "only a comment": "# nothing\n",
    "null": "null\n",
    "a word": "hello\n",
    "a list": "- seed: 1\n",
    "a number": "3\n",
    "an empty document": "---\n",
    "extends without a file": "extends:\n",
    "extends a list": "extends: [tiny.yaml, tiny.yaml]\n",
    "extends a mapping": "extends: {a: b}\n",
    "extends itself": "extends: bad.yaml\n",
    "extends a folder": "extends: .\n",
    "extends a folder of another name": "extends: ..\n",
    "extends a file that is not there": "extends: nowhere.yaml\n",
    "extends a file in a file": "extends: text.txt/base.yaml\n",
    "extends a name with a NUL": 'extends: "a\\0b"\n',
    "extends a name of 300 letters": "extends: " + "a" * 300 + "\n",
    "extends a path of 5,000 letters": "extends: " + "a/" * 2500 + "\n",
    "extends an unknown home": "extends: ~nosuchuser/base.yaml\n",
    "extends /dev/zero": "extends: /dev/zero\n",
    "extends /dev/stdin": "extends: /dev/stdin\n",
    "extends the terminal": "extends: /dev/tty\n",
    "extends memory": "extends: /proc/self/mem\n",
    "40,000 unknown keys": "".join(f"key{i}: 1\n" for i in range(40_000)),
    "40,000 unknown keys of a section": "model:\n" + "".join(f"  key{i}: 1\n" for i in range(40_000)),
    "2 MB": "# " + "a" * 2_000_000 + "\nseed: 1\n",
    "900 kB of spaces": "seed:" + " " * 900_000 + "x\n",
    "900 kB of brackets": "[" * 900_000,
    "900 kB of colons": ":" * 900_000,
    "900 kB of dashes": "- " * 450_000,
    "900 kB of quotes": '"' * 900_000,
    "900 kB of exclamation marks": "!" * 900_000,
    "900 kB of ampersands": "&" * 900_000,
}
BYTES = {
    "UTF-16": "seed: 1\n".encode("utf-16"),
    "UTF-16 without a mark": "seed: 1\n".encode("utf-16-le"),
    "UTF-32": "seed: 1\n".encode("utf-32"),
    "Latin-1": "name: Füße\n".encode("latin-1"),
    "half a character at the end": "name: Füß".encode()[:-1],
    "zeros": b"\0" * 100,
    "random bytes": bytes(range(256)) * 4,
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(100)),
}
GOOD = {
    "a byte-order mark": b"\xef\xbb\xbfextends: tiny.yaml\n",
    "Windows line ends": b"extends: tiny.yaml\r\nseed: 3\r\n",
    "old Mac line ends": b"extends: tiny.yaml\rseed: 3\r",
    "no line end": b"extends: tiny.yaml",
    "an empty section": b"extends: tiny.yaml\nmodel: {}\n",
    "zeros before a number": b"extends: tiny.yaml\nseed: 010\n",
    "an octal number": b"extends: tiny.yaml\nseed: 0o17\n",
}
OVERRIDES = [
    "", "=", "=1", "seed", "seed=", "seed=[", "seed={a: 1", "seed=1:30", "seed=1_0", "seed=yes", "seed==1", ".seed=1",
    "seed.=1", "model..hidden_size=8", ".=1", "..=1", ". .=1", "model.=1", "model=1", "model=[]", "model=null",
    "data.source={kind: storyworld, documents: 1, documents: 2}", "eval.hooks=[{name: samples, every: 1, every: 2}]",
    "eval.hooks=[{x: 1, x: 2}]", "seed=*a", "seed=!!python/name:os.system", "seed=!x 1",
    "seed=1\n---\n2", "eval.prompts=" + "[" * 5000, "eval.prompts=" + "[" * 5000 + "]" * 5000, "seed=" + "9" * 5000,
    "seed=" + "9" * 100_000, "a" * 100_000 + "=1", "a" * 100_000, "a." * 50_000 + "a=1", "." * 100_000 + "=1",
    "model." * 3 + "hidden_size=8", "überall=1", "模型=1", "mödel.hidden_size=8", "seed=\x1b[31m", "\x1b[31m=1",
    "seed=\udcff", "\udcff=1", "seed=\u202e1", "extends=tiny.yaml", "extends=nowhere.yaml", "eval.hooks.0=samples",
    "eval.hooks.0.name=samples", "seed.a=1", "seed.a.b.c=1", "name.x=1", "seed=\t1\t:", "seed=@", "seed=`", "seed=%",
    "seed=?", "seed=- 1", "seed=: 1", "seed={? [1]: 2}", "seed={: 2}", 'name="\\ud800"', 'name="\\0"',
    'name="\\UFFFFFFFF"',
    "output_dir=~nosuchuser", 'output_dir="a\\0b"', "output_dir=" + "a" * 300, "resume=~nosuchuser/x",
    'resume="\\0"',
    "init_from=~nosuchuser/x", "init_from=" + "a/" * 2500, 'init_from="\\0"', "data.source.path=~nosuchuser/x",
    'data.source.path="\\0"', "data.source.path=" + "a" * 300, "eval.attention.probe_file=~nosuchuser",
    "data.tokenizer={kind: pretrained, path: ~nosuchuser/t.json}", "init_from=loop/x", "output_dir=loop/x",
    "data.source.path=loop", "eval.attention.probe_file=loop", "resume=loop/a",
]  # fmt: skip


def cases() -> Iterator[Case]:
    damages = {what: text.encode() for what, text in TEXTS.items()} | BYTES
    for what, raw in damages.items():
        for place, command in PLACES.items():
            skip = place == "as a config of data.prepare" and not raw.startswith((b"data", b"seed: 1\nseed"))
            if not skip:
                yield Case(f"{what}, {place}", command, partial(put, raw=raw), b"x: [\n", says=r"\S")
    for what, raw in GOOD.items():
        yield Case(what, ("train.budget", "bad.yaml"), partial(put, raw=raw), may_work=True)
    for name, prepare in SPECIAL.items():
        for place, command in PLACES.items():
            yield Case(f"{name}, {place}", command, prepare, says=r"\S")
    for number, override in enumerate(OVERRIDES):
        command = ("train.pretrain", "tiny.yaml", override)
        yield Case(
            f"override {number}: {override[:40]!a}",
            command,
            partial(put, raw=b"seed: 1"),
            says=r"command line|`|--|write|init_from",
        )
    for what in ("a key twice in a list", "a NUL", "10,000 lists in one another", "an alias"):
        raw = TEXTS[what].encode()
        yield Case(f"{what}, as a probe file", PROBE, partial(put, raw=raw), says="bad.yaml")
        for command in (("eval.compare", "runs/tiny"), ("eval.chat", "runs/tiny"), ("train.pretrain", "tiny.yaml")):
            prepare = partial(saved, raw=raw)
            yield Case(f"{what}, as the config that a run keeps, {command[0]}", command, prepare, b"a\n", True)


PROBE = ("train.pretrain", "tiny.yaml", "eval.attention.probe_file=bad.yaml")


def put(folder: Path, raw: bytes) -> None:
    write_config(folder)
    (folder / "bad.yaml").write_bytes(raw)
    (folder / "extends.yaml").write_text("tracking: {wandb: disabled}\nextends: bad.yaml\n", encoding="utf-8")
    (folder / "loop").symlink_to("loop")


def saved(folder: Path, raw: bytes) -> None:
    (trained(folder) / "config.yaml").write_bytes(raw)


def chain(folder: Path) -> None:
    put(folder, b"extends: c0.yaml\n")
    for i in range(1000):
        (folder / f"c{i}.yaml").write_text(f"extends: c{i + 1}.yaml\n", encoding="utf-8")


def circle(folder: Path) -> None:
    put(folder, b"extends: other.yaml\n")
    (folder / "other.yaml").write_text("extends: bad.yaml\n", encoding="utf-8")


def pipe(folder: Path) -> None:
    put(folder, b"")
    (folder / "bad.yaml").unlink()
    os.mkfifo(folder / "bad.yaml")


def linked(folder: Path, target: str) -> None:
    put(folder, b"")
    (folder / "bad.yaml").unlink()
    (folder / "bad.yaml").symlink_to(target)


def a_folder(folder: Path) -> None:
    put(folder, b"")
    (folder / "bad.yaml").unlink()
    (folder / "bad.yaml").mkdir()


SPECIAL = {
    "a chain of 1,000 files": chain,
    "a circle of two": circle,
    "a pipe": pipe,
    "a link to itself": partial(linked, target="bad.yaml"),
    "a link to nowhere": partial(linked, target="nowhere.yaml"),
    "a link to /dev/zero": partial(linked, target="/dev/zero"),
    "a link to /dev/stdin": partial(linked, target="/dev/stdin"),
    "a folder": a_folder,
}
