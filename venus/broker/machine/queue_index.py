"""Where a committed batch lies: a record of the column family `queue`, and the newest of them in memory."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

#: How much of one queue is in memory, and how much of all of them together: a place takes some 500 bytes.
TAIL_PLACES = 4096
TAILS_PLACES = 32_768
_FIXED = struct.Struct(">QIQQQQQqqQIQB")
_FLAG_CUT_END = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A committed batch in the queue; the body stays in the log, at `index`.

    `before` is how many bytes of bodies the queue ever had before it: the difference of two of them is a backlog.
    """

    base_offset: int
    index: int
    count: int  # offsets, so 1 for an empty batch
    epoch: int
    batch_no: int
    cut: int
    first_sequence: int
    last_sequence: int
    committed_at_us: int
    captured_at_us: int
    digest: int
    nbytes: int
    before: int
    cut_end: bool
    tables: tuple[int, ...]

    @property
    def next_offset(self) -> int:
        """The offset after it."""
        return self.base_offset + self.count

    @property
    def after(self) -> int:
        """How many bytes the queue ever had, with it."""
        return self.before + self.nbytes

    def concerns(self, table_ids: frozenset[int]) -> bool:
        """Whether a reader of these tables wants it; the last batch of a longer cut always closes that."""
        return not table_ids or not table_ids.isdisjoint(self.tables) or (self.cut_end and self.cut != self.batch_no)

    def encode(self) -> bytes:
        """Return what is stored."""
        fixed = _FIXED.pack(
            self.index,
            self.count,
            self.epoch,
            self.batch_no,
            self.cut,
            self.first_sequence,
            self.last_sequence,
            self.committed_at_us,
            self.captured_at_us,
            self.digest,
            self.nbytes,
            self.before,
            _FLAG_CUT_END if self.cut_end else 0,
        )
        return fixed + struct.pack(f">{len(self.tables)}I", *self.tables)


def decode(base_offset: int, value: bytes) -> Placed:
    """Read a stored record."""
    fields = _FIXED.unpack_from(value)
    tables = struct.unpack(f">{(len(value) - _FIXED.size) // 4}I", value[_FIXED.size :])
    names = ("index", "count", "epoch", "batch_no", "cut", "first_sequence", "last_sequence", "committed_at_us")
    more = ("captured_at_us", "digest", "nbytes", "before")
    known = dict(zip(names + more, fields[:-1], strict=True))
    return Placed(base_offset=base_offset, cut_end=bool(fields[-1] & _FLAG_CUT_END), tables=tables, **known)


@dataclass(slots=True)
class Tail:
    """The newest part of a queue, so that readers at its end need no look into the store.

    One thread appends, any thread reads: the lists only ever grow at the end, and are replaced to be cut.
    """

    places_max: int = TAIL_PLACES
    _places: list[Placed] = field(default_factory=list)

    def extend(self, places: Iterable[Placed]) -> None:
        """Add newly committed batches."""
        self._places.extend(places)
        if len(self._places) > 2 * self.places_max:
            self.keep(self.places_max)

    def keep(self, places: int) -> None:
        """Keep so many of the newest batches, at least the last one."""
        if len(self._places) > places:
            self._places = self._places[-max(places, 1) :]

    def __len__(self) -> int:
        return len(self._places)

    @property
    def newest(self) -> Placed | None:
        """The last batch, None if nothing was committed since the queue began."""
        places = self._places
        return places[-1] if places else None

    def walk(self, offset: int) -> Iterator[Placed] | None:
        """Return the batches from the one that holds `offset` on; None if that is further back."""
        places = self._places
        low = bisect_right(places, offset, key=lambda place: place.base_offset)
        if low == 0:
            return None
        return islice(places, low - 1, None)


def cut(tails: Iterable[Tail], places: int) -> None:
    """Cut the longest tails until all together have no more than so many places."""
    shortest_first = sorted(tails, key=len)
    for left, tail in zip(range(len(shortest_first), 0, -1), shortest_first, strict=True):
        tail.keep(places // left)
        places = max(0, places - len(tail))
