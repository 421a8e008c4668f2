"""The full interface over a real socket: parallel splits, little credit, damage, cut connections."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.brokers.consumers import (
    Rows,
    is_materialised,
    rows_in,
    rows_in_chunk,
    subscriber,
)
from tests.support.brokers.servers import BUSINESS, commit, data, fill, take
from tests.support.engines.batches import ITEMS, half, other_table
from tests.support.engines.stored import plain_rows, stored_rows
from tests.support.faults.proxy import Proxy
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.broker.snapshot import reading
from venus.codec.stored_rows import RowTotals, SealedChunk, StoredRows
from venus.errors import ProtocolError, SnapshotExpired
from venus.model import FULL
from venus.rpc.producer import Producer
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration


def test_full_data_and_later_increments_have_every_change_once(broker: RunningBroker) -> None:
    halves = fill(broker.address, 1, 40, rows=25)
    eventually(lambda: is_materialised(broker, 1000))
    later = [half(n, rows=25) for n in range(41, 81)]
    with (
        Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender,
        subscriber(broker, credit_bytes=20_000) as reader,
    ):
        sender.connect(0, 0)
        commit(sender, later[:10])
        opened = reader.open(FULL, 0)
        commit(sender, later[10:])
        full: Rows = {}
        for body in reader.chunks():
            full |= rows_in_chunk(body)
        cut = opened.snapshot.offset
        assert 1000 <= cut <= 1250
        assert [schema.name for schema in opened.snapshot.schemas] == ["items"]
        increments = take(reader, 2000)
        assert increments[0].base_offset == cut
    assert len(full) == cut
    everything = [message.body for message in halves + later]
    assert full == rows_in(everything[: cut // 25])
    assert data(increments) == everything[cut // 25 :]


def test_full_data_of_several_tables_arrives_with_little_credit(broker: RunningBroker) -> None:
    tables = [ITEMS, other_table(2), other_table(3)]
    halves = [half(n, rows=20, payload="x" * 3000, table=tables[n % 3]) for n in range(1, 13)]
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        commit(sender, halves)
    with subscriber(broker, credit_bytes=1000) as reader:
        opened = reader.open(FULL, 0)
        assert len(opened.snapshot.splits) >= 3
        full: Rows = {}
        for body in reader.chunks():
            full |= rows_in_chunk(body)
    assert full == rows_in([message.body for message in halves])


def test_splits_read_in_parallel_are_the_full_data(broker: RunningBroker) -> None:
    halves = fill(broker.address, 1, 40, rows=500)
    eventually(lambda: is_materialised(broker, 20_000))
    with SnapshotClient(broker.address) as snapshots, ThreadPoolExecutor(4) as pool:
        snapshot = snapshots.open(BUSINESS, splits=4, holder="test")

        def read(split: broker_pb2.Split) -> Rows:
            found: Rows = {}
            for body in snapshots.read_split(snapshot.snapshot_id, split, chunk_bytes=20_000):
                part = rows_in_chunk(body)
                assert not found.keys() & part.keys()
                found |= part
            return found

        parts = list(pool.map(read, snapshot.splits))
        assert sum(map(len, parts)) == 20_000
        merged: Rows = {}
        for part in parts:
            merged |= part
        assert merged == rows_in([message.body for message in halves])
        assert snapshots.renew(snapshot.snapshot_id).offset == snapshot.offset
        snapshots.close(snapshot.snapshot_id)
        with pytest.raises(SnapshotExpired):
            snapshots.renew(snapshot.snapshot_id)


def test_a_split_that_arrives_with_other_rows_is_refused(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker.address, 1, 2, rows=500)
    eventually(lambda: is_materialised(broker, 1_000))

    class OtherTotals(RowTotals):
        def add(self, rows: StoredRows) -> None:
            super().add(stored_rows([(99, *row[1:]) for row in plain_rows(rows)]))

    monkeypatch.setattr(reading, "RowTotals", OtherTotals)
    with SnapshotClient(broker.address) as snapshots:
        snapshot = snapshots.open(BUSINESS)
        with pytest.raises(ProtocolError, match="a split of 1000 rows arrived with 1000, or with different ones"):
            list(snapshots.read_split(snapshot.snapshot_id, snapshot.splits[0]))


def test_a_damaged_chunk_is_requested_again(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = fill(broker.address, 1, 2, rows=500)
    eventually(lambda: is_materialised(broker, 1_000))
    flips = iter([1])

    class DamagedChunk(SealedChunk):
        @classmethod
        def of(cls, body: bytes) -> SealedChunk:
            middle = len(body) // 2
            flipped = bytes([body[middle] ^ next(flips, 0)])
            return SealedChunk(digest=SealedChunk.of(body).digest, body=body[:middle] + flipped + body[middle + 1 :])

    monkeypatch.setattr(reading, "SealedChunk", DamagedChunk)
    with SnapshotClient(broker.address) as snapshots:
        snapshot = snapshots.open(BUSINESS)
        found: Rows = {}
        for chunk in snapshots.read_split(snapshot.snapshot_id, snapshot.splits[0]):
            found |= rows_in_chunk(chunk)
        assert snapshots.digest_mismatches == 1
    assert found == rows_in([message.body for message in halves])


def test_a_split_continues_after_its_connection_was_cut(broker: RunningBroker) -> None:
    halves = fill(broker.address, 1, 40, rows=500)
    eventually(lambda: is_materialised(broker, 20_000))
    with Proxy(broker.address) as proxy, SnapshotClient(proxy.address) as snapshots:
        snapshot = snapshots.open(BUSINESS, splits=1)
        found: Rows = {}
        rows = 0
        for number, body in enumerate(
            body
            for split in snapshot.splits
            for body in snapshots.read_split(snapshot.snapshot_id, split, chunk_bytes=20_000)
        ):
            if number in (3, 11):
                proxy.cut()
            part = rows_in_chunk(body)
            rows += len(part)
            found |= part
        assert snapshots.resumes >= 1
    assert rows == 20_000
    assert found == rows_in([message.body for message in halves])
