"""Free space of the data directory: writes are refused while there still is some.

After a real ENOSPC RocksDB never writes again, not even when space is back; so the broker stops taking half
messages at a watermark, and only the small writes that let work finish go on below it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from venus.errors import StoreFull

FreeBytes = Callable[[Path], int]


def free_bytes(path: Path) -> int:
    """Return what an unprivileged process may still write."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class Space:
    """The watermarks of one data directory."""

    def __init__(self, path: Path, free_bytes_min: int, probe: FreeBytes = free_bytes) -> None:
        self.path = path
        self.free_bytes_min = free_bytes_min
        self._probe = probe
        #: Whether the last half message was refused.
        self.refusing = False

    def free(self) -> int:
        """Return the free bytes now."""
        return self._probe(self.path)

    def room_for_data(self, nbytes: int = 0) -> bool:
        """Whether half messages and full data may be written."""
        return self.free() - nbytes >= self.free_bytes_min

    def check_data(self, nbytes: int) -> None:
        """Refuse a half message below the watermark."""
        free = self.free()
        self.refusing = free - nbytes < self.free_bytes_min
        if self.refusing:
            raise _full(self.path, free, self.free_bytes_min)

    def check_decision(self) -> None:
        """Refuse even decisions when next to nothing is left; they are small and let others finish."""
        free = self.free()
        if free < self.free_bytes_min // 4:
            raise _full(self.path, free, self.free_bytes_min // 4)


def too_full(path: Path, free: int, limit: int) -> str:
    """Say that half messages are refused, where, and what ends it."""
    return (
        f"too little free space: {path.resolve()} has only {free >> 20} MiB free, {limit >> 20} MiB are needed: "
        "writes are refused and capture waits; free some space there, and it goes on by itself"
    )


def _full(path: Path, free: int, limit: int) -> StoreFull:
    return StoreFull(
        f"{path.resolve()} has {free >> 20} MiB free, {limit >> 20} MiB are needed",
        hint="make space, or lower broker.free_bytes_min; writing goes on by itself then",
    )
