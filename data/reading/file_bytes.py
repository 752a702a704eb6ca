"""What bytes does a file hold? Plain or compressed, with a clear error where it is damaged or ends too early."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.command import InputError

COMPRESSED = {".gz", ".zst"}
BLOCK = 1 << 20  # bytes read at a time
ZST_BYTES = 1 << 12  # decompressed at a time: four of them may become 128 kB, so these are at most 134 MB


@contextmanager
def clear_errors(file: Path) -> Iterator[None]:
    """Turn what a file system or a compressed file raises into InputError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{file}: is truncated or damaged ({error}): fetch it or compress it again") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None


class _Counted(io.FileIO):
    """A file that reports how many bytes are read from it."""

    def __init__(self, file: Path, on_read: Callable[[int], object]):
        super().__init__(file)
        self._on_read = on_read

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self._on_read(count)
        return count


class _Zst(io.RawIOBase):
    """The bytes inside a .zst file. Unlike the library's own reader, it notices a file that ends too early."""

    def __init__(self, compressed: io.BufferedReader[Any]):
        import zstandard

        self._compressed, self._damage = compressed, zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame, self._inside = self._new_frame(), False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            unread = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._inside = self._new_frame(), False
            unread = unread or self._compressed.read(ZST_BYTES)
            if not unread:
                break
            self._inside = True
            try:
                self._ready = memoryview(self._frame.decompress(unread))
            except self._damage as error:
                raise EOFError(str(error)) from None
        if not self._ready and self._inside:
            raise EOFError("the file ends in the middle of a frame")
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


@contextmanager
def opened(file: Path, on_read: Callable[[int], object] = lambda count: None) -> Iterator[Any]:
    """The bytes of a file, decompressed."""
    with io.BufferedReader(_Counted(file, on_read), BLOCK) as raw:
        packed = file.suffix.lower()
        if packed in COMPRESSED and not raw.peek(1):
            raise EOFError("the file is empty")
        if packed == ".gz":
            with gzip.open(raw) as stream:
                yield stream
        elif packed == ".zst":
            yield io.BufferedReader(_Zst(raw), BLOCK)
        else:
            yield raw
