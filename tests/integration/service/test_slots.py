"""Streams, snapshots and full data wait for a free slot at a real broker."""

from __future__ import annotations

import threading
import time

import pytest

from tests.integration.service.conftest import StartBroker, find_limiter, open_producer
from tests.support.brokers.servers import BUSINESS, commit, fill
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.snapshot import snapshots as broker_snapshots
from venus.config import LimitsSettings
from venus.errors import Overloaded
from venus.rpc import connection
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration


def test_a_stream_above_the_limit_waits_and_is_admitted_by_itself(start_broker: StartBroker) -> None:
    broker = start_broker(limits=LimitsSettings(streams=1))
    entered = threading.Event()

    def open_stream() -> None:
        with open_producer(broker, "other"):
            entered.set()

    with open_producer(broker):
        late = threading.Thread(target=open_stream)
        late.start()
        eventually(lambda: find_limiter(broker, "streams", "other") is not None)
        assert not entered.is_set()
    assert entered.wait(60)
    late.join(60)


def test_a_stream_above_the_limit_is_refused_in_one_line_after_a_while(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "OVERLOADED_S", 0.5)
    broker = start_broker(limits=LimitsSettings(streams=1))
    too_many = pytest.raises(Overloaded, match="1 producers and consumers are connected")
    with open_producer(broker), too_many as refused, open_producer(broker, "other"):
        pass
    assert refused.value.retry_after_s > 0
    assert "[broker.limits] streams" in refused.value.hint


def test_a_snapshot_above_the_limit_waits_for_a_slot(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_snapshots, "SHARED_S", 0.0)
    broker = start_broker(limits=LimitsSettings(snapshots=1))
    fill(broker.address, 1, 3)
    with SnapshotClient(broker.address) as first, SnapshotClient(broker.address) as second:
        held = first.open(BUSINESS, holder="first")
        opened: list[broker_pb2.Snapshot] = []
        late = threading.Thread(target=lambda: opened.append(second.open(BUSINESS, holder="second")))
        late.start()
        eventually(lambda: find_limiter(broker, "snapshots") is not None)
        assert not opened
        first.close(held.snapshot_id)
        late.join(120)
        assert opened


def test_full_data_is_sent_at_its_rate_and_in_turn(start_broker: StartBroker) -> None:
    broker = start_broker(limits=LimitsSettings(full_data_bytes_per_s=400_000, loads=1))
    with open_producer(broker) as sender:
        commit(sender, [half(n, payload="x" * 50_000) for n in range(1, 17)])
    with SnapshotClient(broker.address) as snapshots:
        snapshot = snapshots.open(BUSINESS, splits=4)
        counts: list[int] = []

        def read(split: broker_pb2.Split) -> None:
            chunks = snapshots.read_split(snapshot.snapshot_id, split, chunk_bytes=1 << 16)
            counts.append(sum(len(chunk.rows) for chunk in chunks))

        began = time.monotonic()
        readers = [threading.Thread(target=read, args=(split,)) for split in snapshot.splits]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(120)
        assert sum(counts) == 16
        assert time.monotonic() - began >= (16 * 50_000 - 100_000) / 400_000
        assert find_limiter(broker, "full data") is not None
        assert find_limiter(broker, "loads") is not None
