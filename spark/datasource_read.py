"""`spark.read.format("venus")`: the full data of one table at a cut, by key ranges (VENUS 3.3, offset -1).

The snapshot is opened when the job begins and lives as long as its lease, which every read renews: all actions on one
DataFrame see the same cut. Rows go from the broker to the executors, batch by batch; the source is not touched.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from venus.codec.chunk import Chunk
from venus.errors import Overloaded, SnapshotExpired, VenusError
from venus.model import TableSchema
from venus.rpc.snapshots import Resume, SnapshotClient
from venus.spark.datasource_bounds import KeyBounds
from venus.spark.datasource_columns import PlannedColumns
from venus.spark.datasource_options import BrokerTable, DataSourceOptions, raise_in_spark, table_of_snapshot
from venus.wire import broker_pb2

SEQUENCE = "_sequence"
#: VENUS's own column, there if it is named: the row's newest sequence at the source.
OWN_FIELDS = (pa.field(SEQUENCE, pa.int64()),)
RETRY_S = 0.5


def own_fields(table: TableSchema) -> tuple[pa.Field, ...]:
    """Return VENUS's own columns of full data, without those whose names the table needs for its own."""
    names = {c.name for c in table.columns}
    return tuple(field for field in OWN_FIELDS if field.name not in names)


@dataclass
class SplitPartition(InputPartition):
    """One key range of one snapshot."""

    snapshot_id: str
    split: bytes
    table: BrokerTable


class FullDataReader(DataSourceReader):
    """Reader of full data. It has no pushFilters: Spark 4.3 leaks pushed filters between queries, and miscounts."""

    def __init__(self, options: DataSourceOptions, planned: StructType) -> None:
        self._options = options
        self._planned = planned

    def partitions(self) -> Sequence[InputPartition]:
        """Open the snapshot; called once for a DataFrame."""
        with raise_in_spark():
            return self._partitions()

    def _partitions(self) -> list[SplitPartition]:
        from venus.spark.datasource_options import find_table

        options = self._options
        table_id = find_table(options).table_id
        snapshot = open_snapshot(options, table_id)
        table = table_of_snapshot(snapshot, table_id)
        PlannedColumns.of(self._planned, table.newest, own_fields(table.newest))
        bounds = KeyBounds.of(table.newest, options.low, options.high)
        clipped = [split if bounds is None else bounds.clip(split) for split in snapshot.splits]
        return [SplitPartition(snapshot.snapshot_id, s.SerializeToString(), table) for s in clipped if s is not None]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a key range."""
        assert isinstance(partition, SplitPartition)
        table = partition.table.newest
        wanted = PlannedColumns.of(self._planned, table, own_fields(table))
        return split_batches(self._options, partition, wanted)


def open_snapshot(options: DataSourceOptions, table_id: int) -> broker_pb2.Snapshot:
    """Open a snapshot of one table; the broker keeps only a few, so wait until one is free."""
    until = time.monotonic() + options.patience_s
    with SnapshotClient(options.address) as snapshots:
        while True:
            try:
                return snapshots.open(
                    options.business,
                    table_ids=[table_id],
                    splits=options.splits,
                    lease_s=options.lease_s,
                    holder="Spark",
                )
            except Overloaded:
                if time.monotonic() > until:
                    raise
                time.sleep(RETRY_S)


def split_batches(
    options: DataSourceOptions, partition: SplitPartition, wanted: PlannedColumns
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a key range as batches."""
    versions = partition.table.schemas()
    bounds = KeyBounds.of(partition.table.newest, options.low, options.high)
    with raise_in_spark():
        for chunk in split_chunks(options, partition):
            for section in chunk.sections:
                version = versions[section.schema_version]
                sequences = section.stored.sequences.astype(np.int64)
                record_ids, rows = section.stored.record_ids, section.stored.rows
                if bounds is not None:
                    record_ids, rows, sequences = bounds.select_within(record_ids, rows, sequences, version)
                if len(sequences):
                    yield wanted.batch(record_ids, rows, version, {SEQUENCE: pa.array(sequences)})


def split_chunks(options: DataSourceOptions, partition: SplitPartition) -> Iterator[Chunk]:
    """Yield the chunks of a key range; wait for a broker that is away, and continue after the last row."""
    resume, waits_since = Resume(), 0.0
    own_range = options.low is not None or options.high is not None
    split = broker_pb2.Split.FromString(partition.split)
    while True:
        try:
            with SnapshotClient(options.address) as snapshots:
                snapshots.renew(partition.snapshot_id)
                for chunk in snapshots.read_split(partition.snapshot_id, split, resume, own_range=own_range):
                    waits_since = 0.0
                    yield chunk
        except SnapshotExpired as error:
            raise SnapshotExpired(
                f"{error}: this DataFrame's cut is gone", hint="load() it again, or raise the option lease_s"
            ) from error
        except VenusError as error:
            waits_since = waits_since or time.monotonic()
            if not error.retryable or time.monotonic() - waits_since > options.patience_s:
                raise
            time.sleep(RETRY_S)
        else:
            return
