"""What a program has written so far, held so that a flood leaves no trace in the judge's memory."""

from __future__ import annotations

import mmap

_SMALL = 1 << 18
_SAMPLE = 1 << 16


class Output:
    """Bytes in the order they came: a few in the heap, many in pages that go back at once.

    The heap of a process with many threads would keep tens of megabytes for each flood.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._small = bytearray()
        self._large: mmap.mmap | None = None

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes) -> None:
        """Append; the caller keeps to the limit."""
        if self._large is None and self._size + len(data) > _SMALL:
            pages = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._large = mmap.mmap(-1, max(self._most, self._size + len(data)), flags=pages)
            self._large.write(self._small)
            self._small = bytearray()
        if self._large is None:
            self._small += data
        else:
            self._large.write(data)
        self._size += len(data)

    def take(self, *, sample: bool = False) -> bytes:
        """All of it, or only its beginning; there is nothing left afterwards."""
        end = min(self._size, _SAMPLE) if sample else self._size
        data = bytes(self._small[:end]) if self._large is None else self._large[:end]
        if self._large is not None:
            self._large.close()
            self._large = None
        self._small = bytearray()
        self._size = 0
        return data
