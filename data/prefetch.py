"""One thread ahead: the next items of an iterator are made while the present one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterable[Item], ahead: int = 2) -> Generator[Item]:
    """The same items in the same order, up to `ahead` of them made in advance by a thread of this process.

    What the iterator raises is raised here, in its turn. When the caller stops early, so does the thread.
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "prefetch") as thread:
        ready: deque[Any] = deque(thread.submit(next, source, end) for _ in range(ahead))
        try:
            while (item := ready.popleft().result()) is not end:
                ready.append(thread.submit(next, source, end))
                yield item
        finally:
            for waiting in ready:
                waiting.cancel()
            if isinstance(source, Generator):
                thread.submit(source.close).result()
