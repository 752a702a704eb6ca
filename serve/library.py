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
from configs.files import DamagedFile, checkpoint_directory, is_model
from data.tokenizer import Tokenizer
from eval.chat.session import Conversation
from eval.load_model import open_checkpoint
from model import LanguageModel
from serve.batching import Batcher
from serve.limits import ApiError
from serve.run_folder import runs_in, watched_runs


@dataclass(frozen=True, eq=False)
class Model:
    """A model in memory. is_chat: it was trained on chats, and may end a turn by itself."""

    checkpoint: Path
    lm: LanguageModel
    tokenizer: Tokenizer
    is_chat: bool

    @property
    def context_length(self) -> int:
        return self.lm.config.max_position_embeddings


@dataclass(frozen=True, eq=False)
class Served(Model):
    """A model that answers many at once."""

    batcher: Batcher


def open_path(path: Path, device: str, quantise: str | None = None, adapter: Path | None = None) -> Model:
    """The newest checkpoint of a run, or a checkpoint, with the adapters of another run. Raises InputError."""
    lm, tokenizer, checkpoint = open_checkpoint(path, device, quantise=quantise)
    conversation = Conversation(lm, tokenizer)
    if adapter is not None:
        conversation.use_adapters(adapter)
    return Model(checkpoint, lm, tokenizer, conversation.is_chat)


class Library:
    """The runs and model directories in `folder`, or one of either. most_loaded: models in memory; the one that was
    idle for longest leaves. quantise: of their weights, as `eval.load_model.open_checkpoint` takes it."""

    def __init__(
        self, folder: Path, device: str = "auto", most_loaded: int = 3, quantise: str | None = None, **batching: int
    ):
        self.folder, self.device, self.most_loaded, self.batching = folder, device, most_loaded, batching
        self.quantise = quantise
        self._loaded: OrderedDict[str, Served] = OrderedDict()
        self._lock = threading.Lock()
        if not self.runs() and not watched_runs(folder):  # one that has just begun can be watched
            what = "is not a model directory and holds no run"
            raise InputError(f"{folder}: {what}: train one first, for example with `make demo`")

    def runs(self) -> dict[str, Path]:
        """Name -> run directory or model directory, in the order of their names."""
        return runs_in(self.folder, lambda path: (path / "checkpoints/latest").is_file() or is_model(path))

    def run(self, name: str) -> Path:
        """The directory of this name. Raises ApiError 404."""
        runs = self.runs()
        if name not in runs:
            message = f"The model {name[:100]!r} does not exist. There are: {', '.join(runs)}"
            raise ApiError(404, message, "model_not_found")
        return runs[name]

    def find(self, name: str) -> Served:
        """A model by its name, loaded if need be: its newest checkpoint. Raises ApiError: 404, and 503."""
        run = self.run(name)
        with self._lock:
            served = self._loaded.get(name)
            try:
                if served is None or served.checkpoint != checkpoint_directory(run):
                    model = open_path(run, self.device, self.quantise)
                    self._retire(name)
                    served = self._loaded[name] = Served(**vars(model), batcher=Batcher(model.lm, **self.batching))
                    served.batcher.start()
            except (InputError, DamagedFile) as error:
                raise ApiError(503, str(error)) from None
            self._loaded.move_to_end(name)
            idle = [other for other, old in self._loaded.items() if other != name and old.batcher.is_idle]
            for other in idle[: max(0, len(self._loaded) - self.most_loaded)]:
                self._retire(other)
            return served

    def _retire(self, name: str) -> None:
        """Let a model finish in the background what it answers, and forget it."""
        if (old := self._loaded.pop(name, None)) is not None:
            threading.Thread(target=old.batcher.stop, daemon=True).start()

    def close(self) -> None:
        """Stop every model, after what it answers."""
        for served in self._loaded.values():
            served.batcher.stop()
