"""`spark.readStream.format("venus")`: one table's changes, micro-batch by micro-batch, with admission control.

Spark's checkpoint keeps the offset; after a restart the same micro-batch is read again from the broker, change by
change. An offset records where its micro-batch ends and also where it begins: for the first micro-batch Spark may call
`initialOffset` again at any time, even after a crash, and the result may have changed by then. The offset also has the
identity of the rows of the broker set, so that a query does not continue unnoticed at a set with other rows. With a
consumer group the broker keeps increments until Spark has committed them; without a group, a query that is stopped for
longer than the broker's retention fails with an error. `starting` = "full" delivers the full data first, as a single
micro-batch, and then the changes after its cut, with no gap and no overlap (VENUS 3.3).

An executor reads a piece of a stream, the changes between two offsets, as Arrow batches. Each piece has its own reader
at the broker. Change i of an increment has offset base + i, so pieces may begin and end anywhere, and every change is
in exactly one.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from venus.codec.arrow_rows import CHANGE_FIELDS, COMMITTED, DELETED, GONE_BEFORE, OFFSET, SEQUENCE, deletion_floor
from venus.codec.batch import TableChanges, decode
from venus.codec.stored_rows import FullRows
from venus.errors import OffsetTrimmed, ProtocolError, VenusError
from venus.model import ChangeKind, TableSchema
from venus.network import row_filters
from venus.network.row_filters import RowsIdentity
from venus.rpc import reports
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.spark.datasource_options import (
    BrokerTable,
    DataSourceOptions,
    PlannedColumns,
    find_table,
    raise_in_spark,
    read_business_status,
    table_of_snapshot,
)
from venus.spark.datasource_read import SplitPartition, open_snapshot, split_chunks
from venus.spark.streaming_plan import BatchLimit, BatchPlanner
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

FULL = -1
#: The smallest number of offsets that is worth a task.
PIECE_OFFSETS_MIN = 5_000
#: How often a query retries the earliest offset if the broker trims it before the stream is open.
LOOKS_MAX = 5

Offset = dict[str, Any]


def encode_rows(identity: RowsIdentity | None) -> Offset:
    """Return the part of an offset with the identity of the rows read so far; {} if that is unknown."""
    return {} if identity is None else {"rows": row_filters.encode_identity(identity)}


def decode_rows(offset: Offset) -> RowsIdentity | None:
    """Return the identity of the rows read up to an offset; None if not known, as in checkpoints of older versions."""
    return row_filters.decode_identity(offset.get("rows"))


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of one query; runs in a worker beside the driver, and as a copy in every task."""

    def __init__(self, options: DataSourceOptions, planned: StructType) -> None:
        self._options = options
        self._planned = planned
        self._planner: BatchPlanner | None = None
        self._table: BrokerTable | None = None
        self._until: int | None = None
        #: The start of a stream without a group at the earliest offset, once the stream is open.
        self._earliest: int | None = None
        self._moved = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without connections: the copy goes to executors."""
        return self.__dict__ | {"_planner": None}

    # -- beside the driver -----------------------------------------------------------------------------------------

    def _find_table(self) -> BrokerTable:
        """Return the table that the options name, and check the planned columns at first use."""
        if self._table is None:
            self._table = find_table(self._options)
            PlannedColumns.of(self._planned, self._table.newest, STREAM_FIELDS)
        return self._table

    def _plan(self) -> BatchPlanner:
        """Return the planner of micro-batches, which is created at first use."""
        if self._planner is None:
            options, table_id = self._options, self._find_table().table_id
            self._planner = BatchPlanner(options.address, options.business, options.group, lambda t: t == table_id)
        return self._planner

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the start of a query without checkpoint: the position of its group, or the option `starting`."""
        with raise_in_spark():
            options, status = self._options, read_business_status(self._options)
            self._find_table()
            group = next((c for c in status.consumers if options.group and c.group == options.group), None)
            if group is not None:
                return {"offset": group.kept, "epoch": 0}
            if options.starting == "full":
                return {"offset": FULL, "epoch": 0}
            named = {"earliest": status.log_start, "latest": status.next_offset}
            offset = named[options.starting] if options.starting in named else int(options.starting)
            if options.group:  # from this moment on the broker keeps new increments
                if options.starting == "earliest":
                    offset = self._begin_at_earliest(offset)
                else:
                    self._plan().begin(offset, 0)
                self._plan().acknowledge(offset)
            return {"offset": offset, "epoch": 0}

    def _begin_at_earliest(self, offset: int) -> int:
        """Open the stream at the log's start, and return its offset. Raises OffsetTrimmed after LOOKS_MAX attempts.

        The broker may have trimmed since `offset` was read. Nothing was read yet, so the new start serves as well.
        """
        for _ in range(LOOKS_MAX - 1):
            try:
                self._plan().begin(offset, 0)
            except OffsetTrimmed as trimmed:
                logger.info("%s; looking again for the earliest offset", trimmed)
                offset = read_business_status(self._options).log_start
            else:
                return offset
        self._plan().begin(offset, 0)
        return offset

    def _begin(self, start: Offset) -> int:
        """Open the stream at `start` and return its offset, which is later if the first offset was trimmed.

        A later start is allowed only before anything was read: after that, trimming loses changes and is an error.
        """
        planner = self._plan()
        if "from" in start or self._options.starting != "earliest" or self._options.group:
            planner.begin(start["offset"], start["epoch"], decode_rows(start))
            return int(start["offset"])
        if self._earliest is None:
            self._earliest = self._begin_at_earliest(start["offset"])
        else:
            planner.begin(self._earliest, start["epoch"])
        return self._earliest

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the option max_rows; max_bytes applies as well."""
        return ReadMaxRows(self._options.max_rows) if self._options.max_rows else ReadAllAvailable()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the queue's end, for the query's progress."""
        try:
            return {"offset": read_business_status(self._options).next_offset}
        except VenusError:
            return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the queue's end, which is the end of a cut, because a cut is committed as a whole."""
        with raise_in_spark():
            self._until = read_business_status(self._options).next_offset

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next micro-batch, or `start` if there is nothing new or the broker is unreachable."""
        try:
            with raise_in_spark():
                return self._cut_of_full_data() if start["offset"] == FULL else self._next(start, limit)
        except VenusError as error:
            if not error.retryable or self._until is not None:
                raise
            logger.warning("%s; waiting for it", error)
            if self._planner is not None:
                self._planner.close()
            return start

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch; `start` if there is nothing to read."""
        options, planner = self._options, self._plan()
        first = self._begin(start)
        asked = (
            BatchLimit(rows=limit.max_rows, nbytes=options.max_bytes)
            if isinstance(limit, ReadMaxRows)
            else BatchLimit()
        )
        mark = planner.end_within(asked, whole_cuts=options.whole_cuts, until=self._until)
        if mark is None:
            return start
        idle = not planner.rows_between(mark.end)
        if idle and self._until is None and time.monotonic() - self._moved < options.idle_s:
            return start  # only other tables have changed: no micro-batch
        self._moved = time.monotonic()
        return {"from": first, "offset": mark.end, "epoch": mark.epoch} | encode_rows(mark.identity)

    def _cut_of_full_data(self) -> Offset:
        """Open a snapshot of the full data; return its cut and key ranges as the end of the first micro-batch."""
        options = self._options
        snapshot = open_snapshot(options, self._find_table().table_id)
        self._table = table_of_snapshot(snapshot, self._find_table().table_id)
        splits = ",".join(base64.b64encode(s.SerializeToString()).decode() for s in snapshot.splits)
        return {
            "from": FULL,
            "offset": snapshot.offset,
            "epoch": snapshot.epoch,
            "snapshot": snapshot.snapshot_id,
            "splits": splits,
        } | encode_rows(self._plan().own(reports.rows_identity(snapshot)))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Divide a micro-batch into pieces of about the same number of offsets."""
        with raise_in_spark():
            table = self._refresh_table()
        first, last = end.get("from", start["offset"]), end["offset"]
        if first == FULL:
            splits = [base64.b64decode(text) for text in end["splits"].split(",") if text]
            return [SplitPartition(end["snapshot"], split, table) for split in splits]
        pieces = max(1, min(self._options.splits, (last - first) // PIECE_OFFSETS_MIN))
        bounds = [first + (last - first) * i // pieces for i in range(pieces + 1)]
        begun, known = bounds[0], decode_rows(start)
        return [OffsetPartition(a, b, table, begun, known) for a, b in pairwise(bounds) if a < b]

    def _refresh_table(self) -> BrokerTable:
        """Return the table with every version seen since the query began."""
        table, planner = self._find_table(), self._planner
        fresh = {v: wire for (_, v), wire in planner.versions.items()} if planner is not None else {}
        return BrokerTable(table_id=table.table_id, newest=table.newest, versions=table.versions | fresh)

    def commit(self, end: Offset) -> None:
        """Record that Spark will not request anything below `end` again."""
        try:
            if "snapshot" in end:
                if self._options.group:  # a group that the broker knows counts as having its full data
                    self._plan().begin(end["offset"], 0, decode_rows(end))
                with SnapshotClient(self._options.address) as snapshots:
                    snapshots.close(end["snapshot"])
            if self._planner is not None:
                self._planner.acknowledge(end["offset"])
        except VenusError as error:  # the next commit covers this one, and the snapshot's lease ends by itself
            logger.warning("%s", error)

    def stop(self) -> None:
        """Close the query's stream from the broker."""
        if self._planner is not None:
            self._planner.close()

    # -- in an executor --------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition as Arrow batches."""
        with raise_in_spark():
            if isinstance(partition, SplitPartition):
                yield from self._full_rows(partition)
                return
            assert isinstance(partition, OffsetPartition)
            wanted = PlannedColumns.of(self._planned, partition.table.newest, STREAM_FIELDS)
            yield from change_batches(self._options, partition, wanted)

    def _full_rows(self, partition: SplitPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a key range of the full data as rows of the stream."""
        wanted = PlannedColumns.of(self._planned, partition.table.newest, STREAM_FIELDS)
        versions = partition.table.schemas()
        for chunk in split_chunks(self._options, partition):
            for rows in chunk.sections:
                yield state_batch(rows, versions[rows.schema_version], wanted)


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
    #: The rows identity of the broker set with which the micro-batch was planned, and its offset.
    reported_at: int = 0
    identity: RowsIdentity | None = None


def increments(options: DataSourceOptions, piece: OffsetPartition) -> Iterator[broker_pb2.Increment]:
    """Yield the increments of one table between two offsets; wait for an unreachable broker."""
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
                f"{error}: the stream has fallen behind the changes that the broker keeps",
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
    """Yield the changes of a piece of the stream as Arrow batches."""
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
    """Return the table version of a section. Raises ProtocolError if the broker never described it."""
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
        before = deletion_floor(section, sequence)
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
