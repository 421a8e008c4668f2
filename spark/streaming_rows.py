"""One piece of a stream in an executor: the changes between two offsets, as Arrow batches.

Each piece has a reader of its own at the broker. Change i of an increment has offset base + i, so pieces may begin and
end anywhere, and every change is in exactly one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from venus.codec.arrow_rows import CHANGE_FIELDS, COMMITTED, DELETED, GONE_BEFORE, OFFSET, SEQUENCE, gone_before
from venus.codec.batch import decode
from venus.codec.changes import TableChanges
from venus.codec.chunk import FullRows
from venus.errors import OffsetTrimmed, ProtocolError, VenusError
from venus.model import ChangeKind, TableSchema
from venus.network.rows_identity import RowsIdentity
from venus.rpc.subscriber import Subscriber
from venus.spark.datasource_columns import PlannedColumns
from venus.spark.datasource_options import BrokerTable, DataSourceOptions
from venus.wire import broker_pb2

#: VENUS's own columns of a stream: the same as in a lake's history.
STREAM_FIELDS = CHANGE_FIELDS
CREDIT_BYTES = 8 << 20
WAIT_S = 1.0
RETRY_S = 0.5


@dataclass
class OffsetPartition(InputPartition):
    """The changes of a table from `start` up to `end`."""

    start: int
    end: int
    table: BrokerTable
    #: Identity of the rows of the set that the micro-batch was planned with, and its offset.
    reported_at: int = 0
    identity: RowsIdentity | None = None


def increments(options: DataSourceOptions, piece: OffsetPartition) -> Iterator[broker_pb2.Increment]:
    """Yield the increments of one table between two offsets; wait for a broker that is away."""
    at, end, waits_since = piece.start, piece.end, 0.0
    while at < end:
        try:
            with Subscriber(
                options.address,
                options.business,
                f"spark/{uuid.uuid4().hex}",
                credit_bytes=CREDIT_BYTES,
                transient=True,
            ) as subscriber:
                subscriber.open(at, 0, [piece.table.table_id], rows=piece.identity, rows_at=piece.reported_at)
                while at < end:
                    for increment in subscriber.increments(WAIT_S):
                        if increment.base_offset < end:
                            yield increment
                        at = max(at, increment.base_offset + increment.count)
                    at = max(at, subscriber.position)
                    waits_since = 0.0
        except OffsetTrimmed as error:
            raise OffsetTrimmed(
                f"{error}: the stream has fallen behind what the broker keeps",
                hint="name a consumer group with the option group, and begin again with a new checkpoint",
            ) from error
        except VenusError as error:
            waits_since = waits_since or time.monotonic()
            if not error.retryable or time.monotonic() - waits_since > options.patience_s:
                raise
            time.sleep(RETRY_S)


def change_batches(
    options: DataSourceOptions, piece: OffsetPartition, wanted: PlannedColumns
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a piece."""
    versions = piece.table.schemas()
    for increment in increments(options, piece):
        batch = decode(increment.body)
        versions |= {s.version: s for s in batch.schemas if s.table_id == piece.table.table_id}
        offset, sequence = increment.base_offset, int(batch.first_sequence)
        for section in batch.sections:
            if section.table_id == piece.table.table_id:
                found = section_batch(
                    section,
                    _version(versions, section),
                    wanted,
                    offset=offset,
                    sequence=sequence,
                    committed_at_us=increment.committed_at_us,
                )
                if found is not None:
                    yield from _within(found, offset, section, piece)
            offset += section.count
            sequence += section.count


def _version(versions: dict[int, TableSchema], section: TableChanges) -> TableSchema:
    try:
        return versions[section.schema_version]
    except KeyError:
        raise ProtocolError(f"table {section.table_id} version {section.schema_version} was never described") from None


def _within(
    batch: pa.RecordBatch, offset: int, section: TableChanges, piece: OffsetPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the part of a batch that lies in this piece."""
    first, last = max(piece.start - offset, 0), min(piece.end - offset, section.count)
    if first < last:
        yield batch.slice(first, last - first) if section.kind is ChangeKind.CHANGES else batch


def section_batch(
    section: TableChanges,
    version: TableSchema,
    wanted: PlannedColumns,
    *,
    offset: int,
    sequence: int,
    committed_at_us: int,
) -> pa.RecordBatch | None:
    """Return a section as rows of a stream; None for a marker that removes nothing. Raises ValueMisfit."""
    count = section.count
    own = {
        OFFSET: pa.array(np.arange(offset, offset + count, dtype=np.int64)),
        SEQUENCE: pa.array(np.arange(sequence, sequence + count, dtype=np.int64)),
        COMMITTED: pa.repeat(pa.scalar(committed_at_us, CHANGE_FIELDS[4].type), count),
    }
    if section.kind is not ChangeKind.CHANGES:
        before = gone_before(section, sequence)
        if before is None:
            return None
        return wanted.marker(own | {DELETED: pa.array([True]), GONE_BEFORE: pa.array([int(before)], pa.int64())})
    own[DELETED] = pa.array(np.asarray(section.is_deleted, dtype=np.bool_))
    own[GONE_BEFORE] = pa.nulls(count, pa.int64())
    return wanted.batch(section.record_ids, section.rows, version, own)


def state_batch(rows: FullRows, version: TableSchema, wanted: PlannedColumns) -> pa.RecordBatch:
    """Return rows of the full data as rows of a stream: they have no offset, and are not deleted."""
    count = len(rows)
    own = {
        OFFSET: pa.nulls(count, pa.int64()),
        SEQUENCE: pa.array(rows.stored.sequences.astype(np.int64)),
        DELETED: pa.array(np.zeros(count, dtype=np.bool_)),
        GONE_BEFORE: pa.nulls(count, pa.int64()),
        COMMITTED: pa.nulls(count, CHANGE_FIELDS[4].type),
    }
    return wanted.batch(rows.stored.record_ids, rows.stored.rows, version, own)
