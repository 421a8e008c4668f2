"""Consumers over a real socket: increments from any offset, credit, filters, and the full interface."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from tests.integration.service.conftest import StartBroker
from tests.support.batches import ITEMS, half, other_table
from tests.support.brokers import BUSINESS, business_status, commit, data, fill, take, wait_for
from tests.support.proxy import Proxy
from tests.support.stored import plain_rows, stored_rows
from venus.broker.pipeline.subscriptions import Subscriptions
from venus.broker.queue.reader import ReadResult
from venus.broker.service.consumer_stream import ConsumerStream
from venus.broker.service.process import RunningBroker
from venus.broker.snapshot import chunks
from venus.codec.chunk import Chunk, Sealed, Totals
from venus.codec.packed import Packed
from venus.codec.stored import StoredRows
from venus.errors import DigestMismatch, OffsetDiverged, ProtocolError, SnapshotExpired, Unavailable, VenusError
from venus.model import FULL
from venus.rpc import subscriber as subscribers
from venus.rpc.admin import Admin
from venus.rpc.channel import open_channel
from venus.rpc.credit import cost
from venus.rpc.producer import Producer
from venus.rpc.sealed import subscribe
from venus.rpc.snapshots import Snapshots
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2, change_pb2

pytestmark = pytest.mark.integration

Rows = dict[tuple[int, bytes], bytes]


def subscriber(broker: RunningBroker, **options: Any) -> Subscriber:
    return Subscriber(broker.address, BUSINESS, "g", **{"credit_bytes": 1 << 20, **options})


def rows_of(tables: Any) -> Rows:
    return {
        (table.table_id, record_id): row
        for table in tables
        for record_id, row in zip(
            Packed.from_wire(table.record_ids, table.record_id_sizes).split(),
            Packed.from_wire(table.rows, table.row_sizes).split(),
            strict=True,
        )
    }


def rows_in_chunk(chunk: Chunk) -> Rows:
    return {(chunk.table_id, record_id): row for _, _, record_id, row in plain_rows(chunk.rows)}


def rows_in(bodies: list[bytes]) -> Rows:
    found: Rows = {}
    for body in bodies:
        found |= rows_of(change_pb2.BatchBody.FromString(body).tables)
    return found


def materialised(broker: RunningBroker, offset: int) -> bool:
    return business_status(broker.address).materialised_offset >= offset


@pytest.mark.parametrize("stop_after", [1, 7, 19])
def test_a_subscriber_that_comes_back_continues_exactly(broker: RunningBroker, stop_after: int) -> None:
    halves = fill(broker.address, 1, 20, rows=5)
    taken: list[broker_pb2.Increment] = []
    with subscriber(broker, credit_bytes=600) as reader:
        reader.open(0, 0)
        while len(taken) < stop_after:
            taken += reader.increments(5.0)
    last = taken[-1]
    with subscriber(broker) as reader:
        opened = reader.open(last.base_offset + last.count, last.epoch)
        assert opened.next_offset == 100
        taken += take(reader, 100)
    assert data(taken) == [message.body for message in halves]


def test_a_commit_wakes_subscribers_of_its_business_only(broker: RunningBroker) -> None:
    fill(broker.address, 1, 1, business="other")
    with subscriber(broker) as reader, Subscriber(broker.address, "other", "g", credit_bytes=1 << 20) as other:
        fill(broker.address, 1, 1)
        reader.open(0, 0)
        other.open(1, 0)
        take(reader, 1)
        fill(broker.address, 2, 3)
        assert len(take(reader, 3)) == 2
        assert other.increments(0.1) == []


class RawConsumer:
    """A consumer's stream that gives credit only when told to."""

    def __init__(self, address: str, **fields: Any) -> None:
        self._channel = open_channel(address)
        self._frames: SimpleQueue[broker_pb2.ConsumerFrame | None] = SimpleQueue()
        opening = broker_pb2.Open(**{"business": BUSINESS, "group": "raw", **fields})
        self._frames.put(broker_pb2.ConsumerFrame(open=opening))
        self.received: list[broker_pb2.Increment] = []
        call = subscribe(self._channel, iter(self._frames.get, None))
        self._thread = threading.Thread(target=self._read, args=(call,), daemon=True)
        self._thread.start()

    def _read(self, call: Any) -> None:
        for frame in call:
            self.received.extend(frame.increments)

    def grant(self, nbytes: int) -> None:
        self.send(broker_pb2.ConsumerFrame(credit_bytes=nbytes))

    def send(self, frame: broker_pb2.ConsumerFrame) -> None:
        self._frames.put(frame)

    def __enter__(self) -> RawConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.put(None)
        self._thread.join(10)
        self._channel.close()


def test_the_broker_never_sends_more_than_the_credit(broker: RunningBroker) -> None:
    halves = fill(broker.address, 1, 30)
    each = cost(broker_pb2.Increment(body=halves[0].body))
    with RawConsumer(broker.address, credit_bytes=3 * each + 10) as raw:
        wait_for(lambda: len(raw.received) == 3)
        threading.Event().wait(0.3)
        assert len(raw.received) == 3
        raw.grant(2 * each)
        wait_for(lambda: len(raw.received) == 5)
        threading.Event().wait(0.3)
        assert len(raw.received) == 5
    assert data(raw.received) == [message.body for message in halves[:5]]


def test_an_increment_larger_than_all_credit_still_arrives(broker: RunningBroker) -> None:
    halves = [half(1), half(2, payload="x" * 100_000), half(3)]
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        commit(sender, halves)
    with subscriber(broker, credit_bytes=1000) as reader:
        reader.open(0, 0)
        assert data(take(reader, 3)) == [message.body for message in halves]


def test_a_body_that_is_not_the_producers_is_never_handed_out(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker.address, 1, 3)
    read = Subscriptions.read

    def damaged(*arguments: Any) -> ReadResult:
        result = read(*arguments)
        for increment in result.increments:
            increment.body = increment.body[:-1] + b"?"
        return result

    monkeypatch.setattr(Subscriptions, "read", damaged)
    with subscriber(broker) as reader:
        reader.open(0, 0)
        with pytest.raises(DigestMismatch):
            reader.increments(30.0)
        assert reader.digest_mismatches == 1


def test_tables_that_are_not_wanted_are_passed_over_with_progress(broker: RunningBroker) -> None:
    halves = [half(n, table=ITEMS if n % 10 == 0 else other_table(2)) for n in range(1, 36)]
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        commit(sender, halves)
    with subscriber(broker) as reader:
        reader.open(0, 0, table_ids=[ITEMS.table_id])
        taken = take(reader, 35)
        assert reader.position == 35
    wanted = [t for i in taken for t in change_pb2.BatchBody.FromString(i.body).tables if t.table_id == ITEMS.table_id]
    assert len(wanted) == 3


def test_acknowledgements_and_connections_show_in_the_status(broker: RunningBroker) -> None:
    fill(broker.address, 1, 10)
    with subscriber(broker) as reader:
        reader.open(0, 0)
        take(reader, 10)
        reader.acknowledge(4)

        def entry() -> broker_pb2.ConsumerStatus:
            return business_status(broker.address).consumers[0]

        wait_for(lambda: entry().acknowledged == 4)
        assert entry().connected
        assert entry().backlog_rows == 6
    wait_for(lambda: not entry().connected)
    with Admin(broker.address) as admin:
        admin.forget(BUSINESS, "g")
    assert not business_status(broker.address).consumers


def test_a_diverged_consumer_is_told_and_never_served(broker: RunningBroker) -> None:
    fill(broker.address, 1, 3)
    with subscriber(broker) as reader, pytest.raises(OffsetDiverged):
        reader.open(1000, 1)


@pytest.mark.parametrize("fields", [{}, {"acknowledge": 3}, {"open": broker_pb2.Open(business=BUSINESS)}])
def test_a_stream_must_start_with_open(broker: RunningBroker, fields: dict[str, Any]) -> None:
    from grpc import RpcError

    from venus.rpc.errors import from_rpc_error

    channel = open_channel(broker.address)
    with pytest.raises(RpcError) as caught:
        list(subscribe(channel, [broker_pb2.ConsumerFrame(**fields)]))
    assert isinstance(from_rpc_error(caught.value), ProtocolError)
    channel.close()


def test_full_data_and_then_increments_are_everything_once(broker: RunningBroker) -> None:
    halves = fill(broker.address, 1, 40, rows=25)
    wait_for(lambda: materialised(broker, 1000))
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


def test_splits_read_side_by_side_are_the_full_data(broker: RunningBroker) -> None:
    halves = fill(broker.address, 1, 40, rows=500)
    wait_for(lambda: materialised(broker, 20_000))
    with Snapshots(broker.address) as snapshots, ThreadPoolExecutor(4) as pool:
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
    wait_for(lambda: materialised(broker, 1_000))

    class Other(Totals):
        def add(self, rows: StoredRows) -> None:
            super().add(stored_rows([(99, *row[1:]) for row in plain_rows(rows)]))

    monkeypatch.setattr(chunks, "Totals", Other)
    with Snapshots(broker.address) as snapshots:
        snapshot = snapshots.open(BUSINESS)
        with pytest.raises(ProtocolError, match="a split of 1000 rows arrived with 1000, or with other ones"):
            list(snapshots.read_split(snapshot.snapshot_id, snapshot.splits[0]))


def test_a_chunk_that_arrives_damaged_is_asked_for_again(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = fill(broker.address, 1, 2, rows=500)
    wait_for(lambda: materialised(broker, 1_000))
    flips = iter([1])

    class Damaging(Sealed):
        @classmethod
        def of(cls, body: bytes) -> Sealed:
            middle = len(body) // 2
            flipped = bytes([body[middle] ^ next(flips, 0)])
            return Sealed(digest=Sealed.of(body).digest, body=body[:middle] + flipped + body[middle + 1 :])

    monkeypatch.setattr(chunks, "Sealed", Damaging)
    with Snapshots(broker.address) as snapshots:
        snapshot = snapshots.open(BUSINESS)
        found: Rows = {}
        for chunk in snapshots.read_split(snapshot.snapshot_id, snapshot.splits[0]):
            found |= rows_in_chunk(chunk)
        assert snapshots.digest_mismatches == 1
    assert found == rows_in([message.body for message in halves])


def test_a_split_goes_on_after_its_connection_was_cut(broker: RunningBroker) -> None:
    halves = fill(broker.address, 1, 40, rows=500)
    wait_for(lambda: materialised(broker, 20_000))
    with Proxy(broker.address) as proxy, Snapshots(proxy.address) as snapshots:
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


def test_close_leaves_no_thread_and_a_closed_subscriber_says_so(broker: RunningBroker) -> None:
    def ours() -> set[str]:
        return {t.name for t in threading.enumerate() if t.name.startswith(("venus-subscriber", "Thread-"))}

    fill(broker.address, 1, 1)
    before = ours()
    for _ in range(3):
        reader = subscriber(broker)
        reader.open(0, 0)
        reader.close()
        with pytest.raises(VenusError):
            reader.increments(1.0)
    wait_for(lambda: ours() <= before)


def test_a_stopped_broker_is_said_by_every_call(start_broker: StartBroker) -> None:
    broker = start_broker()
    fill(broker.address, 1, 1)
    with subscriber(broker) as reader:
        reader.open(1, 0)
        broker.stop()
        for _ in range(2):
            with pytest.raises(Unavailable):
                reader.increments(30.0)
        with pytest.raises(Unavailable):
            reader.acknowledge(1)


def consumer_status(broker: RunningBroker) -> broker_pb2.ConsumerStatus:
    return next(c for c in business_status(broker.address).consumers if c.group == "g")


def test_the_end_of_an_older_stream_leaves_the_newer_one_connected(broker: RunningBroker) -> None:
    fill(broker.address, 1, 10)
    with subscriber(broker) as newer:
        with subscriber(broker) as older:
            older.open(0, 0)
            newer.open(0, 0)
            older.acknowledge(9)
            take(older, 10)
        newer.acknowledge(6, kept=4)
        wait_for(lambda: consumer_status(broker).acknowledged == 6)
        time.sleep(0.3)  # the older stream's detachment comes behind its end
        found = consumer_status(broker)
        assert (found.acknowledged, found.kept, found.connected) == (6, 4, True)
    wait_for(lambda: not consumer_status(broker).connected)


def test_a_consumer_that_goes_while_it_is_attached_is_detached(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker.address, 1, 3)
    entered, attach = threading.Event(), Subscriptions.attach

    def slow(self: Subscriptions, *args: Any, **options: Any) -> int:
        entered.set()
        time.sleep(2.0)
        return attach(self, *args, **options)

    monkeypatch.setattr(Subscriptions, "attach", slow)
    monkeypatch.setattr("venus.rpc.duplex.CLOSE_TIMEOUT_S", 0.1)  # the call is cancelled, not ended
    with subscriber(broker) as reader, pytest.raises(Unavailable):
        reader.open(0, 0, timeout_s=0.2)
    assert entered.is_set()
    wait_for(lambda: any(c.group == "g" for c in business_status(broker.address).consumers))
    wait_for(lambda: not consumer_status(broker).connected)


def test_an_older_consumer_knows_one_position_and_keeps_what_it_keeps(broker: RunningBroker) -> None:
    """It says the smaller of both as applied, and opens its stream at what it has applied."""
    fill(broker.address, 1, 10)
    with RawConsumer(broker.address, group="g", credit_bytes=1 << 20) as raw:
        raw.send(broker_pb2.ConsumerFrame(acknowledge=4))
        wait_for(lambda: consumer_status(broker).acknowledged == 4)
        assert consumer_status(broker).kept == 4
    with subscriber(broker) as reader:
        opened = reader.open(8, 0)
        assert opened.kept == 4
        assert (consumer_status(broker).acknowledged, consumer_status(broker).kept) == (8, 4)
        reader.acknowledge(8)
        wait_for(lambda: consumer_status(broker).kept == 8)


def test_acknowledgements_are_put_together_and_the_last_one_arrives(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []
    take_frame = ConsumerStream._take

    def kept(self: ConsumerStream, frame: broker_pb2.ConsumerFrame) -> None:
        if frame.acknowledge:
            heard.append(frame.acknowledge)
        take_frame(self, frame)

    monkeypatch.setattr(ConsumerStream, "_take", kept)
    monkeypatch.setattr(subscribers, "ACKNOWLEDGE_EVERY_S", 0.5)
    fill(broker.address, 1, 200)
    with subscriber(broker) as reader:
        reader.open(0, 0)
        reader.acknowledge(1)
        wait_for(lambda: heard == [1])  # the first one does not wait
        for offset in range(2, 100):
            reader.acknowledge(offset)
            time.sleep(0.001)
        wait_for(lambda: heard and heard[-1] == 99)
        assert len(heard) <= 4  # far fewer than 99, even where the machine is slow
        reader.acknowledge(200)
    wait_for(lambda: heard[-1] == 200)  # closing sends what waits


def test_what_a_consumer_reports_does_not_wait_for_its_acknowledgement(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribers, "ACKNOWLEDGE_EVERY_S", 60.0)
    fill(broker.address, 1, 20)
    with subscriber(broker) as reader:
        reader.open(0, 0)
        reader.acknowledge(5)
        reader.acknowledge(10)
        reader.acknowledge(20, unaccounted=3)
        wait_for(lambda: business_status(broker.address).consumers[0].acknowledged == 20)
