"""Checksums over the full data, which detect lost rows without any cost for writers.

Writing replaces a row without reading the old one, so a checksum cannot be kept current during writes. But a Sequence
always identifies the same version of the same row. A row that one pass of the scrub found in a segment (a range of
keys) is still there in the next pass, or was replaced by a row newer than the first pass. So a segment's record has
the number of rows up to a Sequence, and the sum of hashes of their Sequences. A segment without later writes must have
exactly the recorded rows; in any other segment, a newer row must have replaced each missing row. The scavenger
subtracts the rows that it removes from the checksums in the same write.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from venus.broker.machine.business import Business
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch
from venus.codec.stored_rows import HEAD, HEAD_BYTES, Sequences, rows_digest

_RECORD = struct.Struct(">QQQQ?")
_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class Segment:
    """Checksum of a segment (a key range of a table): its rows with a Sequence up to `as_of`, tombstones included.

    The segment ends before the record_id `stop`, or at the end of the table (None). `replaced_max` counts newer rows
    that were removed permanently; each may have replaced a row of the segment before.
    """

    as_of: int
    count: int = 0
    digest: int = 0
    replaced_max: int = 0
    stop: bytes | None = None

    def plus(self, sequences: Sequences, sign: int = 1) -> Segment:
        """Return the checksum with rows of these Sequences added, or subtracted; those above `as_of` do not count."""
        counted = sequences[sequences <= self.as_of]
        digest = (self.digest + sign * rows_digest(counted)) % _MODULUS
        return replace(self, count=self.count + sign * len(counted), digest=digest)

    def without(self, sequences: Sequences) -> Segment:
        """Return the checksum without rows of these Sequences, which were removed permanently."""
        newer = int((sequences > self.as_of).sum())
        return replace(self.plus(sequences, -1), replaced_max=self.replaced_max + newer)

    def encode(self) -> bytes:
        """Encode the checksum as a stored record."""
        fixed = _RECORD.pack(self.as_of, self.count, self.digest, self.replaced_max, self.stop is not None)
        return fixed + (self.stop or b"")


def decode(value: bytes) -> Segment:
    """Decode a checksum from its stored record."""
    as_of, count, digest, replaced_max, bounded = _RECORD.unpack_from(value)
    return Segment(as_of, count, digest, replaced_max, value[_RECORD.size :] if bounded else None)


def find_fault(known: Segment, found: Segment, newer: int) -> str:
    """Compare the recorded `known` rows of a segment with those `found`, given `newer` rows; return the fault or ""."""
    gone = known.count - found.count
    if gone < 0:
        return f"{-gone} rows are older than they were"
    if gone > newer + known.replaced_max:
        return f"{gone - newer - known.replaced_max} rows are missing"
    if gone == 0 and found.digest != known.digest:
        return "rows are not those that were there"
    return ""


def sequences_of(values: Sequence[bytes]) -> Sequences:
    """Return the change number (Sequence) of each stored row."""
    heads = np.frombuffer(b"".join([value[:HEAD_BYTES] for value in values]), dtype=HEAD)
    return heads["sequence"].astype(np.uint64)


def load_segment(store: Store, business: Business, table_id: int, start: bytes) -> Segment | None:
    """Return the stored checksum of the segment that starts at a record_id, None if there is none."""
    value = store.get(keys.STATE, keys.sum_prefix(business.number, table_id) + start)
    return decode(value) if value is not None else None


def next_start(store: Store, business: Business, table_id: int, start: bytes) -> bytes | None:
    """Return the start of the next segment that has a checksum; None if there is none."""
    prefix = keys.sum_prefix(business.number, table_id)
    found = next(store.scan(keys.STATE, prefix + start + b"\0", keys.after_prefix(prefix), limit=1), None)
    return found[0][len(prefix) :] if found is not None else None


def put_segment(batch: StoreBatch, business: Business, table_id: int, start: bytes, segment: Segment) -> None:
    """Put the checksum of a segment into a write batch."""
    batch.put(keys.STATE, keys.sum_prefix(business.number, table_id) + start, segment.encode())


def remove_segments(batch: StoreBatch, business: Business, table_id: int) -> None:
    """Remove the checksums of a table whose rows are all removed."""
    prefix = keys.sum_prefix(business.number, table_id)
    batch.delete_range(keys.STATE, prefix, keys.after_prefix(prefix))


def subtract_rows(
    store: Store, batch: StoreBatch, business: Business, table_id: int, removed: Sequence[tuple[bytes, bytes]]
) -> None:
    """Subtract removed rows, given in the order of their keys, from the checksums of their segments."""
    prefix = keys.sum_prefix(business.number, table_id)
    left = [(key[len(keys.row_prefix(business.number, table_id)) :], value) for key, value in removed]
    at = 0
    while at < len(left):
        first = left[at][0]
        held = store.find_at_or_before(keys.STATE, prefix + first)
        segment = decode(held[1]) if held is not None and held[0].startswith(prefix) else None
        covered = segment is not None and (segment.stop is None or first < segment.stop)
        stop = segment.stop if segment is not None and covered else next_start(store, business, table_id, first)
        inside = [value for key, value in left[at:] if stop is None or key < stop]
        if held is not None and segment is not None and covered:
            batch.put(keys.STATE, held[0], segment.without(sequences_of(inside)).encode())
        at += len(inside)
