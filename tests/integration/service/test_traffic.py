"""Limits, turns and degradation at a real broker: whoever is held back goes on by himself, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.integration.service.conftest import StartBroker
from tests.support.batches import half
from tests.support.brokers import BUSINESS, BrokerProcess, commit, fill, settings, take, traffic, wait_for
from venus.broker.service.process import RunningBroker
from venus.broker.snapshot import snapshots as broker_snapshots
from venus.broker.snapshot.materialiser import Materialiser
from venus.broker.store.space import Space
from venus.config import Degrade, Limits
from venus.errors import Overloaded
from venus.flow.windows import STEP_BYTES
from venus.model import Verdict
from venus.rpc import connection
from venus.rpc.admin import Admin
from venus.rpc.producer import Producer
from venus.rpc.snapshots import Snapshots
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

MIB = 1 << 20


@contextmanager
def connected(broker: RunningBroker, business: str = BUSINESS, name: str = "test") -> Iterator[Producer]:
    with Producer(broker.address, business, name, window_bytes_max=8 * MIB) as sender:
        sender.connect(0, 0)
        yield sender


def brake(broker: RunningBroker, name: str, business: str = BUSINESS) -> broker_pb2.BrakeStatus | None:
    found = (b for b in traffic(broker.address).brakes if (b.brake, b.business) == (name, business))
    return next(found, None)


def committed(sender: Producer, number: int, **options: Any) -> float:
    """Commit a batch; return how long it took."""
    began = time.monotonic()
    commit(sender, [half(number, **options)])
    return time.monotonic() - began


# -- half messages -------------------------------------------------------------------------------------------------


def test_a_business_over_its_rate_is_slowed_to_it_by_name_and_no_other(start_broker: StartBroker) -> None:
    broker = start_broker(limits=Limits(rows_per_s=200, burst_s=1))
    with connected(broker, name="flood:1") as flood, connected(broker, "other") as other:
        began = time.monotonic()
        for n in range(1, 61):
            committed(flood, n, rows=10)  # each is a frame of its own
        assert committed(other, 1) < 1, "it has a bucket of its own"
        committed(flood, 61, rows=10)
        took = time.monotonic() - began
        assert took >= (610 - 200 - 20) / 200, "200 at once, then 200 a second"
        assert took < 10
        found = brake(broker, "rows")
        assert found is not None
        assert (found.who, found.on) == ("flood:1", True)
        assert found.times >= 1
        assert brake(broker, "rows", "other") is None
    with Admin(broker.address) as admin:
        rows = {b.business: b.next_offset for b in admin.status().businesses}
    assert rows == {BUSINESS: 610, "other": 1}


def test_a_producer_that_does_not_pause_is_refused_and_loses_nothing(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an older version resends what was kept, or sends on at once."""
    taken = Producer._take

    def hasty(self: Producer, frame: broker_pb2.BrokerFrame) -> None:
        if frame.HasField("throttle") and frame.throttle.taken:
            frame.throttle.retry_after_ms = 0
        taken(self, frame)

    monkeypatch.setattr(Producer, "_take", hasty)
    broker = start_broker(limits=Limits(bytes_per_s=200_000, burst_s=0.1))
    with connected(broker) as sender:
        for n in range(1, 51):
            sender.send_half(half(n, payload="x" * 4000))
        assert commit(sender, [half(51)]).next_offset == 51
        assert sender.throttles >= 2


def test_decisions_go_on_while_half_messages_pause(start_broker: StartBroker) -> None:
    broker = start_broker(limits=Limits(bytes_per_s=100_000, burst_s=0.01))
    with connected(broker) as sender:
        first = half(1, payload="x" * 300_000)
        sender.send_half(first)
        sender.wait_persisted(1)
        wait_for(lambda: sender.throttles == 1)
        sender.send_half(half(2))
        began = time.monotonic()
        sender.decide(1, first.digest, Verdict.COMMIT)
        assert sender.wait_decided(1).next_offset == 1
        assert time.monotonic() - began < 1, "it has to pause for 3 s"
        sender.wait_persisted(2)
        assert time.monotonic() - began > 1.5


def test_full_data_that_is_behind_slows_its_producer_and_nobodys_decisions(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, step = threading.Event(), Materialiser.step

    def slow(self: Materialiser, *arguments: Any, **options: Any) -> bool:
        return go.is_set() and step(self, *arguments, **options)

    monkeypatch.setattr(Materialiser, "step", slow)
    broker = start_broker(buffer_bytes_max=200_000)
    with connected(broker) as flood, connected(broker, "other") as other:
        for n in range(1, 6):
            committed(flood, n, payload="x" * 50_000)
        before = flood.throttles
        flood.send_half(half(6))
        wait_for(lambda: flood.throttles > before)
        took = [committed(other, n) for n in range(1, 4)]
        assert min(took) < 1, f"each of them was held for 2 s: {took}"
        found = brake(broker, "full data behind")
        assert found is not None
        assert found.on
        go.set()
        commit(flood, [half(7)])


# -- consumers -----------------------------------------------------------------------------------------------------


def window(broker: RunningBroker, group: str) -> broker_pb2.ConsumerStatus:
    with Admin(broker.address) as admin:
        (found,) = (c for b in admin.status().businesses for c in b.consumers if c.group == group)
    return found


def test_a_consumer_that_takes_nothing_gets_a_smaller_window_by_name_and_then_a_larger_one(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(limits=Limits(slow_consumer_s=0.3))
    with connected(broker) as sender:
        for n in range(1, 41):
            sender.send_half(half(n, payload="x" * 100_000))
        commit(sender, [half(41)])
    with (
        Subscriber(broker.address, BUSINESS, "stopped", credit_bytes=MIB) as stopped,
        Subscriber(broker.address, BUSINESS, "quick", credit_bytes=MIB) as quick,
    ):
        stopped.open(0, 0)
        quick.open(0, 0)
        assert len(take(quick, 41)) == 41

        def stopped_is_slow() -> bool:
            quick.increments(0.05)  # whoever does not ask for more gives nothing back
            return window(broker, "stopped").window_bytes == STEP_BYTES

        wait_for(stopped_is_slow)
        slow = window(broker, "stopped")
        assert slow.slow_since_us > 0
        assert (window(broker, "quick").window_bytes, window(broker, "quick").slow_since_us) == (MIB, 0)
        found = brake(broker, "slow consumer")
        assert found is not None
        assert found.who == "stopped"
        assert len(take(stopped, 41)) == 41, "nothing is lost, nothing stands still"
        wait_for(lambda: window(broker, "stopped").slow_since_us == 0)
        assert window(broker, "stopped").window_bytes > STEP_BYTES


def test_one_that_polls_without_ever_waiting_is_not_taken_for_slow(start_broker: StartBroker) -> None:
    broker = start_broker(limits=Limits(slow_consumer_s=1.5))
    with connected(broker) as sender, Subscriber(broker.address, BUSINESS, "g", credit_bytes=16 * MIB) as reader:
        committed(sender, 1)
        reader.open(0, 0)
        end, n, got = time.monotonic() + 5, 1, 0
        while time.monotonic() < end:
            n += 1
            committed(sender, n)
            got += len(reader.increments(0.001))
            time.sleep(0.05)
        assert window(broker, "g").window_bytes == 16 * MIB
        assert got > 0


# -- slots and full data -------------------------------------------------------------------------------------------


def test_a_stream_too_many_waits_and_comes_in_by_itself(start_broker: StartBroker) -> None:
    broker = start_broker(limits=Limits(streams=1))
    entered = threading.Event()

    def enter() -> None:
        with connected(broker, "other"):
            entered.set()

    with connected(broker):
        late = threading.Thread(target=enter)
        late.start()
        wait_for(lambda: brake(broker, "streams", "other") is not None)
        assert not entered.is_set()
    late.join(30)
    assert entered.is_set()


def test_a_stream_too_many_is_refused_in_one_line_after_a_while(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "OVERLOADED_S", 0.5)
    broker = start_broker(limits=Limits(streams=1))
    too_many = pytest.raises(Overloaded, match="1 producers and consumers are connected")
    with connected(broker), too_many as refused, connected(broker, "other"):
        pass
    assert refused.value.retry_after_s > 0
    assert "[broker.limits] streams" in refused.value.hint


def test_a_snapshot_too_many_waits_for_a_slot(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_snapshots, "SHARED_S", 0.0)
    broker = start_broker(limits=Limits(snapshots=1))
    fill(broker.address, 1, 3)
    with Snapshots(broker.address) as first, Snapshots(broker.address) as second:
        held = first.open(BUSINESS, holder="first")
        opened: list[broker_pb2.Snapshot] = []
        late = threading.Thread(target=lambda: opened.append(second.open(BUSINESS, holder="second")))
        late.start()
        wait_for(lambda: brake(broker, "snapshots") is not None)
        assert not opened
        first.close(held.snapshot_id)
        late.join(30)
        assert opened


def test_full_data_leaves_at_its_rate_and_in_its_turn(start_broker: StartBroker) -> None:
    broker = start_broker(limits=Limits(full_data_bytes_per_s=400_000, loads=1))
    with connected(broker) as sender:
        commit(sender, [half(n, payload="x" * 50_000) for n in range(1, 17)])
    with Snapshots(broker.address) as snapshots:
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
            reader.join(60)
        assert sum(counts) == 16
        assert time.monotonic() - began >= (16 * 50_000 - 100_000) / 400_000
        assert brake(broker, "full data") is not None
        assert brake(broker, "loads") is not None


# -- degradation ---------------------------------------------------------------------------------------------------


def degraded(broker: RunningBroker) -> list[int]:
    return sorted(lane.lane for lane in traffic(broker.address).lanes if lane.degraded_since_us)


def get(broker: RunningBroker, path: str) -> str:
    with urlopen(f"http://{broker.http_address}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def metrics(broker: RunningBroker) -> str:
    return get(broker, "/metrics")


def test_lane_after_lane_is_given_up_and_comes_back_and_nothing_is_lost(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"bytes": 1 << 40}
    monkeypatch.setattr(Space, "free", lambda self: free["bytes"])
    broker = start_broker(
        free_bytes_min=MIB, degrade=Degrade(cpu_percent=0, memory_percent=0, lag_ms=0, sustain_s=2, restore_s=1)
    )
    monkeypatch.setattr(connection, "OVERLOADED_S", 0.5)
    with connected(broker) as sender, Snapshots(broker.address) as snapshots:
        committed(sender, 1)
        assert degraded(broker) == []
        assert "venus_table_changes" in metrics(broker)
        free["bytes"] = MIB + MIB // 2  # writes are refused below 1 MiB, space is short below 2
        wait_for(lambda: degraded(broker) == [4])
        assert "venus_table_changes" not in metrics(broker), "details go first"
        with Admin(broker.address) as admin:
            (alarm,) = admin.status().alarms
        assert alarm.startswith("lane 4 (details) is degraded since 20")
        assert alarm.endswith(": disk is at 67 % of what is needed, the limit is 50 % of what is needed")
        wait_for(lambda: degraded(broker) == [3, 4])
        with pytest.raises(Overloaded, match="no new snapshot"):
            snapshots.open(BUSINESS, holder="load")
        wait_for(lambda: degraded(broker) == [1, 2, 3, 4])
        assert 'venus_lane_degraded{lane="halves"} 1.0' in metrics(broker)
        assert get(broker, "/health").startswith("degraded\nlane 4")
        committed(sender, 2)
        assert sender.throttles >= 1
        with Subscriber(broker.address, BUSINESS, "g", credit_bytes=MIB) as reader:
            reader.open(0, 0)
            assert len(take(reader, 2)) == 2
        free["bytes"] = 1 << 40
        wait_for(lambda: degraded(broker) == [], 60)
        assert "venus_table_changes" in metrics(broker)
        with Admin(broker.address) as admin:
            assert list(admin.status().alarms) == []
        committed(sender, 3)


def test_a_broker_that_was_killed_says_so_for_half_an_hour_and_one_that_was_stopped_does_not(tmp_path: Path) -> None:
    def facts(started: BrokerProcess) -> list[str]:
        return [fact.fact for fact in traffic(started.address).facts if fact.fact == "crash"]

    with BrokerProcess(settings(tmp_path / "data")) as first:
        assert first.stop() == 0
    with BrokerProcess(settings(tmp_path / "data")) as second:
        wait_for(lambda: [gauge for gauge in traffic(second.address).gauges if gauge.name == "streams"])
        time.sleep(2)
        assert facts(second) == []
        second.kill()
    with BrokerProcess(settings(tmp_path / "data")) as third:
        wait_for(lambda: facts(third) == ["crash"])
        (fact,) = (fact for fact in traffic(third.address).facts if fact.fact == "crash")
        assert fact.reason == "the broker's process ended without a stop"
        assert fact.since_us <= fact.seen_us
