"""One thread ahead: the next items of an iterator are made while the present one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterable[Item], ahead: int = 2) -> Generator[Item]:
    """The same items in the same order, up to `ahead` of them made in advance by a thread of this process.

    What the iterator raises is raised here, in its turn. When the caller stops early, so does the thread.
    """
    ready: queue.Queue[Callable[[], Item]] = queue.Queue(ahead)
    stopped = threading.Event()

    def put(give: Callable[[], Item]) -> bool:
        while not stopped.is_set():
            try:
                ready.put(give, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(lambda item=item: item):  # type: ignore[misc]
                    return
            end: BaseException = StopIteration()
        except BaseException as error:
            end = error
        finally:
            if isinstance(items, Generator):
                items.close()
        put(lambda: _raise(end))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = ready.get()()
            except StopIteration:
                return
            yield item
    finally:
        stopped.set()
        thread.join()


def _raise(error: BaseException) -> Item:  # type: ignore[type-var]
    raise error
