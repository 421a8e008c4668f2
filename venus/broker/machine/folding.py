"""The effect of a change on the full data (VENUS 3.3, table 3, corrected), without any I/O.

A change takes effect only if its Sequence is above the stored Sequence of the same record_id; `_RULES` says what it
writes. Tombstones are kept, because without the tombstone of a deletion an older change would restore the row. Each
table has a floor: rows whose Sequence is not above it do not exist. So TRUNCATE and the end of a sweep, which raise the
floor, remove all rows of a table without touching them.

Sequences of a queue increase, so a section that starts above everything materialised is not compared with the stored
rows (`fold_section` with `stored=None`); any other section is compared. Both ways have the same result.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from venus.codec.packed import PackedBytes, join_items
from venus.codec.stored_rows import HEAD, HEAD_BYTES, TOMBSTONE, heads_of
from venus.model import ChangeKind

_HEAD = struct.Struct(">QIBI")
assert _HEAD.size == HEAD_BYTES

Stored = Callable[[Sequence[bytes]], dict[bytes, bytes]]


class StoredKind(Enum):
    """The kind of value stored under a record_id."""

    NOTHING = auto()
    ROW = auto()
    TOMBSTONE = auto()


class WrittenKind(Enum):
    """What a change writes for its key into the full data: a row, a tombstone, or nothing."""

    NOTHING = auto()
    ROW = auto()
    TOMBSTONE = auto()


#: (is_deleted, stored value) -> what a *newer* change writes. A change that is not newer writes nothing.
_RULES = {
    (True, StoredKind.NOTHING): WrittenKind.TOMBSTONE,
    (True, StoredKind.TOMBSTONE): WrittenKind.TOMBSTONE,
    (True, StoredKind.ROW): WrittenKind.TOMBSTONE,
    (False, StoredKind.NOTHING): WrittenKind.ROW,
    (False, StoredKind.TOMBSTONE): WrittenKind.ROW,
    (False, StoredKind.ROW): WrittenKind.ROW,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSection:
    """The changes of one table in a batch; change i has Sequence `first_sequence + i`."""

    table_id: int
    schema_version: int
    kind: ChangeKind
    first_sequence: int
    count: int
    record_ids: PackedBytes
    rows: PackedBytes
    is_deleted: bytes
    sweep_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionEffect:
    """The effect of a section on the full data: keys with their new values, and the table's floor.

    `clear` = every stored row of the table may be removed first, in the same write.
    """

    keys: Sequence[bytes] = ()
    values: Sequence[bytes] = ()
    floor: int
    clear: bool = False
    stale: int = 0


def fold_section(section: ChangeSection, prefix: bytes, floor: int, stored: Stored | None) -> SectionEffect:
    """Return what a section writes into the full data; its rows have the keys `prefix` + record_id.

    `stored` looks up values by key; it is None if all stored values are older and need no look-up.
    """
    if section.kind is ChangeKind.TRUNCATE:
        return SectionEffect(floor=max(floor, section.first_sequence), clear=stored is None)
    if section.kind is ChangeKind.SWEEP_END:
        return SectionEffect(floor=max(floor, section.sweep_before - 1))
    if section.kind is ChangeKind.SWEEP_BEGIN or section.count == 0:
        return SectionEffect(floor=floor)
    same = np.frombuffer(prefix, dtype=np.uint8)
    keys = join_items(np.broadcast_to(same, (section.count, len(prefix))), section.record_ids)
    values = encode_values(section)
    if stored is None:
        return SectionEffect(keys=keys, values=values, floor=floor)
    return _fold_newer(section, keys, values, floor, stored)


def _fold_newer(
    section: ChangeSection, keys: list[bytes], values: list[bytes], floor: int, stored: Stored
) -> SectionEffect:
    """Return the effect of those changes of a section that are newer than the stored values."""
    current = dict(stored(keys))
    written: dict[bytes, bytes] = {}
    stale = 0
    deleted = section.is_deleted or bytes(section.count)
    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
        if choose_write(section.first_sequence + i, bool(deleted[i]), current.get(key), floor) is WrittenKind.NOTHING:
            stale += 1
        else:
            current[key] = written[key] = value
    return SectionEffect(keys=list(written), values=list(written.values()), floor=floor, stale=stale)


def choose_write(sequence: int, is_deleted: bool, stored: bytes | None, floor: int) -> WrittenKind:
    """Return whether a change writes a row, a tombstone, or nothing because it is not newer, by `_RULES`."""
    if sequence <= floor:
        return WrittenKind.NOTHING
    if stored is None:
        return _RULES[is_deleted, StoredKind.NOTHING]
    stored_sequence, _, flags, _ = _HEAD.unpack_from(stored)
    if sequence <= stored_sequence:
        return WrittenKind.NOTHING
    return _RULES[is_deleted, StoredKind.TOMBSTONE if flags & TOMBSTONE else StoredKind.ROW]


def is_live(stored: bytes, floor: int) -> bool:
    """Return whether a stored value is a row: no tombstone, and above the floor of its table."""
    sequence, _, flags, _ = _HEAD.unpack_from(stored)
    return bool(sequence > floor and not flags & TOMBSTONE)


def encode_values(section: ChangeSection) -> list[bytes]:
    """Return the stored values of a section's changes."""
    is_deleted = np.frombuffer(section.is_deleted or bytes(section.count), dtype=np.uint8) != 0
    heads = heads_of(section.first_sequence, section.schema_version, is_deleted, section.record_ids.sizes)
    return join_items(heads.view(np.uint8).reshape(section.count, HEAD_BYTES), section.record_ids, section.rows)


def find_garbage(values: Sequence[bytes], floor: int, forget_below: int) -> list[int]:
    """Return the positions of removable values: not above the floor, or tombstones below `forget_below`."""
    heads = np.frombuffer(b"".join([value[:HEAD_BYTES] for value in values]), dtype=HEAD)
    dead = (heads["sequence"] <= floor) | (((heads["flags"] & TOMBSTONE) != 0) & (heads["sequence"] < forget_below))
    found: list[int] = np.flatnonzero(dead).tolist()
    return found


def has_tombstones(values: Sequence[bytes], forget_below: int) -> bool:
    """Whether any value is a tombstone that must be kept, because its Sequence is not below `forget_below`."""
    heads = np.frombuffer(b"".join([value[:HEAD_BYTES] for value in values]), dtype=HEAD)
    return bool((((heads["flags"] & TOMBSTONE) != 0) & (heads["sequence"] >= forget_below)).any())
