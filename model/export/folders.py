"""A model as a directory that transformers opens: for the Hub, or adapters and their base as one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from configs.command import InputError
from configs.files import ADAPTER, CARD, STATE, TRAINING, check_files, is_adapter, is_file, read_json, read_text
from configs.text import fenced
from model.saving.new_directory import TOKENIZER_FILES, new_directory, read_tokenizer_files, write_whole

if TYPE_CHECKING:
    from model.transformer import LanguageModel

CONFIGS = ("config.json", "generation_config.json", ADAPTER)
INDEX = "model.safetensors.index.json"
PICTURE = re.compile(r"^!\[([^\[\]\n]*)\]\(([\w\-]+(?:/[\w\-]+)*\.(?:png|gif))\)$", re.MULTILINE)


class _Result(BaseModel):
    """What is read of a finished run's result.json."""

    step: int
    summary: list[str] = []
    sample: str = ""


def write_hub_folder(directory: Path, out: Path) -> str:
    """Copy a checkpoint without the state of its training, with its card and what the run's report shows.

    Raises InputError; DamagedFile if a file has changed.
    """
    from model.saving.card import published

    names = [*CONFIGS, INDEX, *TOKENIZER_FILES, *(file.name for file in sorted(directory.glob("*.safetensors")))]
    there = [name for name in names if is_file(directory / name)]
    check_files(directory, *there)
    with new_directory(out) as folder:
        for name in there:
            shutil.copyfile(directory / name, folder / name)
        figures = _copy_figures(directory.resolve(), folder)
        if is_file(directory / CARD):
            card = read_text(directory / CARD)
            (folder / CARD).write_text(published(card, figures), encoding="utf-8")
    return f"{out}: choose a license in its {CARD}, then: hf upload NAME {out}"


def write_merged(directory: Path, out: Path) -> str:
    """Write adapters and their base as one model. Raises InputError."""
    from model.saving.checkpoint_format import load

    if not is_adapter(directory):
        raise InputError(f"{directory}: holds a whole model already, not adapters")
    copied, lm = read_tokenizer_files(directory), load(directory)
    write_whole(lm, copied | {CARD: _new_card(directory, lm).encode()}, out)
    return f"{out}: a whole model, which transformers loads"


def _new_card(directory: Path, lm: LanguageModel) -> str:
    """The card of a whole model in place of that of adapters."""
    from model.saving.card import Progress, model_card

    run = directory.resolve()
    name = run.parents[1].name if run.parent.name == "checkpoints" else run.name
    state = directory / TRAINING / STATE
    return model_card(name, lm, read_json(state, Progress) if is_file(state) else None)


def _copy_figures(directory: Path, folder: Path) -> str:
    """What a finished run says of its last checkpoint, in Markdown; the pictures of its report go along.

    "" for another checkpoint, and for a directory outside a run.
    """
    run = directory.parents[1]
    file = run / "result.json"
    if directory.parent.name != "checkpoints" or not is_file(file):
        return ""
    result: _Result = read_json(file, _Result)
    if directory.name != f"step_{result.step:08d}":
        return ""
    lines = ["## Figures", "", fenced("\n".join(result.summary)), ""]
    if result.sample:
        lines += ["A sample, as the model wrote it:", "", fenced(result.sample), ""]
    report = read_text(run / "report.md") if is_file(run / "report.md") else ""
    for title, path in PICTURE.findall(report):
        if is_file(run / path):
            (folder / "pictures").mkdir(exist_ok=True)
            shutil.copyfile(run / path, folder / "pictures" / Path(path).name)
            lines += [f"![{title}](pictures/{Path(path).name})", ""]
    return "\n".join(lines)
