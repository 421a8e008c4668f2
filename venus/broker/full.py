"""What a change does to the full data (VENUS 3.3, table 3, corrected), without any I/O.

The rule is `_RULES`: the Sequence of a change against the stored Sequence of the same record_id. Tombstones are
kept, because a deletion that is forgotten lets an older change bring the row back. Each table has a floor: rows
whose Sequence is not above it are gone, which is how TRUNCATE and the end of a sweep remove a whole table's rows
without touching them.

Sequences of a queue increase, so a section that starts above everything materialised needs no look at what is
stored (`fold` with `stored=None`); anything else is compared. Both ways end in the same rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from operator import add

import numpy as np
import numpy.typing as npt

from venus.codec.packed import Packed
from venus.model import ChangeKind

_HEADER = struct.Struct(">QIB")
HEADER_BYTES = _HEADER.size
_HEADER_DTYPE = np.dtype([("sequence", ">u8"), ("version", ">u4"), ("flags", "u1")])
_TOMBSTONE = 1
assert _HEADER_DTYPE.itemsize == HEADER_BYTES

Stored = Callable[[Sequence[bytes]], dict[bytes, bytes]]


class Found(Enum):
    """What is stored under a record_id."""

    NOTHING = auto()
    ROW = auto()
    TOMBSTONE = auto()


class Write(Enum):
    """What is written."""

    NOTHING = auto()
    ROW = auto()
    TOMBSTONE = auto()


#: (is_deleted, what is stored) -> what a *newer* change writes. A change that is not newer writes nothing.
_RULES = {
    (True, Found.NOTHING): Write.TOMBSTONE,
    (True, Found.TOMBSTONE): Write.TOMBSTONE,
    (True, Found.ROW): Write.TOMBSTONE,
    (False, Found.NOTHING): Write.ROW,
    (False, Found.TOMBSTONE): Write.ROW,
    (False, Found.ROW): Write.ROW,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The changes of one table in a batch, change i having Sequence `first_sequence + i`."""

    table_id: int
    schema_version: int
    kind: ChangeKind
    first_sequence: int
    count: int
    record_ids: Packed
    rows: Packed
    is_deleted: bytes
    sweep_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a section writes: keys with their new values, and the table's floor.

    `clear` = every stored row of the table may be removed first, in the same write.
    """

    keys: Sequence[bytes] = ()
    values: Sequence[bytes] = ()
    floor: int
    clear: bool = False
    stale: int = 0


def fold(section: Section, prefix: bytes, floor: int, stored: Stored | None) -> Effect:
    """Return the effect of a section on the keys `prefix` + record_id.

    `stored` looks up values by key; None = everything that is stored is older.
    """
    if section.kind is ChangeKind.TRUNCATE:
        return Effect(floor=max(floor, section.first_sequence), clear=stored is None)
    if section.kind is ChangeKind.SWEEP_END:
        return Effect(floor=max(floor, section.sweep_before - 1))
    if section.kind is ChangeKind.SWEEP_BEGIN or section.count == 0:
        return Effect(floor=floor)
    keys = split(section.record_ids, np.frombuffer(prefix * section.count, dtype=np.uint8))
    values = encode(section)
    if stored is None:
        return Effect(keys=keys, values=values, floor=floor)
    return _compare(section, keys, values, floor, stored)


def _compare(section: Section, keys: list[bytes], values: list[bytes], floor: int, stored: Stored) -> Effect:
    current = dict(stored(keys))
    written: dict[bytes, bytes] = {}
    stale = 0
    deleted = section.is_deleted or bytes(section.count)
    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
        if rule(section.first_sequence + i, bool(deleted[i]), current.get(key), floor) is Write.NOTHING:
            stale += 1
        else:
            current[key] = written[key] = value
    return Effect(keys=list(written), values=list(written.values()), floor=floor, stale=stale)


def rule(sequence: int, is_deleted: bool, stored: bytes | None, floor: int) -> Write:
    """Apply the table to one change."""
    if sequence <= floor:
        return Write.NOTHING
    if stored is None:
        return _RULES[is_deleted, Found.NOTHING]
    stored_sequence, _, flags = _HEADER.unpack_from(stored)
    if sequence <= stored_sequence:
        return Write.NOTHING
    return _RULES[is_deleted, Found.TOMBSTONE if flags & _TOMBSTONE else Found.ROW]


# -- the stored form of a row ----------------------------------------------------------------------------------


def split(packed: Packed, heads: npt.NDArray[np.uint8]) -> list[bytes]:
    """Return the separate byte strings, each behind its head; all heads have the same size.

    Equal sizes, the usual case for keys, are cut by numpy alone: one object is made for each, not three.
    """
    count, sizes = len(packed), packed.sizes
    heads = heads.reshape(count, -1)
    width = heads.shape[1]
    if bool((sizes == sizes[0]).all()):
        size = int(sizes[0])
        whole = np.empty((count, width + size), dtype=np.uint8)
        whole[:, :width] = heads
        whole[:, width:] = np.frombuffer(packed.data, dtype=np.uint8).reshape(count, size)
        found: list[bytes] = whole.view(f"V{width + size}").ravel().tolist()
        return found
    separate: list[bytes] = np.ascontiguousarray(heads).view(f"V{width}").ravel().tolist()
    return list(map(add, separate, packed.split()))


def encode(section: Section) -> list[bytes]:
    """Return the stored values of a section's changes: Sequence, schema version, flags, row."""
    header = np.empty(section.count, dtype=_HEADER_DTYPE)
    header["sequence"] = np.arange(section.first_sequence, section.first_sequence + section.count, dtype=np.uint64)
    header["version"] = section.schema_version
    header["flags"] = np.frombuffer(section.is_deleted, dtype=np.uint8) != 0 if section.is_deleted else 0
    return split(section.rows, header.view(np.uint8))


@dataclass(frozen=True, slots=True)
class Rows:
    """Stored values, taken apart."""

    sequences: npt.NDArray[np.uint64]
    versions: npt.NDArray[np.uint32]
    alive: npt.NDArray[np.bool_]


def read_heads(heads: npt.NDArray[np.uint8], floor: int) -> Rows:
    """Read the headers of many stored values, n x HEADER_BYTES. A row at or below the floor is not alive."""
    header = np.ascontiguousarray(heads).view(_HEADER_DTYPE).ravel()
    sequences = header["sequence"].astype(np.uint64)
    alive = ((header["flags"] & _TOMBSTONE) == 0) & (sequences > floor)
    return Rows(sequences, header["version"].astype(np.uint32), alive)


def garbage(values: Sequence[bytes], floor: int, forget_below: int) -> list[int]:
    """Return the positions of values that may be removed: under the floor, or tombstones below `forget_below`."""
    raw = b"".join([value[:HEADER_BYTES] for value in values])
    header = np.frombuffer(raw, dtype=_HEADER_DTYPE)
    dead = (header["sequence"] <= floor) | (((header["flags"] & _TOMBSTONE) != 0) & (header["sequence"] < forget_below))
    found: list[int] = np.flatnonzero(dead).tolist()
    return found
