"""Models that are looked into: any checkpoint of any run, with adapters, with heads changed. One job at a time.

What answers OpenAI's API shares its forward passes among clients. Here a client may switch heads off and record
attention, so these models are others' in memory, and one thread works on them, one job after the other.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from configs.command import InputError
from configs.files import DamagedFile, checkpoint_directory, is_adapter
from data.tokenizer import Tokenizer
from eval.chat.session import Conversation
from eval.load_model import open_checkpoint
from model import LanguageModel
from model.checkpoint import base_of
from serve.errors import ApiError
from serve.library import Library

Result = TypeVar("Result")
NameText = Annotated[str, StringConstraints(min_length=1, max_length=300)]
MOST_MODELS = 2  # in memory, beside those of the library
MOST_WAITING = 32  # jobs; more get status 429


class ModelAsked(BaseModel):
    """Which model: a run, one of its checkpoints (None: the newest), a run with adapters for it (None: none)."""

    model_config = ConfigDict(extra="forbid")

    run: NameText
    step: Annotated[int, Field(ge=0)] | None = None
    adapter: NameText | None = None


@dataclass(frozen=True)
class Opened:
    """A model to look into. is_chat: it was trained on chats, and may end a turn by itself."""

    step: int | None
    adapter: str | None
    run: Path
    lm: LanguageModel
    tokenizer: Tokenizer
    is_chat: bool

    @property
    def context_length(self) -> int:
        return self.lm.config.max_position_embeddings


class Workbench:
    """The models of a library's folder, opened when first asked for; names are looked up in lists, never in paths."""

    def __init__(self, library: Library):
        self.library = library
        self._opened: OrderedDict[tuple[Any, Any], Opened] = OrderedDict()
        self._worker = ThreadPoolExecutor(1, "workbench")
        self._waiting = set[object]()
        self._lock = asyncio.Lock()

    def choices(self) -> list[dict[str, Any]]:
        """Each run: its name, the steps of its checkpoints, and the runs with adapters that belong to it."""
        runs = self.library.runs()
        bases = {name: base for name, run in runs.items() if (base := self._base_of(run, runs))}
        return [
            {
                "name": name,
                "steps": sorted(checkpoints_of(run)),
                "adapters": [adapter for adapter, base in bases.items() if base == name],
                "base": bases.get(name),
            }
            for name, run in runs.items()
        ]

    def _base_of(self, run: Path, runs: dict[str, Path]) -> str | None:
        """The name of the run that a run's adapters belong to; None for a whole model, and for a base elsewhere."""
        try:
            directory = checkpoint_directory(run)
            if not is_adapter(directory):
                return None
            base = base_of(directory).resolve()
        except (DamagedFile, OSError):
            return None
        return next((name for name, path in runs.items() if base.is_relative_to(path.resolve())), None)

    def find(self, name: ModelAsked) -> Opened:
        """The model, loaded if need be. For the worker's thread. Raises ApiError: 404 for an unknown name, 503."""
        runs = self.library.runs()
        if name.run not in runs:
            raise ApiError(404, f"run: there is no {name.run[:100]!r}. There are: {', '.join(runs)}")
        place = runs[name.run]
        if name.step is not None:
            steps = checkpoints_of(place)
            if name.step not in steps:
                known = ", ".join(map(str, sorted(steps)))
                raise ApiError(404, f"step: {name.run} has no checkpoint of step {name.step}. There are: {known}")
            place = steps[name.step]
        adapter = runs.get(name.adapter) if name.adapter is not None else None
        if name.adapter is not None and (adapter is None or self._base_of(adapter, runs) != name.run):
            raise ApiError(404, f"adapter: {name.adapter[:100]!r} is not a run with adapters for {name.run}")
        try:
            return self._loaded(name, place, adapter)
        except (InputError, DamagedFile, OSError) as error:
            raise ApiError(503, str(error), "server_error") from None

    def _loaded(self, name: ModelAsked, place: Path, adapter: Path | None) -> Opened:
        key = (_identity(place), adapter and _identity(adapter))
        if key not in self._opened:
            while len(self._opened) >= MOST_MODELS:
                self._opened.popitem(last=False)
            lm, tokenizer, directory = open_checkpoint(place, self.library.device)
            conversation = Conversation(lm, tokenizer)
            if adapter is not None:
                conversation.use_adapters(adapter)
            run, step = self.library.runs()[name.run], _step(directory)
            self._opened[key] = Opened(step, name.adapter, run, lm, tokenizer, conversation.is_chat)
        self._opened.move_to_end(key)
        return self._opened[key]

    async def do(self, job: Callable[[], Result]) -> Result:
        """What the job returns, from the worker's thread. Raises ApiError 429 where too many wait."""
        async with self._turn():
            return await asyncio.get_running_loop().run_in_executor(self._worker, partial(_with_clear_errors, job))

    async def each(self, steps: Callable[[], Iterator[Result]]) -> AsyncGenerator[Result]:
        """What the job yields, as it comes. Closing the iterator ends the job after its present step."""
        async with self._turn():
            loop = asyncio.get_running_loop()
            iterator = await loop.run_in_executor(self._worker, partial(_with_clear_errors, steps))
            following = partial(_with_clear_errors, lambda: next(iterator, None))
            try:
                while (one := await loop.run_in_executor(self._worker, following)) is not None:
                    yield one
            finally:
                self._worker.submit(iterator.close)  # type: ignore[attr-defined]

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One job after the other. Raises ApiError 429."""
        if len(self._waiting) >= MOST_WAITING:
            message = f"{len(self._waiting)} requests are waiting: try again later"
            raise ApiError(429, message, "rate_limit_error", "rate_limit_exceeded")
        me = object()
        self._waiting.add(me)
        try:
            async with self._lock:
                yield
        finally:
            self._worker.submit(self._waiting.discard, me)  # a job that was given up may still be at work


def _with_clear_errors(job: Callable[[], Result]) -> Result:
    """Requests are checked before: what a model cannot compute is the model's."""
    try:
        return job()
    except (ValueError, RuntimeError) as error:
        raise ApiError(500, str(error), "server_error") from None


def checkpoints_of(run: Path) -> dict[int, Path]:
    """Step -> directory of every checkpoint that a run keeps."""
    found = [path for path in (run / "checkpoints").glob("step_*") if _step(path) is not None]
    return {_step(path) or 0: path for path in found if (path / "config.json").is_file() or is_adapter(path)}


def _identity(place: Path) -> tuple[Path, int]:
    """The checkpoint directory of a path, and when it was written: a run may be trained again."""
    directory = checkpoint_directory(place)
    return directory, directory.stat().st_mtime_ns


def _step(checkpoint: Path) -> int | None:
    match = re.fullmatch(r"step_(\d{1,8})", checkpoint.name)
    return int(match[1]) if match else None
