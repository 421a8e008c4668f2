"""A broker's data of a business, checked while it is read: nothing doubled, missing or out of order.

The same rows are read in two independent ways: the increments from offset 0, folded here, and the broker's full data.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from tests.support.engines.stored import plain_rows
from venus.codec.batch import Batch, TableChanges, decode, digest
from venus.codec.columns import to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.model import ChangeKind, TableSchema
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

Row = tuple[int, bytes]  # schema version, row
Tables = dict[int, dict[bytes, Row]]
Values = dict[tuple[str | bytes | None, ...], tuple[str | bytes | None, ...]]

CREDIT_BYTES = 64 << 20
TIMEOUT_S = 60.0


def fold(batches: Iterable[Batch]) -> Tables:
    """Apply batches in order; assert that batch numbers and Sequences are dense, and that cuts are whole."""
    tables: dict[int, dict[bytes, tuple[int, Row]]] = {}
    sequence, batch_no, cut = 1, 1, 0
    for batch in batches:
        assert (batch.batch_no, batch.first_sequence) == (batch_no, sequence), "dense"
        assert batch.cut == (cut or batch_no), "in its cut"
        cut = 0 if batch.cut_end else batch.cut
        for section in batch.sections:
            _apply(tables.setdefault(section.table_id, {}), section, sequence)
            sequence += section.count
        batch_no += 1
    assert cut == 0, "whole cuts only"
    return {table_id: {key: row for key, (_, row) in rows.items()} for table_id, rows in tables.items()}


def _apply(rows: dict[bytes, tuple[int, Row]], section: TableChanges, sequence: int) -> None:
    """Apply a section to the rows of its table."""
    if section.kind is ChangeKind.TRUNCATE:
        rows.clear()
    elif section.kind is ChangeKind.SWEEP_END:
        for key in [k for k, (at, _) in rows.items() if at < section.sweep_before]:
            del rows[key]
    changes = zip(section.record_ids.split(), section.rows.split(), section.is_deleted, strict=True)
    for i, (key, row, deleted) in enumerate(changes):
        if deleted:
            rows.pop(key, None)
        else:
            rows[key] = (sequence + i, (section.schema_version, row))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Everything that consumers of a business can read."""

    batches: list[Batch]
    tables: Tables
    schemas: dict[str, TableSchema]  # the newest version of each table, by table name
    versions: dict[tuple[int, int], TableSchema]
    digests: list[int]  # of each delivered batch

    def values(self, table: str) -> Values:
        """Return a table's rows as canonical text: key columns -> other columns."""
        found: Values = {}
        table_id = self.schemas[table].table_id
        for key, (version, row) in self.tables.get(table_id, {}).items():
            layout = Layout.of(self.versions[table_id, version])
            columns = [c[0] for c in to_columns(PackedBytes.of([key]), PackedBytes.of([row]), layout)]
            found[tuple(columns[: layout.key_count])] = tuple(columns[layout.key_count :])
        return found


def read_ledger(address: str, business: str = "main", *, holder: str = "ledger") -> Ledger:
    """Read everything up to one offset, fold it, and compare the result with the broker's full data at that offset.

    With a `holder` a cluster redirects the reader to the leader; without one, each replica answers itself.
    """
    with SnapshotClient(address) as snapshots:
        snapshot = snapshots.open(business, holder=holder)
        full = _full_data(snapshots, snapshot)
        snapshots.close(snapshot.snapshot_id)
    bodies = _increments(address, business, snapshot.offset)
    batches = [decode(body) for body in bodies]
    tables = fold(batches)
    versions = {(s.table_id, s.version): s for b in batches for s in b.schemas}
    assert {t: rows for t, rows in full.items() if rows} == {t: rows for t, rows in tables.items() if rows}
    newest = {s.name: s for s in sorted(versions.values(), key=lambda s: s.version)}
    digests = [digest(body) for body in bodies]
    return Ledger(batches=batches, tables=tables, schemas=newest, versions=versions, digests=digests)


def _increments(address: str, business: str, end: int) -> list[bytes]:
    """Return the bodies of all batches below an offset; assert that their offsets are dense."""
    bodies: list[bytes] = []
    offset, deadline = 0, time.monotonic() + TIMEOUT_S
    with Subscriber(address, business, "ledger", credit_bytes=CREDIT_BYTES, transient=True) as reader:
        reader.open(0, 0)
        while offset < end:
            assert time.monotonic() < deadline, f"only {offset} of {end} arrived"
            for increment in reader.increments(1.0):
                if offset < end:
                    assert increment.base_offset == offset, "offsets are dense"
                    bodies.append(increment.body)
                    assert increment.count == max(1, decode(increment.body).count)
                    offset += increment.count
    return bodies


def _full_data(snapshots: SnapshotClient, snapshot: broker_pb2.Snapshot) -> Tables:
    """Return the rows of a snapshot; assert that no key occurs twice."""
    tables: Tables = {}
    for split in snapshot.splits:
        for chunk in snapshots.read_split(snapshot.snapshot_id, split):
            rows = tables.setdefault(chunk.table_id, {})
            for _, version, key, row in plain_rows(chunk.rows):
                assert key not in rows, "each row once"
                rows[key] = (version, row)
    return tables
