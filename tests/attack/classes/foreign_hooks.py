"""Configs that came from elsewhere and name code to run: nothing is imported unless the user says so.

The module that they name leaves a file when it is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.attack.attack import Case
from tests.attack.victims import CONFIG, trained, write_config

MODULE = 'from pathlib import Path\nPath("IMPORTED").touch()\ndef look(event): pass\n'
HOOKS = {
    "a name": ["payload:look"],
    "a cadence": [{"name": "payload:look", "every": 1}],
    "behind built-in ones": ["validation", "samples", "payload:look"],
    "a module of the downloaded folder": ["runs.tiny.payload:look"],
    "the standard library": ["antigravity:fly_me"],
    "a call of the system": ["os:abort"],
}
REFUSED = r"`eval.hooks` names .*--trust-hooks"


def cases() -> Iterator[Case]:
    for what, hooks in HOOKS.items():
        saved = partial(in_the_run, hooks=hooks)
        for file in ("runs/tiny/config.yaml", "runs/tiny/demo.yaml", "runs/tiny/checkpoints/demo.yaml"):
            for command in ("train.pretrain", "train.sweep"):
                yield refused(f"{command} {file}, {what}", (command, file), saved)
        for name, place in PLACES.items():
            yield refused(f"a config {name}, {what}", ("train.pretrain", place), partial(elsewhere, hooks=hooks))
        refusals = (
            ("train.pretrain", "mine.yaml", "name=new"),
            ("train.sweep", "mine.yaml", "seed=3", "--seeds", "2"),
            ("train.sft", "runs/tiny/config.yaml", "init_from=runs/tiny"),
        )
        for command in refusals:
            yield refused(f"{' '.join(command)}, {what}", command, partial(extended, hooks=hooks))
    for command in READING:
        yield Case(f"{' '.join(command)} imports nothing", command, partial(in_the_run), b"a\n", True, check=unread)
    own = (*TRAIN, "runs/tiny/config.yaml", "name=own", "train.max_steps=1", "eval.every=0", "eval.attention.every=0")
    given = {
        "the option": (*own, "--trust-hooks"),
        "the user's own word": (*own, "eval.hooks=[payload:look]"),
        "a part of the user's own word": (*own, "eval={hooks: [payload:look], every: 0}"),
    }
    for what, command in given.items():
        yield Case(f"with {what} it is imported", command, in_the_run, may_work=True, check=read)
    plain = (*own, "eval.hooks=[validation]")
    yield Case("without hooks it trains", plain, in_the_run, may_work=True, check=unread)
    yield Case("a file of one's own", (*TRAIN, "mine.yaml", *own[2:]), mine, may_work=True, check=read)


TRAIN = ("train.pretrain",)
PLACES = {
    "outside": "../elsewhere/demo.yaml",
    "behind a link": "link.yaml",
    "in a linked folder": "linked/demo.yaml",
    "that extends one outside": "extends.yaml",
    "whose name looks like an override": "extends_override.yaml",
    "in a folder with weights": "model/demo.yaml",
    "in a folder below weights": "model/inner/demo.yaml",
}
READING = [
    ("train.budget", "runs/tiny/config.yaml"),
    ("data.prepare", "runs/tiny/config.yaml"),
    ("data.inspect", "runs/tiny/config.yaml"),
    ("eval.compare", "runs/tiny", "--skip-decode"),
    ("eval.attention", "runs/tiny"),
    ("eval.samples", "runs/tiny", "a", "--max-new-tokens", "2"),
    ("eval.chat", "runs/tiny", "--max-new-tokens", "2"),
    ("eval.questions", "runs/tiny"),
    ("train.pretrain", "tiny.yaml"),  # a run of this name is there: its config is read to compare
    ("train.pretrain", "tiny.yaml", "name=new", "init_from=runs/tiny", "train.max_steps=1", "eval.hooks=[]"),
]


def refused(name: str, command: tuple[str, ...], prepare) -> Case:
    return Case(name, command, prepare, says=REFUSED, check=unread)


def unread(folder: Path) -> str:
    return "the foreign module was imported" if (folder / "IMPORTED").exists() else ""


def read(folder: Path) -> str:
    return "" if (folder / "IMPORTED").exists() else "what the user trusts was not imported"


def in_the_run(folder: Path, hooks=("payload:look",)) -> None:
    """A finished run, downloaded: its configs name code."""
    run = trained(folder)
    for place in (folder, run):
        (place / "payload.py").write_text(MODULE, encoding="utf-8")
    for file in (run / "config.yaml", run / "demo.yaml", run / "checkpoints" / "demo.yaml"):
        text = file.read_text(encoding="utf-8") if file.is_file() else json.dumps(CONFIG)
        before, _, after = text.partition("  hooks:\n")
        after = after[after.find("  every:") :] if after else ""
        file.write_text(
            f"{before}  hooks: {json.dumps(list(hooks))}\n{after}" if after else config(hooks), encoding="utf-8"
        )


def config(hooks) -> str:
    return json.dumps(CONFIG | {"eval": CONFIG["eval"] | {"hooks": list(hooks)}})


def mine(folder: Path, hooks=("payload:look",)) -> None:
    write_config(folder)
    (folder / "payload.py").write_text(MODULE, encoding="utf-8")
    (folder / "mine.yaml").write_text(config(hooks), encoding="utf-8")


def elsewhere(folder: Path, hooks) -> None:
    """A config outside of the folder in which the user works, and ways to it."""
    mine(folder, hooks)
    outside = folder.parent / "elsewhere"
    outside.mkdir(exist_ok=True)
    (outside / "demo.yaml").write_text(config(hooks), encoding="utf-8")
    (folder / "link.yaml").symlink_to(outside / "demo.yaml")
    (folder / "linked").symlink_to(outside)
    (folder / "extends.yaml").write_text(f"extends: ../{outside.name}/demo.yaml\nseed: 3\n", encoding="utf-8")
    odd = outside / "command line `x`"
    odd.mkdir(exist_ok=True)
    (odd / "demo.yaml").write_text(config(hooks), encoding="utf-8")
    (folder / "command line `x`").symlink_to(odd)
    (folder / "extends_override.yaml").write_text('extends: "command line `x`/demo.yaml"\n', encoding="utf-8")
    for place in (folder / "model", folder / "model" / "inner"):
        place.mkdir()
        (place / "demo.yaml").write_text(config(hooks), encoding="utf-8")
    (folder / "model" / "model.safetensors").touch()


def extended(folder: Path, hooks) -> None:
    """A file of the user's own that extends a downloaded run's."""
    in_the_run(folder, hooks)
    (folder / "mine.yaml").write_text("extends: runs/tiny/config.yaml\nseed: 3\n", encoding="utf-8")
