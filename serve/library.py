"""Which models can be asked for? The runs of one folder that have a checkpoint, and model directories, by name; loaded
when first asked for.

A name is looked up in the list of runs and never joined to a path, so no name leads out of the folder.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from configs.command import InputError
from configs.files import checkpoint_directory, is_model
from data.tokenizer import Tokenizer
from eval.load_model import ends_turns, open_checkpoint
from model import LanguageModel
from serve.batching import Batcher
from serve.run_folder import RunFolder


@dataclass(frozen=True)
class Served:
    """One model that answers. is_chat: it was trained on chats, and may end a turn by itself."""

    name: str
    checkpoint: Path
    tokenizer: Tokenizer
    batcher: Batcher
    is_chat: bool

    @property
    def lm(self) -> LanguageModel:
        return self.batcher.lm

    @property
    def context_length(self) -> int:
        return self.lm.config.max_position_embeddings


def _has_model(path: Path) -> bool:
    return (path / "checkpoints" / "latest").is_file() or is_model(path)


class Library:
    """The runs and model directories in `folder`, or one of either. most_loaded: models in memory; the one that was
    idle for longest leaves.

    quantise: of their weights, as `eval.load_model.open_checkpoint` takes it.
    """

    def __init__(
        self, folder: Path, device: str = "auto", most_loaded: int = 3, quantise: str | None = None, **batching: int
    ):
        self.folder, self.device, self.most_loaded, self.batching = folder, device, most_loaded, batching
        self.quantise = quantise
        self._loaded: OrderedDict[str, Served] = OrderedDict()
        self._lock = threading.Lock()
        if not self.runs() and not RunFolder(folder).runs():  # one that has just begun can be watched
            what = "is not a model directory and holds no run"
            raise InputError(f"{folder}: {what}: train one first, for example with `make demo`")

    def runs(self) -> dict[str, Path]:
        """Name -> run directory or model directory, in the order of their names."""
        if _has_model(self.folder):
            return {self.folder.resolve().name: self.folder}
        if not self.folder.is_dir():
            return {}
        return {path.name: path for path in sorted(self.folder.iterdir()) if _has_model(path)}

    def changed_at(self, name: str) -> int:
        """When the run's newest checkpoint was named: seconds since 1970."""
        run = self.runs()[name]
        latest = run / "checkpoints" / "latest"
        return int((latest if latest.is_file() else run).stat().st_mtime)

    def find(self, name: str) -> Served:
        """A model by its name, loaded if need be: its newest checkpoint. Raises KeyError, and InputError."""
        with self._lock:
            run = self.runs()[name]
            held = self._loaded.get(name)
            try:
                newest = checkpoint_directory(run)
            except ValueError as error:
                raise InputError(str(error)) from None
            if held is None or held.checkpoint != newest:
                lm, tokenizer, checkpoint = open_checkpoint(run, self.device, quantise=self.quantise)
                batcher = Batcher(lm, **self.batching)
                batcher.start()
                self._retire(name)
                held = self._loaded[name] = Served(name, checkpoint, tokenizer, batcher, ends_turns(lm, tokenizer))
            self._loaded.move_to_end(name)
            idle = [one for one, served in self._loaded.items() if one != name and served.batcher.is_idle]
            for one in idle[: max(0, len(self._loaded) - self.most_loaded)]:
                self._retire(one)
            return held

    def _retire(self, name: str) -> None:
        """Let a model finish in the background what it answers, and forget it."""
        if (old := self._loaded.pop(name, None)) is not None:
            threading.Thread(target=old.batcher.stop, daemon=True).start()

    def close(self, finish: bool = True) -> None:
        """Stop every model, after what it answers or at once."""
        for served in self._loaded.values():
            served.batcher.stop(finish)
