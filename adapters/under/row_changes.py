"""Changes of one table in packed arrays, and their net change per key. Pure (architecture 2).

Of several changes of one key, only the last one counts. The last change of each key is found by sorting the keys as
64-bit words, without a Python object per row. Sequences strictly increase within a business, so the last change of a
key is the last by position.

A predicate turns a row outside its range into a deletion of the row's key. So a row that leaves the range is deleted at
the target, a row that enters it is inserted, and a row that was never in it deletes nothing. This result depends on the
change alone and not on earlier rows, so a reader that reads the queue again gets the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from venus.codec.batch import TableChanges
from venus.codec.filtering import as_keys
from venus.codec.masked_rows import Maskers
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.masking.projection import source_of
from venus.model import TableSchema
from venus.predicates.ranges import Predicate

#: Longer keys are compared by a dictionary: sorting them word by word would cost more.
_WORD_BYTES_MAX = 64

#: How many changed keys of all tables are remembered during a first load, 8 bytes each.
CHANGED_KEYS_MAX = 1_000_000
_HASH_FACTOR = 0x9E3779B97F4A7C15

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """Changes of one table in one schema version, each with its offset."""

    record_ids: PackedBytes
    rows: PackedBytes
    is_deleted: Mask
    offsets: Positions
    #: Marks the changes that are new rows according to the source; None = the source gives no such hint.
    is_new: Mask | None = None

    def __len__(self) -> int:
        return len(self.is_deleted)

    @property
    def nbytes(self) -> int:
        """The approximate size in memory."""
        return len(self.record_ids.data) + len(self.rows.data) + 17 * len(self)

    @property
    def has_only_new(self) -> bool:
        """Whether every change is a new row."""
        return self.is_new is not None and bool(self.is_new.all())

    def where(self, mask: Mask) -> RowChanges:
        """Return the changes that `mask` selects, in order."""
        if mask.all():
            return self
        return RowChanges(
            record_ids=select_packed(self.record_ids, mask),
            rows=select_packed(self.rows, mask),
            is_deleted=self.is_deleted[mask],
            offsets=self.offsets[mask],
            is_new=None if self.is_new is None else self.is_new[mask],
        )


def to_row_changes(section: TableChanges, first_offset: int) -> RowChanges:
    """Return a section's changes; `first_offset` is the offset of the first one."""
    count = section.count
    is_deleted = np.asarray(section.is_deleted, dtype=np.bool_)
    return RowChanges(
        record_ids=section.record_ids,
        rows=section.rows,
        is_deleted=is_deleted,
        offsets=np.arange(first_offset, first_offset + count, dtype=np.int64),
        is_new=~is_deleted if section.inserts_only else None,
    )


def join_changes(parts: Sequence[RowChanges]) -> RowChanges:
    """Concatenate changes of one table."""
    if len(parts) == 1:
        return parts[0]
    return RowChanges(
        record_ids=_join_packed([p.record_ids for p in parts]),
        rows=_join_packed([p.rows for p in parts]),
        is_deleted=np.concatenate([p.is_deleted for p in parts]),
        offsets=np.concatenate([p.offsets for p in parts]),
        is_new=_join_is_new(parts),
    )


def _join_is_new(parts: Sequence[RowChanges]) -> Mask | None:
    """Concatenate the marks of new rows; None if no part has such marks."""
    if all(p.is_new is None for p in parts):
        return None
    return np.concatenate([np.zeros(len(p), dtype=np.bool_) if p.is_new is None else p.is_new for p in parts])


def net_changes(rows: RowChanges) -> RowChanges:
    """Keep the last change of each key."""
    return rows.where(mark_last(rows.record_ids))


def mark_last(keys: PackedBytes) -> Mask:
    """Mark the last occurrence of each byte string."""
    count = len(keys)
    mask = np.zeros(count, dtype=np.bool_)
    if count == 0:
        return mask
    if count == 1:
        mask[0] = True
        return mask
    longest = int(keys.sizes.max())
    if longest > _WORD_BYTES_MAX:
        mask[list(dict(zip(keys.split(), range(count), strict=True)).values())] = True
        return mask
    words = _as_words(keys, longest)
    order = np.lexsort(words)  # stable: equal keys stay in the order of their positions
    ends_run = np.ones(count, dtype=np.bool_)
    differs = np.zeros(count - 1, dtype=np.bool_)
    for word in words:
        column = word[order]
        differs |= column[1:] != column[:-1]
    ends_run[:-1] = differs
    mask[order[ends_run]] = True
    return mask


def _as_words(keys: PackedBytes, longest: int) -> list[npt.NDArray[np.uint64]]:
    """Return the keys as columns of 64-bit words, zero-padded, and their sizes as one more column."""
    width = max(-(-longest // 8) * 8, 8)
    sizes = keys.sizes.astype(np.int64)
    padded = np.zeros((len(keys), width), dtype=np.uint8)
    padded[np.arange(width) < sizes[:, None]] = np.frombuffer(keys.data, dtype=np.uint8)
    words = padded.view("<u8")
    return [np.ascontiguousarray(words[:, i]) for i in range(words.shape[1])] + [sizes.astype(np.uint64)]


def select_packed(packed: PackedBytes, mask: Mask) -> PackedBytes:
    """Return the byte strings that `mask` selects."""
    data = np.frombuffer(packed.data, dtype=np.uint8)
    return PackedBytes(data[np.repeat(mask, packed.sizes)].tobytes(), packed.sizes[mask])


def slice_changes(rows: RowChanges, start: int, stop: int) -> RowChanges:
    """Return the changes from position `start` up to `stop`."""
    mask = np.zeros(len(rows), dtype=np.bool_)
    mask[start:stop] = True
    return rows.where(mask)


def _join_packed(parts: Sequence[PackedBytes]) -> PackedBytes:
    return PackedBytes(b"".join(p.data for p in parts), np.concatenate([p.sizes for p in parts]))


def apply_predicate(rows: RowChanges, predicate: Predicate | None, version: TableSchema) -> RowChanges:
    """Return the same changes in order, but turn each row that the predicate excludes into a deletion of its key."""
    found = None
    if predicate is not None:
        found = as_keys(predicate, rows.record_ids, rows.rows, rows.is_deleted, version)
    if found is None:
        return rows
    kept, is_deleted = found
    is_new = None if rows.is_new is None else rows.is_new & ~is_deleted
    return RowChanges(record_ids=rows.record_ids, rows=kept, is_deleted=is_deleted, offsets=rows.offsets, is_new=is_new)


def project_changes(
    rows: RowChanges, predicate: Predicate | None, version: TableSchema, maskers: Maskers
) -> RowChanges:
    """Return changes as the target gets them: selected by their plain values, then with their columns masked.

    Every change passes this function before a target writes, logs or quarantines it.
    """
    rows, masker = apply_predicate(rows, predicate, source_of(version)), maskers.find(version)
    if masker is None:
        return rows
    record_ids, masked = masker.mask_record_ids(rows.record_ids), masker.mask_rows(rows.rows, rows.is_deleted)
    return replace(rows, record_ids=record_ids, rows=masked)


class ChangedKeys:
    """Keys that reached a target as changes during its first load: all other rows of a first read are new there.

    These keys are only a hint, which saves the target a search for each row; the target's primary key decides. Too many
    keys, or a new process, only cost speed: no row counts as new, or COPY refuses a row that is not new.
    """

    def __init__(self, keys_max: int = CHANGED_KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._tables: dict[int, npt.NDArray[np.uint64]] = {}
        self._is_full = False

    def mark_new(self, rows: RowChanges, table_id: int, *, first_read: bool) -> RowChanges:
        """Return the rows of a first read with the new ones marked; remember the keys of other changes."""
        hashes = hash_keys(rows.record_ids)
        known = self._tables.get(table_id)
        if first_read:
            is_new = ~rows.is_deleted & (not self._is_full)
            return replace(rows, is_new=is_new if known is None else is_new & ~np.isin(hashes, known))
        self._tables[table_id] = np.unique(hashes) if known is None else np.union1d(known, hashes)
        if sum(map(len, self._tables.values())) > self._keys_max:
            self._tables, self._is_full = {}, True
        return replace(rows, is_new=None)


def hash_keys(keys: PackedBytes) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each key, which does not depend on the other keys."""
    is_long = keys.sizes > _WORD_BYTES_MAX
    if is_long.any():
        found = np.zeros(len(keys), dtype=np.uint64)
        found[is_long] = [xxh3_64_intdigest(key) for key in select_packed(keys, is_long).split()]
        found[~is_long] = hash_keys(select_packed(keys, ~is_long))
        return found
    *words, sizes = _as_words(keys, int(keys.sizes.max(initial=0)))
    found, factor = sizes * np.uint64(_HASH_FACTOR), _HASH_FACTOR
    for word in words:  # a word of padding adds nothing
        factor = (factor * _HASH_FACTOR + 2) % 2**64 | 1
        mixed = word * np.uint64(factor)
        found += mixed ^ (mixed >> np.uint64(29))
    return found


class MergeWhole(Exception):
    """The target refused a piece of a cut, perhaps only because others were missing: merge the whole cut."""

    def __init__(self, table_id: int) -> None:
        super().__init__(table_id)
        self.table_id = table_id


@dataclass(slots=True, kw_only=True)
class PendingChanges:
    """Changes of one table that wait for the target."""

    table_id: int
    sql: Any  # the statements for this kind of target
    layout: Layout
    parts: list[RowChanges] = field(default_factory=list)
    #: Whether all changes so far are new rows.
    only_new: bool = True
    #: Whether keys still wait for their deletion, which must happen before a new row is written.
    has_waiting_deletes: bool = False
    #: Whether the target has refused unstaged new rows, so that new rows are staged from then on.
    new_refused: bool = False
    #: How many rows, and keys to delete, the staging tables contain.
    live_staged: int = 0
    gone_staged: int = 0
    last_offset: int = 0
    #: How many changes were taken from memory.
    taken: int = 0
    #: The size of the changes in memory.
    waiting_bytes: int = 0

    @property
    def is_staged(self) -> bool:
        """Whether the staging tables contain rows or keys."""
        return bool(self.live_staged or self.gone_staged)

    @property
    def waiting(self) -> int:
        """The number of changes in memory."""
        return sum(map(len, self.parts))

    def take(self) -> RowChanges:
        """Take the changes from memory; only the last one of each key, unless all are new rows."""
        rows, self.parts = join_changes(self.parts), []
        self.taken += len(rows)
        rows = rows if rows.has_only_new else net_changes(rows)
        self.only_new &= rows.has_only_new
        self.has_waiting_deletes |= bool(rows.is_deleted.any())
        return rows
