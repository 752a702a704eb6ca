"""Which models can be asked for? The runs of one folder that have a checkpoint, and model directories, by name; any of
their checkpoints, with adapters; loaded when first asked for.

A name is looked up in the list of runs and never joined to a path, so no name leads out of the folder.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from configs.command import InputError
from configs.files import DamagedFile, checkpoint_directory, checkpoints_of, is_adapter, is_model
from data.tokenizer import Tokenizer
from eval.chat.session import Conversation
from eval.load_model import open_checkpoint
from model import LanguageModel
from model.files.checkpoint import base_of
from serve.batching import Batcher
from serve.limits import ApiError
from serve.run_folder import runs_in, watched_runs

MOST_LOADED = 4  # models in memory; of those that are idle, the one not asked for longest leaves


@dataclass(frozen=True, eq=False)
class Model:
    """A model in memory, which answers many at once. is_chat: it was trained on chats, and may end a turn by itself."""

    checkpoint: Path
    lm: LanguageModel
    tokenizer: Tokenizer
    is_chat: bool
    batcher: Batcher
    context_length: int


class Library:
    """The runs and model directories in `folder`, or one of either. quantise: of their weights, as
    `eval.load_model.open_checkpoint` takes it. batching: as `Batcher` takes it."""

    def __init__(self, folder: Path, device: str = "auto", quantise: str | None = None, **batching: int):
        self.folder, self.device, self.quantise, self.batching = folder, device, quantise, batching
        self._loaded: OrderedDict[tuple[tuple[Path, int], ...], Model] = OrderedDict()
        self._lock = threading.Lock()
        if not self.runs() and not watched_runs(folder):  # one that has just begun can be watched
            raise InputError(f"{folder}: is no model and holds no run: train one first, for example with `make demo`")

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

    def bases(self) -> dict[str, str | None]:
        """Name of a run -> of the run that its adapters belong to; None for a whole model, and for a base elsewhere."""
        runs = self.runs()
        bases: dict[str, str | None] = dict.fromkeys(runs)
        for name, run in runs.items():
            with suppress(DamagedFile, OSError):
                directory = checkpoint_directory(run)
                if is_adapter(directory):
                    base = base_of(directory).resolve()
                    owners = (other for other, path in runs.items() if base.is_relative_to(path.resolve()))
                    bases[name] = next(owners, None)
        return bases

    def find(self, name: str, step: int | None = None, adapter: str | None = None) -> Model:
        """A model by its name, loaded if need be: a checkpoint (None: the newest), with the adapters of another run.
        Raises ApiError: 404 for what there is not, 503 for what cannot be loaded."""
        run = self.run(name)
        steps = checkpoints_of(run)
        if step is not None and step not in steps:
            known = ", ".join(map(str, sorted(steps)))
            raise ApiError(404, f"step: {name} has no checkpoint of step {step}. There are: {known}")
        if adapter is not None and self.bases().get(adapter) != name:
            raise ApiError(404, f"adapter: {adapter[:100]!r} is not a run with adapters for {name}")
        with self._lock:
            try:
                places = [run if step is None else steps[step], *([] if adapter is None else [self.run(adapter)])]
                key = tuple((path, path.stat().st_mtime_ns) for path in map(checkpoint_directory, places))
                if key not in self._loaded:  # or a run was trained again, or has a newer checkpoint
                    self._loaded[key] = self._open(*places)
            except (InputError, DamagedFile, OSError) as error:
                raise ApiError(503, str(error)) from None
            self._loaded.move_to_end(key)
            idle = [other for other, old in self._loaded.items() if other != key and old.batcher.is_idle]
            for other in idle[: max(0, len(self._loaded) - MOST_LOADED)]:
                threading.Thread(target=self._loaded.pop(other).batcher.stop, daemon=True).start()
            return self._loaded[key]

    def _open(self, path: Path, adapter: Path | None = None) -> Model:
        quantise = self.quantise if adapter is None else None  # adapters belong to the weights as they were saved
        lm, tokenizer, checkpoint = open_checkpoint(path, self.device, quantise=quantise)
        conversation = Conversation(lm, tokenizer)
        if adapter is not None:
            conversation.use_adapters(adapter)
        batcher = Batcher(lm, **self.batching)
        batcher.start()
        context_length = lm.config.max_position_embeddings
        return Model(checkpoint, lm, tokenizer, conversation.is_chat, batcher, context_length)

    def close(self) -> None:
        """Stop every model, after what it answers."""
        for model in self._loaded.values():
            model.batcher.stop()
