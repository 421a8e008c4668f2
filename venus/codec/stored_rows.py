"""Rows as the full data stores and delivers them: a head, the record_id, the row (VENUS 3.3).

The record_id is in the value although it is in the key already: a walk over values alone costs half of one over keys
and values. A broker delivers stored rows unchanged, end to end, and the reader steps through the heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from venus.codec.packed import Bools, Gatherer, Ints, PackedBytes
from venus.errors import ProtocolError

HEAD = np.dtype([("sequence", ">u8"), ("version", ">u4"), ("flags", "u1"), ("id_bytes", ">u4")])
HEAD_BYTES = HEAD.itemsize
TOMBSTONE = 1

Heads = npt.NDArray[np.void]
Sequences = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class StoredRows:
    """Many stored rows of one table. Raises ProtocolError for other bytes."""

    packed: PackedBytes

    def __post_init__(self) -> None:
        sizes = self.packed.sizes
        if int(sizes.sum(dtype=np.int64)) != len(self.packed.data):
            raise ProtocolError(f"the sizes of {len(sizes)} stored rows do not add up to {len(self.packed.data)} bytes")
        if len(sizes) and int(sizes.min()) < HEAD_BYTES:
            raise ProtocolError(f"stored row {int(sizes.argmin()) + 1} is shorter than its head")
        if (self.heads["id_bytes"].astype(np.int64) + HEAD_BYTES > sizes).any():
            raise ProtocolError("a stored row is shorter than its record_id")

    def __len__(self) -> int:
        return len(self.packed)

    @cached_property
    def bounds(self) -> Ints:
        """Where each row begins, and the last one ends."""
        return self.packed.bounds

    @cached_property
    def heads(self) -> Heads:
        """The heads, a record each."""
        if not len(self):
            return np.zeros(0, dtype=HEAD)
        data = self.packed.data
        anywhere = np.ndarray((len(data) - HEAD_BYTES + 1,), dtype=f"V{HEAD_BYTES}", buffer=data, strides=(1,))
        return anywhere[self.bounds[:-1]].view(HEAD)

    @property
    def sequences(self) -> Sequences:
        """The Sequence of each row's last change."""
        return self.heads["sequence"].astype(np.uint64)

    @property
    def record_ids(self) -> PackedBytes:
        """The record_ids alone."""
        return self._part(1)

    @property
    def rows(self) -> PackedBytes:
        """The columns that are not in the key."""
        return self._part(2)

    def record_id(self, index: int) -> bytes:
        """Return one record_id."""
        start = int(self.bounds[:-1][index]) + HEAD_BYTES
        return self.packed.data[start : start + int(self.heads["id_bytes"][index])]

    def _part(self, part: int) -> PackedBytes:
        count = len(self)
        bounds = np.empty(3 * count + 1, dtype=self.bounds.dtype)
        bounds[::3] = self.bounds
        bounds[1::3] = self.bounds[:-1] + HEAD_BYTES
        bounds[2::3] = bounds[1::3] + self.heads["id_bytes"]
        sizes = np.diff(bounds)[part::3].astype(np.uint32)
        return PackedBytes(Gatherer(self.packed.data, bounds).gather(np.arange(part, 3 * count, 3)), sizes)

    def find_live(self, floor: int) -> Bools:
        """Return which are live rows: neither tombstones nor at or below the floor of the table."""
        heads = self.heads
        found: Bools = ((heads["flags"] & TOMBSTONE) == 0) & (heads["sequence"] > floor)
        return found

    def select(self, chosen: Bools) -> StoredRows:
        """Return the chosen rows."""
        if chosen.all():
            return self
        data = Gatherer(self.packed.data, self.bounds).gather(np.flatnonzero(chosen))
        return StoredRows(PackedBytes(data, self.packed.sizes[chosen]))


def heads_of(first_sequence: int, version: int, is_deleted: Bools, id_sizes: Ints) -> Heads:
    """Return the heads of changes whose Sequences follow each other."""
    count = len(id_sizes)
    heads = np.empty(count, dtype=HEAD)
    heads["sequence"] = np.arange(first_sequence, first_sequence + count, dtype=np.uint64)
    heads["version"] = version
    heads["flags"] = np.where(is_deleted, TOMBSTONE, 0)
    heads["id_bytes"] = id_sizes
    return heads
