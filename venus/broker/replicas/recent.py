"""The newest entries of a log as they are stored, for followers that are nearly caught up: bounded in bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

#: What an entry takes beside its bytes.
ENTRY_BYTES = 64


class Recent:
    """A run of entries without a gap; thread-safe. What is not here is read from the store."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: When it was extended last: a number that grows.
        self.used = 0
        self._lock = threading.Lock()
        self._first = 0
        self._values: list[bytes] = []
        self._nbytes = 0

    def extend(self, first: int, values: Sequence[bytes]) -> None:
        """Add entries from `first` on, which replace those that were there."""
        with self._lock:
            if not self._first <= first <= self._first + len(self._values):
                self._values, self._nbytes, self._first = [], 0, first
            self._cut(first)
            self._values += values
            self._nbytes += sum(map(len, values))
            self._make_room()

    @property
    def nbytes(self) -> int:
        """What it takes in memory, about."""
        return self._nbytes + ENTRY_BYTES * len(self._values)

    def clear(self) -> None:
        """Forget all of them; the next ones begin another run."""
        with self._lock:
            self._first, self._values, self._nbytes = self._first + len(self._values), [], 0

    def truncate(self, end: int) -> None:
        """Forget entries from `end` on."""
        with self._lock:
            self._cut(end)

    def take(self, first: int, bytes_max: int) -> tuple[bytes, ...] | None:
        """Return entries from `first` on, at least one and about `bytes_max`; () = none yet, None = not here."""
        with self._lock:
            at = first - self._first
            if not self._values or not 0 <= at <= len(self._values):
                return None
            return run(self._values, at, bytes_max)

    def _cut(self, end: int) -> None:
        at = max(end - self._first, 0)
        self._nbytes -= sum(map(len, self._values[at:]))
        del self._values[at:]

    def _make_room(self) -> None:
        gone = 0
        while self._nbytes > self._bytes_max and gone < len(self._values):
            self._nbytes -= len(self._values[gone])
            gone += 1
        del self._values[:gone]
        self._first += gone


def make_room(logs: Iterable[Recent], bytes_max: int) -> None:
    """Forget runs until all together take no more than this, first those whose logs were extended longest ago."""
    found = sorted(logs, key=lambda recent: recent.used)
    total = sum(recent.nbytes for recent in found)
    for recent in found:
        if total <= bytes_max:
            return
        total -= recent.nbytes
        recent.clear()


def run(values: Sequence[bytes], at: int, bytes_max: int) -> tuple[bytes, ...]:
    """Return values from `at` on, at least one if there is one, as long as they fit."""
    found: list[bytes] = []
    left = bytes_max
    for i in range(at, len(values)):
        left -= len(values[i])
        if found and left < 0:
            break
        found.append(values[i])
    return tuple(found)
