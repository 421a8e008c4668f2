"""A wall clock that a test can set in a running broker: its process reads the time through a shared file.

Monotonic time continues as before, as on a machine whose clock is set. The product reads `time.time_ns`; `time.time` is
not changed, because gRPC's Python half computes deadlines from it that its C half compares with the real clock.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

_OFFSET = struct.Struct("<q")


class WallClock:
    """The offset of a broker's clock, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(_OFFSET.pack(0))

    def jump(self, to_s: float) -> None:
        """Set the broker's clock ahead by this many seconds; negative = behind."""
        with self._path.open("r+b") as file, mmap.mmap(file.fileno(), _OFFSET.size) as shared:
            _OFFSET.pack_into(shared, 0, int(to_s * 1e9))

    def follow(self) -> None:
        """Use this clock in the calling process: the broker's process calls it before it serves."""
        with self._path.open("rb") as file:
            shared = mmap.mmap(file.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
        real = time.time_ns
        time.time_ns = lambda: real() + _OFFSET.unpack_from(shared, 0)[0]
