"""Sums over the full data, so that rows which go missing are missed, at no cost for who writes them.

A row is replaced without a look at what it replaces, so no sum can be kept right while rows are written. But a
Sequence names one version of one row for ever: what one pass of the scrub has found in a segment (a range of keys) is
still there in the next one, or was replaced by something newer than that pass. So a segment's record is how many rows
up to which Sequence there were, and the sum of their mixed Sequences. A segment in which nothing was written since
must have just these; in any other, each row that is gone must have a newer one in its place. What the scavenger
removes it takes off the sums in the same write.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from venus.broker.machine.business import Business
from venus.broker.store import keys
from venus.broker.store.rocks import Batch, Store
from venus.codec.chunk import rows_digest
from venus.codec.stored import HEAD, HEAD_BYTES, Sequences

_RECORD = struct.Struct(">QQQQ?")
_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class Segment:
    """What a segment had: rows with a Sequence up to `as_of`, tombstones among them.

    It ends before the record_id `stop`, or where the table does (None). `replaced_max`: so many newer rows were removed
    for good, and each may have replaced one of these before.
    """

    as_of: int
    count: int = 0
    digest: int = 0
    replaced_max: int = 0
    stop: bytes | None = None

    def plus(self, sequences: Sequences, sign: int = 1) -> Segment:
        """Return it with more rows, or fewer; newer ones than `as_of` do not count."""
        counted = sequences[sequences <= self.as_of]
        digest = (self.digest + sign * rows_digest(counted)) % _MODULUS
        return replace(self, count=self.count + sign * len(counted), digest=digest)

    def without(self, sequences: Sequences) -> Segment:
        """Return it without rows that were removed for good."""
        newer = int((sequences > self.as_of).sum())
        return replace(self.plus(sequences, -1), replaced_max=self.replaced_max + newer)

    def encode(self) -> bytes:
        """Return what is stored."""
        fixed = _RECORD.pack(self.as_of, self.count, self.digest, self.replaced_max, self.stop is not None)
        return fixed + (self.stop or b"")


def decode(value: bytes) -> Segment:
    """Read a stored record."""
    as_of, count, digest, replaced_max, bounded = _RECORD.unpack_from(value)
    return Segment(as_of, count, digest, replaced_max, value[_RECORD.size :] if bounded else None)


def contradiction(known: Segment, found: Segment, newer: int) -> str:
    """Return what is wrong with a segment in which `found` is left of `known` beside `newer` rows, or nothing."""
    gone = known.count - found.count
    if gone < 0:
        return f"{-gone} rows are older than they were"
    if gone > newer + known.replaced_max:
        return f"{gone - newer - known.replaced_max} rows are missing"
    if gone == 0 and found.digest != known.digest:
        return "rows are not those that were there"
    return ""


def sequences_of(values: Sequence[bytes]) -> Sequences:
    """Return the Sequence of each stored value."""
    heads = np.frombuffer(b"".join([value[:HEAD_BYTES] for value in values]), dtype=HEAD)
    return heads["sequence"].astype(np.uint64)


def get(store: Store, business: Business, table_id: int, start: bytes) -> Segment | None:
    """Return the record of the segment that starts at a record_id."""
    value = store.get(keys.STATE, keys.sum_prefix(business.number, table_id) + start)
    return decode(value) if value is not None else None


def following(store: Store, business: Business, table_id: int, start: bytes) -> bytes | None:
    """Return where the next segment starts; None = there is none."""
    prefix = keys.sum_prefix(business.number, table_id)
    found = next(store.scan(keys.STATE, prefix + start + b"\0", keys.after_prefix(prefix), limit=1), None)
    return found[0][len(prefix) :] if found is not None else None


def put(batch: Batch, business: Business, table_id: int, start: bytes, segment: Segment) -> None:
    """Keep the record of a segment."""
    batch.put(keys.STATE, keys.sum_prefix(business.number, table_id) + start, segment.encode())


def forget(batch: Batch, business: Business, table_id: int) -> None:
    """Drop the records of a table whose rows are removed as a whole."""
    prefix = keys.sum_prefix(business.number, table_id)
    batch.delete_range(keys.STATE, prefix, keys.after_prefix(prefix))


def subtract(
    store: Store, batch: Batch, business: Business, table_id: int, removed: Sequence[tuple[bytes, bytes]]
) -> None:
    """Take removed rows, in the order of their keys, off the sums."""
    prefix = keys.sum_prefix(business.number, table_id)
    left = [(key[len(keys.row_prefix(business.number, table_id)) :], value) for key, value in removed]
    at = 0
    while at < len(left):
        first = left[at][0]
        held = store.at_or_before(keys.STATE, prefix + first)
        segment = decode(held[1]) if held is not None and held[0].startswith(prefix) else None
        covered = segment is not None and (segment.stop is None or first < segment.stop)
        stop = segment.stop if segment is not None and covered else following(store, business, table_id, first)
        inside = [value for key, value in left[at:] if stop is None or key < stop]
        if held is not None and segment is not None and covered:
            batch.put(keys.STATE, held[0], segment.without(sequences_of(inside)).encode())
        at += len(inside)
