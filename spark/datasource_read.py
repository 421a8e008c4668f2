"""`spark.read.format("venus")`: the full data of one table at a cut, by key ranges (VENUS 3.3, offset -1).

The snapshot is opened when the job begins and lives as long as its lease, which every read renews: all actions on one
DataFrame see the same cut. Rows go from the broker to the executors, batch by batch; the source is not touched.

Bounds of the first key column select exactly the rows within them. Record ids are ordered as bytes: tag, length, text.
That is the order of the values only for integers from 0. For these, the bounds are a range of record ids; for other
keys, every split is read, and the bounds filter the rows.
"""

from __future__ import annotations

import math
import string
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from venus.codec.arrow_rows import ArrowShape, parse_values
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout, varint
from venus.codec.stored_rows import Chunk
from venus.errors import ConfigError, Overloaded, SnapshotExpired, VenusError
from venus.model import Column, Kind, TableSchema
from venus.rpc.snapshots import Resume, SnapshotClient
from venus.spark.datasource_options import (
    BrokerTable,
    DataSourceOptions,
    PlannedColumns,
    raise_in_spark,
    table_of_snapshot,
)
from venus.wire import broker_pb2

SEQUENCE = "_sequence"
#: VENUS's own column, present if it is named: the row's newest Sequence at the source.
OWN_FIELDS = (pa.field(SEQUENCE, pa.int64()),)
RETRY_S = 0.5


def own_fields(table: TableSchema) -> tuple[pa.Field, ...]:
    """Return VENUS's own columns of full data, without those whose names the table's columns have."""
    names = {c.name for c in table.columns}
    return tuple(field for field in OWN_FIELDS if field.name not in names)


@dataclass
class SplitPartition(InputPartition):
    """One key range of one snapshot."""

    snapshot_id: str
    split: bytes
    table: BrokerTable


class FullDataReader(DataSourceReader):
    """Reader of full data. It has no pushFilters: Spark 4.3 leaks filters between queries, and miscounts."""

    def __init__(self, options: DataSourceOptions, planned: StructType) -> None:
        self._options = options
        self._planned = planned

    def partitions(self) -> Sequence[InputPartition]:
        """Open the snapshot, and return a partition for each key range; called once for a DataFrame."""
        with raise_in_spark():
            return self._partitions()

    def _partitions(self) -> list[SplitPartition]:
        """Open the snapshot, and return its key ranges that can have rows within the bounds."""
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
    """Yield the chunks of a key range; wait for an unreachable broker, and continue after the last row."""
    resume, waits_since = Resume(), 0.0
    own_range = bool(options.low or options.high)
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


Numbers = npt.NDArray[np.int64]

#: Kinds whose Arrow type has the order of the database (text: by bytes).
_ORDERED = frozenset(
    {Kind.INT, Kind.DECIMAL, Kind.FLOAT, Kind.TEXT, Kind.CHAR, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.UUID}
)
_TEXTS = frozenset({Kind.TEXT, Kind.CHAR, Kind.UUID})
_UUID = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBounds:
    """Bounds of the first key column, low <= value < high; None means no bound."""

    shape: ArrowShape
    low: pa.Scalar | None
    high: pa.Scalar | None

    @classmethod
    def of(cls, schema: TableSchema, low: str, high: str) -> KeyBounds | None:
        """Parse the bounds in the type of the column. Raises ConfigError. Returns None without bounds."""
        if not low and not high:
            return None
        column = schema.wire_columns[0]
        shape = ArrowShape.of(schema, [column.name])
        place = f"{schema.qualified_name}: bounds of {column.name}"
        as_text = pa.types.is_string(shape.types[0]) and column.type.kind not in _TEXTS
        if column.type.kind not in _ORDERED or as_text:
            raise ConfigError(
                f"{place}: values of this type ({column.source_type or column.type.kind.name}) have no order here"
            )
        first, end = (_scalar(text, column, shape.types[0], place) for text in (low, high))
        if first is not None and end is not None and _is_above(first, end):
            raise ConfigError(f"{place}: low {low!r} is above high {high!r}")
        return cls(shape=shape, low=first, high=end)

    def select_within(
        self, record_ids: PackedBytes, rows: PackedBytes, numbers: Numbers, version: TableSchema
    ) -> tuple[PackedBytes, PackedBytes, Numbers]:
        """Return record ids, rows and Sequences of the rows whose first key column is within the bounds."""
        mask = np.asarray(self._holds(record_ids, version).to_numpy(zero_copy_only=False), dtype=np.bool_)
        return _filter_packed(record_ids, mask), _filter_packed(rows, mask), numbers[mask]

    def _holds(self, record_ids: PackedBytes, version: TableSchema) -> pa.Array:
        """Mark the rows whose first key column is within the bounds."""
        nothing = PackedBytes(b"", record_ids.sizes * 0)
        (keys,) = self.shape.arrays(record_ids, nothing, version)
        inside = pa.repeat(pa.scalar(True), len(keys))
        if self.low is not None:
            inside = pc.and_(inside, pc.invert(_are_below(keys, self.low)))
        return inside if self.high is None else pc.and_(inside, _are_below(keys, self.high))

    def clip(self, split: broker_pb2.Split) -> broker_pb2.Split | None:
        """Return the part of a split that can have rows within the bounds; None if no row can match."""
        column, low, high = self.shape.columns[0], split.low, split.high
        whole = column.type.kind is Kind.INT or (column.type.kind is Kind.DECIMAL and column.type.scale == 0)
        if whole and self.low is not None and self.low.as_py() >= 0:
            low = max(low, _first_id(self.shape.schema, self.low))
            if self.high is not None:
                end = _first_id(self.shape.schema, self.high)
                high = min(high, end) if high else end
        if high and low >= high:
            return None
        return broker_pb2.Split(
            table_id=split.table_id,
            low=low,
            high=high,
            rows_estimate=split.rows_estimate,
            bytes_estimate=split.bytes_estimate,
        )


def _are_below(keys: pa.Array, bound: pa.Scalar) -> pa.Array:
    """Mark the keys that come before a bound. NaN sorts last, as in databases; Arrow does not order it."""
    if pa.types.is_floating(keys.type) and math.isnan(bound.as_py()):
        return pc.invert(pc.is_nan(keys))
    return pc.less(keys, bound)


def _is_above(low: pa.Scalar, high: pa.Scalar) -> bool:
    """Return whether the lower bound is above the upper one."""
    (below,) = _are_below(pa.array([high.as_py()], high.type), low)
    return bool(below.as_py())


def _filter_packed(packed: PackedBytes, mask: npt.NDArray[np.bool_]) -> PackedBytes:
    """Return the values that the mask selects."""
    data = np.frombuffer(packed.data, dtype=np.uint8)
    return PackedBytes(data[np.repeat(mask, packed.sizes)].tobytes(), packed.sizes[mask])


def _scalar(text: str, column: Column, wanted: pa.DataType, place: str) -> pa.Scalar | None:
    """Parse a bound in the type of its column; None if the text is empty. Raises ConfigError."""
    if column.type.kind not in (Kind.TEXT, Kind.CHAR):  # where a blank belongs to the value
        text = text.strip()
    if not text:
        return None
    if column.type.kind is Kind.UUID:
        text = _uuid(text, place)
    try:
        return parse_values(pa.array([text.encode()], type=pa.large_binary()), column, wanted)[0]
    except pa.ArrowInvalid:
        raise ConfigError(f"{place}: {text!r} is no {wanted}") from None


def _uuid(text: str, place: str) -> str:
    """Return a UUID, or a prefix of one, in the spelling of the rows; other spellings would compare as unequal."""
    found = text.lower()
    fits = (c in string.hexdigits if x == "x" else c == x for c, x in zip(found, _UUID, strict=False))
    if len(found) > len(_UUID) or not all(fits):
        raise ConfigError(f"{place}: {text!r} is no UUID, nor the beginning of one")
    return found


def _first_id(schema: TableSchema, value: pa.Scalar) -> bytes:
    """Return the smallest record id whose first key column has this value."""
    text = str(value.as_py()).encode()
    return Layout.of(schema).tags[0] + varint(len(text)) + text
