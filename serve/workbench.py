"""Models that are looked into: any checkpoint of any run, with adapters, with heads changed. One job at a time.

What answers OpenAI's API shares its forward passes among clients. Here a client may switch heads off and record
attention, so these models are others' in memory, and one thread works on them, one job after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from configs.command import InputError
from configs.files import DamagedFile, checkpoint_directory, is_adapter, is_model
from model.checkpoint import base_of
from serve.library import Library, Model, open_path
from serve.limits import ApiError, within

Result = TypeVar("Result")
MOST_MODELS = 2  # in memory, beside those of the library
MOST_WAITING = 32  # jobs; more get status 429


class Workbench:
    """The models of a library's folder, opened when first asked for; names are looked up in lists, never in paths."""

    def __init__(self, library: Library, seconds: float):
        self.library, self.seconds = library, seconds
        self._opened = lru_cache(MOST_MODELS)(self._open)
        self._worker = ThreadPoolExecutor(1, "workbench")
        self._jobs = set[Iterator[Any]]()
        self._lock = asyncio.Lock()

    def choices(self) -> list[dict[str, Any]]:
        """Each run: its name, the steps of its checkpoints, and the runs with adapters that belong to it."""
        runs = self.library.runs()
        bases = {name: _base_of(run, runs) for name, run in runs.items()}
        return [
            {
                "name": name,
                "steps": sorted(checkpoints_of(run)),
                "adapters": [adapter for adapter, base in bases.items() if base == name],
                "base": bases[name],
            }
            for name, run in runs.items()
        ]

    def find(self, run: str, step: int | None = None, adapter: str | None = None) -> Model:
        """A run's checkpoint (None: the newest) with adapters, loaded if need be. For the worker's thread.

        Raises ApiError: 404 for an unknown name, 503 for what cannot be loaded.
        """
        runs, place = self.library.runs(), self.library.run(run)
        steps = checkpoints_of(place)
        if step is not None and step not in steps:
            known = ", ".join(map(str, sorted(steps)))
            raise ApiError(404, f"step: {run} has no checkpoint of step {step}. There are: {known}")
        if adapter is not None and (adapter not in runs or _base_of(runs[adapter], runs) != run):
            raise ApiError(404, f"adapter: {adapter[:100]!r} is not a run with adapters for {run}")
        try:
            stamp = _stamp(place if step is None else steps[step])
            return self._opened(*stamp, *(() if adapter is None else _stamp(runs[adapter])))
        except (InputError, DamagedFile, OSError) as error:
            raise ApiError(503, str(error)) from None

    def _open(self, path: Path, written: object, adapter: Path | None = None, adapter_written: object = None) -> Model:
        return open_path(path, self.library.device, adapter=adapter)

    async def do(self, job: Callable[[], Result]) -> Result:
        """What the job returns, from the worker's thread. Raises ApiError: 429 for too many, 503 for too long."""

        def only_step() -> Iterator[Result]:
            yield job()

        async with aclosing(self.each(only_step())) as results:
            return await within(anext(results), self.seconds)

    async def each(self, steps: Iterator[Result]) -> AsyncGenerator[Result]:
        """What a generator yields, run in the worker's thread. Closing this one ends it after its present step."""
        if len(self._jobs) >= MOST_WAITING:
            raise ApiError(429, f"{len(self._jobs)} requests are waiting: try again later", "rate_limit_exceeded")
        self._jobs.add(steps)
        try:
            async with self._lock:  # as long as it lasts: it may have changed heads
                next_step = partial(asyncio.get_running_loop().run_in_executor, self._worker, _next, steps)
                while (result := await next_step()) is not None:
                    yield result
        finally:
            self._worker.submit(self._end, steps)  # a job that was given up may still be at work

    def _end(self, steps: Iterator[Any]) -> None:
        self._jobs.discard(steps)
        steps.close()  # type: ignore[attr-defined]


def _next(steps: Iterator[Result]) -> Result | None:
    try:
        return next(steps, None)
    except (ValueError, RuntimeError) as error:  # requests are checked before: what cannot be computed is the model's
        raise ApiError(500, str(error)) from None


def checkpoints_of(run: Path) -> dict[int, Path]:
    """Step -> directory of every checkpoint that a run keeps."""
    paths = [path for path in (run / "checkpoints").glob("step_*") if path.name[5:].isdecimal()]
    return {int(path.name[5:]): path for path in paths if is_model(path)}


def _stamp(path: Path) -> tuple[Path, object]:
    """A path, and which checkpoint it names, written when: a run may be trained again."""
    directory = checkpoint_directory(path)
    return path, (directory, directory.stat().st_mtime_ns)


def _base_of(run: Path, runs: dict[str, Path]) -> str | None:
    """The name of the run that a run's adapters belong to; None for a whole model, and for a base elsewhere."""
    try:
        directory = checkpoint_directory(run)
        base = base_of(directory).resolve() if is_adapter(directory) else None
    except (DamagedFile, OSError):
        return None
    return next((name for name, path in runs.items() if base and base.is_relative_to(path.resolve())), None)
