"""Find and load models by name: runs with a checkpoint, and model directories.

Any checkpoint of a run can be loaded, with adapters. A name is looked up in the list of runs and
never joined to a path, so no name leads out of the folder.
"""

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

# This many models stay in memory. Of the idle ones, the least recently used one leaves.
MOST_LOADED = 4


@dataclass(frozen=True, eq=False)
class Model:
    """A model in memory, which answers many requests at once."""

    checkpoint: Path
    lm: LanguageModel
    tokenizer: Tokenizer
    # it was trained on chats, so it ends its turns
    is_chat: bool
    batcher: Batcher
    context_length: int


class Library:
    """The runs and model directories in a folder, or a single one. batching: for `Batcher`."""

    def __init__(
        self, folder: Path, device: str = "auto", quantise: str | None = None, **batching: int
    ):
        self.folder = folder
        self.device = device
        self.quantise = quantise
        self.batching = batching
        # in the order of their last use
        self._loaded: OrderedDict[tuple[tuple[Path, int], ...], Model] = OrderedDict()
        self._lock = threading.Lock()
        # a run that has just begun can be watched
        if not self.runs() and not watched_runs(folder):
            remedy = "train one first, for example with `make demo`"
            raise InputError(f"{folder}: is no model and holds no run: {remedy}")

    def runs(self) -> dict[str, Path]:
        """Return run and model directories, sorted by name."""
        return runs_in(self.folder, lambda p: (p / "checkpoints/latest").is_file() or is_model(p))

    def run(self, name: str) -> Path:
        """Return the directory of this name. Raises ApiError 404."""
        runs = self.runs()
        if name not in runs:
            message = f"The model {name[:100]!r} does not exist. There are: {', '.join(runs)}"
            raise ApiError(404, message, "model_not_found")
        return runs[name]

    def bases(self) -> dict[str, str | None]:
        """Return every run's base, if it has adapters for another run of the folder."""
        runs = self.runs()
        bases: dict[str, str | None] = dict.fromkeys(runs)
        for name, run in runs.items():
            # a training run may replace its checkpoint meanwhile
            with suppress(DamagedFile, OSError):
                directory = checkpoint_directory(run)
                if is_adapter(directory):
                    base = base_of(directory).resolve()
                    # a base is a checkpoint, and its run is the folder above
                    owners = (n for n, path in runs.items() if base.is_relative_to(path.resolve()))
                    bases[name] = next(owners, None)
        return bases

    def find(self, name: str, step: int | None = None, adapter: str | None = None) -> Model:
        """Return a model, loaded if need be: a checkpoint (None: the newest) with adapters.

        Raises ApiError: 404 if it does not exist, 503 if it cannot be loaded.
        """
        run = self.run(name)
        # read at every request, since a run that trains saves and deletes meanwhile
        steps = checkpoints_of(run)
        if step is not None and step not in steps:
            known = ", ".join(map(str, sorted(steps)))
            raise ApiError(404, f"step: {name} has no checkpoint {step}. There are: {known}")
        if adapter is not None and self.bases().get(adapter) != name:
            raise ApiError(404, f"adapter: {adapter[:100]!r} is no run with adapters for {name}")
        # two requests for a new model load it once
        with self._lock:
            try:
                paths = [run if step is None else steps[step]]
                if adapter is not None:
                    paths.append(self.run(adapter))
                directories = [checkpoint_directory(path) for path in paths]
                # the key is new if a run was trained again, or has a newer checkpoint
                key = tuple((path, path.stat().st_mtime_ns) for path in directories)
                if key not in self._loaded:
                    self._loaded[key] = self._open(*paths)
            except (InputError, DamagedFile, OSError) as error:
                raise ApiError(503, str(error)) from None
            # the last one is the newest in use, so the first idle one leaves
            self._loaded.move_to_end(key)
            others = [other for other in self._loaded if other != key]
            idle = [other for other in others if self._loaded[other].batcher.is_idle]
            for other in idle[: max(0, len(self._loaded) - MOST_LOADED)]:
                stop = self._loaded.pop(other).batcher.stop
                # in a thread: it may have taken a request by now, and finishes that
                threading.Thread(target=stop, daemon=True).start()
            return self._loaded[key]

    def _open(self, path: Path, adapter: Path | None = None) -> Model:
        # adapters need the weights as saved
        quantise = self.quantise if adapter is None else None
        lm, tokenizer, checkpoint = open_checkpoint(path, self.device, quantise=quantise)
        # the terminal's chat already checks adapters and finds out whether a model ends its turns
        conversation = Conversation(lm, tokenizer)
        if adapter is not None:
            conversation.use_adapters(adapter)
        batcher = Batcher(lm, **self.batching)
        batcher.start()
        context_length = lm.config.max_position_embeddings
        return Model(checkpoint, lm, tokenizer, conversation.is_chat, batcher, context_length)

    def close(self) -> None:
        """Stop every model after its last answer."""
        for model in self._loaded.values():
            model.batcher.stop()
