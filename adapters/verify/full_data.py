"""The full data at the broker as a side of a comparison: pinned at a cut, read by key range or by single keys.

The record id of a non-negative integer is its field number, the length of its digits and the digits, so a range of
integers is a few ranges of record ids: one for each length (codec/row_bytes.py).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from venus.adapters.dialects.verify_contract import Key, Slice, Subject, key_forms
from venus.adapters.verify.rows import Row, columns_of, record_ids
from venus.codec import schema as schemas_codec
from venus.codec.changes import TableChanges
from venus.codec.layout import Layout, varint
from venus.codec.stored_rows import Sequences
from venus.errors import VenusError
from venus.model import TableSchema
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

#: Concurrent key look-ups over one connection: this many keys cost about one round trip.
LOOKUPS_AT_ONCE = 32
#: From this many keys on, reading the table's full data costs less than key look-ups.
LOOKUPS_MAX = 2_000
_INT64_DIGITS = 19


class PinnedFullData:
    """Reader of one snapshot of the full data."""

    def __init__(self, address: str, snapshot: broker_pb2.Snapshot) -> None:
        self._snapshots = SnapshotClient(address)
        self.snapshot = snapshot
        schemas = [schemas_codec.from_wire(wire) for wire in snapshot.schemas]
        self._versions: dict[int, dict[int, TableSchema]] = {}
        for schema in schemas:
            self._versions.setdefault(schema.table_id, {})[schema.version] = schema

    def close(self) -> None:
        """Close the connection; the snapshot belongs to the code that opened it."""
        self._snapshots.close()

    def versions(self, table_id: int) -> dict[int, TableSchema]:
        """Return every version of a table that its rows may have."""
        return self._versions.get(table_id, {})

    def scan(self, subject: Subject, part: Slice, buckets: Collection[int] | None) -> Iterator[TableChanges]:
        """Yield the rows of a slice, in the broker's order."""
        table_id = subject.schema.table_id
        if not part.step:
            splits = [s for s in self.snapshot.splits if s.table_id == table_id]
        else:
            bounds = [b for low, high in part.ranges(buckets) for b in key_ranges(subject.schema, low, high)]
            splits = [broker_pb2.Split(table_id=table_id, low=low, high=high) for low, high in bounds]
        for split in splits:
            for section, _ in self._read(split, own_range=bool(part.step)):
                yield section

    def _read(self, split: broker_pb2.Split, *, own_range: bool) -> Iterator[tuple[TableChanges, Sequences]]:
        for chunk in self._snapshots.read_split(self.snapshot.snapshot_id, split, own_range=own_range):
            for rows in chunk.sections:
                yield rows.changes, rows.stored.sequences

    def find(self, subject: Subject, keys: Seq[Key]) -> dict[Key, tuple[Row, int]]:
        """Return the rows with these keys, each with the Sequence of its last change."""
        ids = record_ids(keys, subject.schema) if len(keys) <= LOOKUPS_MAX else None
        table_id = subject.schema.table_id
        if ids is None:
            bounds = [(s.low, s.high) for s in self.snapshot.splits if s.table_id == table_id]
        else:
            bounds = [(record_id, record_id + b"\0") for record_id in ids]
        splits = [broker_pb2.Split(table_id=table_id, low=low, high=high) for low, high in bounds]
        with ThreadPoolExecutor(min(LOOKUPS_AT_ONCE, max(1, len(splits)))) as pool:
            parts = pool.map(lambda split: self._find_in_split(subject, split, set(keys)), splits)
            return {key: row for part in parts for key, row in part.items()}

    def _find_in_split(self, subject: Subject, split: broker_pb2.Split, wanted: set[Key]) -> dict[Key, tuple[Row, int]]:
        schema, versions = subject.schema, self.versions(subject.schema.table_id)
        found: dict[Key, tuple[Row, int]] = {}
        for section, sequences in self._read(split, own_range=True):
            columns = columns_of(section, versions, schema)
            rows = zip(*columns, strict=True)
            for key, row, sequence in zip(key_forms(columns, schema), rows, sequences.tolist(), strict=True):
                if key in wanted:
                    found[key] = (row, sequence)
        return found


def key_ranges(schema: TableSchema, low: int | None, high: int | None) -> list[tuple[bytes, bytes]]:
    """Return the ranges of record ids whose leading key, an integer, is in [low, high)."""
    tag = Layout.of(schema).tags[0]
    bottom = -(10**_INT64_DIGITS) + 1 if low is None else low
    top = 10**_INT64_DIGITS if high is None else high
    found = []
    for digits in range(1, _INT64_DIGITS + 1):
        smallest = 10 ** (digits - 1) if digits > 1 else 0
        largest = 10**digits - 1
        first, last = max(bottom, smallest), min(top - 1, largest)
        if first <= last:
            found.append(_range(tag, str(first), str(last)))
        first, last = max(bottom, -largest), min(top - 1, -max(smallest, 1))
        if first <= last:  # among negative numbers of one length the text of the smaller one is the greater
            found.append(_range(tag, str(last), str(first)))
    return found


def _range(tag: bytes, first: str, last: str) -> tuple[bytes, bytes]:
    """Return [first, behind last]; both texts have equal length, and longer record ids sort behind their prefix."""
    head = tag + varint(len(first))
    return head + first.encode(), head + last[:-1].encode() + bytes([ord(last[-1]) + 1])


@contextmanager
def open_snapshot(address: str, business: str, table_ids: Seq[int], holder: str) -> Iterator[broker_pb2.Snapshot]:
    """Pin the full data for as long as the block runs."""
    stop = threading.Event()
    with SnapshotClient(address) as snapshots:
        snapshot = snapshots.open(business, table_ids=table_ids, splits=1, holder=holder)

        def renew() -> None:
            while not stop.wait(max(1.0, snapshot.lease_s / 3)):
                try:
                    snapshots.renew(snapshot.snapshot_id)
                except VenusError:
                    return  # the next reader gets SnapshotExpired

        thread = threading.Thread(target=renew, name="venus-lease", daemon=True)
        thread.start()
        try:
            yield snapshot
        finally:
            stop.set()
            thread.join()
            with suppress(VenusError):  # otherwise its lease ends
                snapshots.close(snapshot.snapshot_id)
