"""The bodies of recent batches in memory (the paper's LRU memory recovery), bounded in bytes.

A body is UNSAVED while it waits for its write (counted, never evicted), SAVED once it is on disk, and DELIVERED once
the full data has it and every attached consumer has acknowledged it. DELIVERED bodies are evicted first, the least
recently used before the others. SAVED bodies are evicted next, from the middle of each business: a plain LRU would
evict exactly what a lagging reader needs next, and readers at the end of the queue need the newest bodies.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

#: The overhead of an entry in bytes.
ENTRY_BYTES = 256

Key = tuple[int, int]  # business, log index


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferStatus:
    """Size, hits and misses of the buffer."""

    nbytes: int
    unsaved_bytes: int
    hits: int
    misses: int


@dataclass(slots=True)
class _SavedBodies:
    """The SAVED bodies of one business, by log index, and their size."""

    bodies: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    nbytes: int = 0

    def put(self, index: int, body: bytes) -> None:
        self.bodies[index] = body
        self.nbytes += len(body) + ENTRY_BYTES

    def take(self, index: int) -> bytes:
        """Remove and return the body of the entry at a log index."""
        body = self.bodies.pop(index)
        self.nbytes -= len(body) + ENTRY_BYTES
        return body


class BodyBuffer:
    """A bounded cache of batch bodies; thread-safe. A body that is not cached is read from the log."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._saved: dict[int, _SavedBodies] = {}  # by business, so that no operation scans the bodies of another
        self._delivered: OrderedDict[Key, bytes] = OrderedDict()
        self._nbytes = 0
        self._unsaved = 0
        self._hits = 0
        self._misses = 0

    def hold(self, nbytes: int) -> None:
        """Count bytes of bodies that wait for their write, and make room for them. Admission limits these bytes."""
        with self._lock:
            self._unsaved += nbytes
            self._make_room()

    def release(self, nbytes: int) -> None:
        """Stop counting bytes of `hold`: their bodies were written or refused."""
        with self._lock:
            self._unsaved -= nbytes

    def save(self, key: Key, body: bytes) -> None:
        """Cache a body that is on disk now."""
        with self._lock:
            saved = self._saved.get(key[0])
            if (saved is None or key[1] not in saved.bodies) and key not in self._delivered:
                self._saved.setdefault(key[0], _SavedBodies()).put(key[1], body)
                self._nbytes += len(body) + ENTRY_BYTES
                self._make_room()

    def get(self, key: Key) -> bytes | None:
        """Return a body from the cache, None if it is not cached."""
        with self._lock:
            saved = self._saved.get(key[0])
            body = saved.bodies.get(key[1]) if saved is not None else None
            if body is None:
                body = self._delivered.get(key)
                if body is not None:
                    self._delivered.move_to_end(key)
            if body is None:
                self._misses += 1
            else:
                self._hits += 1
            return body

    def drop(self, business: int, first_index: int) -> None:
        """Remove bodies from a log index on: their entries were truncated, and other entries get these indexes."""
        with self._lock:
            saved = self._saved.get(business)
            for index in [index for index in saved.bodies if index >= first_index] if saved is not None else ():
                self._nbytes -= len(self._take(business, index)) + ENTRY_BYTES
            for key in [key for key in self._delivered if key[0] == business and key[1] >= first_index]:
                self._nbytes -= len(self._delivered.pop(key)) + ENTRY_BYTES

    def mark_delivered(self, business: int, below_index: int) -> None:
        """Mark every body below a log index as delivered: no known reader needs it."""
        with self._lock:
            while (saved := self._saved.get(business)) is not None:
                index = next(iter(saved.bodies))
                if index >= below_index:
                    break
                self._delivered[business, index] = self._take(business, index)

    def status(self) -> BufferStatus:
        """Return the size, hits and misses of the buffer."""
        with self._lock:
            return BufferStatus(
                nbytes=self._nbytes + self._unsaved, unsaved_bytes=self._unsaved, hits=self._hits, misses=self._misses
            )

    def _make_room(self) -> None:
        """Evict bodies until the buffer is within its limit."""
        room = self.bytes_max - self._unsaved
        while self._nbytes > room and self._delivered:
            _, body = self._delivered.popitem(last=False)
            self._nbytes -= len(body) + ENTRY_BYTES
        if self._nbytes > room and self._saved:
            self._evict_middle(self._nbytes - room + self.bytes_max // 8)  # an eighth more, so that this runs rarely

    def _evict_middle(self, wanted: int) -> None:
        """Evict `wanted` bytes of SAVED bodies. The oldest quarter of each business is evicted last."""
        part, owed = wanted / sum(saved.nbytes for saved in self._saved.values()), 0.0
        for business, saved in list(self._saved.items()):
            owed += part * saved.nbytes
            known = list(saved.bodies)
            for index in known[len(known) // 4 :] + known[: len(known) // 4][::-1]:
                if owed <= 0:
                    break
                size = len(self._take(business, index)) + ENTRY_BYTES
                self._nbytes -= size
                owed -= size

    def _take(self, business: int, index: int) -> bytes:
        """Remove and return a SAVED body."""
        saved = self._saved[business]
        body = saved.take(index)
        if not saved.bodies:
            del self._saved[business]
        return body
