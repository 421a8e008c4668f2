"""An executor whose connection is cut, or whose DataFrame's snapshot is gone; tested without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.brokers.delivery import CHUNK_ROWS, FakeDelivery
from tests.support.brokers.feed import Feed, items, put
from tests.support.brokers.servers import fill as fill_broker
from tests.support.brokers.servers import settings
from tests.support.engines.batches import ITEMS
from tests.support.faults.proxy import Proxy
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.codec.arrow_rows import ArrowShape
from venus.errors import OffsetTrimmed, ProtocolError, SnapshotExpired, Unavailable
from venus.spark.datasource_options import BrokerTable, DataSourceOptions, PlannedColumns, table_of_snapshot
from venus.spark.datasource_read import (
    OWN_FIELDS,
    SEQUENCE,
    FullDataReader,
    SplitPartition,
    open_snapshot,
    split_batches,
)
from venus.spark.streaming import STREAM_FIELDS, OffsetPartition, change_batches
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.fault]

ROWS = 6 * CHUNK_ROWS
#: Row length at which a split exceeds the buffers of gRPC and the kernel.
LABEL = "x" * 2000


@pytest.fixture
def proxy(broker: FakeDelivery) -> Iterator[Proxy]:
    with Proxy(broker.address) as made:
        made.delay_s = 0.01
        yield made


@pytest.fixture
def real_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    made = start_in_thread(settings(tmp_path / "b"))
    fill_broker(made.address, 1, 1, rows=40)
    yield made
    made.stop()


def options_of(proxy: Proxy, **options: str) -> DataSourceOptions:
    return DataSourceOptions.of({"address": proxy.address, "table": "items", "patience_s": "60"} | options)


def planned_columns(table: BrokerTable, own: tuple[pa.Field, ...]) -> PlannedColumns:
    fields = [*own, *ArrowShape.of(table.newest).fields]
    return PlannedColumns.of(from_arrow_schema(pa.schema(fields)), table.newest, own)


def fill(broker: FakeDelivery) -> None:
    feed = Feed(broker)
    feed.describe(items())
    feed.cut(*(put(n, LABEL, n) for n in range(ROWS)), batch_rows=CHUNK_ROWS)


def partition_of(options: DataSourceOptions) -> tuple[SplitPartition, PlannedColumns]:
    snapshot = open_snapshot(options, 1)
    table = table_of_snapshot(snapshot, 1)
    (split,) = snapshot.splits
    return SplitPartition(snapshot.snapshot_id, split.SerializeToString(), table), planned_columns(table, OWN_FIELDS)


def cut_after_first_row(batches: Iterator[pa.RecordBatch], proxy: Proxy) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = next(batches).to_pylist()
    proxy.cut()
    return rows + [row for batch in batches for row in batch.to_pylist()]


def test_full_data_continues_after_the_last_received_row(
    broker: FakeDelivery, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("venus.rpc.snapshots.RESUMES_MAX", 0)  # as if the broker had been away for longer
    fill(broker)
    options = options_of(proxy, splits="1")
    partition, wanted = partition_of(options)

    rows = cut_after_first_row(split_batches(options, partition, wanted), proxy)

    assert broker.splits_read >= 2, "the connection was cut too late to be noticed"
    assert sorted(row["id"] for row in rows) == list(range(ROWS))  # type: ignore[type-var]
    assert sorted(row[SEQUENCE] for row in rows) == list(range(1, ROWS + 1))  # type: ignore[type-var]


def test_changes_continue_after_the_last_received_one(broker: FakeDelivery, proxy: Proxy) -> None:
    fill(broker)
    options = options_of(proxy, starting="earliest")
    table = table_of_snapshot(open_snapshot(options, 1), 1)
    piece = OffsetPartition(3, ROWS - 5, table)

    rows = cut_after_first_row(change_batches(options, piece, planned_columns(table, STREAM_FIELDS)), proxy)

    assert [row["_offset"] for row in rows] == list(range(3, ROWS - 5))


def test_a_lost_broker_is_waited_for_no_longer_than_configured(broker: FakeDelivery, proxy: Proxy) -> None:
    fill(broker)
    options = options_of(proxy, splits="1", patience_s="1")
    partition, wanted = partition_of(options)
    batches = split_batches(options, partition, wanted)
    next(batches)
    proxy.close()
    began = time.monotonic()

    with pytest.raises(Unavailable):
        list(batches)
    assert 1.0 <= time.monotonic() - began < 90.0


def test_a_lost_snapshot_and_a_stream_that_came_too_late_name_the_remedy(broker: FakeDelivery, proxy: Proxy) -> None:
    fill(broker)
    options = options_of(proxy, splits="1")
    partition, wanted = partition_of(options)
    broker.pinned.clear()
    broker.log_start = 100

    with pytest.raises(SnapshotExpired, match=r"cut is gone; load\(\) it again, or raise the option lease_s"):
        list(split_batches(options, partition, wanted))
    piece = OffsetPartition(3, 200, partition.table)
    with pytest.raises(OffsetTrimmed, match="fallen behind") as trimmed:
        list(change_batches(options, piece, planned_columns(partition.table, STREAM_FIELDS)))
    assert "consumer group" in trimmed.value.hint


def test_a_damaged_split_is_refused(real_broker: RunningBroker) -> None:
    options = DataSourceOptions.of({"address": real_broker.address, "table": "items", "splits": "2"})
    snapshot = open_snapshot(options, 1)
    table, whole = table_of_snapshot(snapshot, 1), snapshot.splits[1]
    damaged = broker_pb2.Split(table_id=1, low=whole.low + b"\xff", high=whole.high)
    planned, unplanned = (
        SplitPartition(snapshot.snapshot_id, split.SerializeToString(), table) for split in (whole, damaged)
    )
    wanted = planned_columns(table, OWN_FIELDS)

    assert sum(batch.num_rows for batch in split_batches(options, planned, wanted)) > 0
    with pytest.raises(ProtocolError, match="no such split"):
        list(split_batches(options, unplanned, wanted))


def test_bounds_of_the_reader_need_no_planned_split(real_broker: RunningBroker) -> None:
    options = DataSourceOptions.of({"address": real_broker.address, "table": "items", "low": "5", "high": "9"})
    schema = from_arrow_schema(pa.schema([*OWN_FIELDS, *ArrowShape.of(ITEMS).fields]))
    reader = FullDataReader(options, schema)

    found = [n for split in reader.partitions() for batch in reader.read(split) for n in batch["id"].to_pylist()]

    assert sorted(found) == [5, 6, 7, 8]
