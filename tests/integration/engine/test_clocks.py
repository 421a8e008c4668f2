"""Which clock a broker uses for which purpose."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, commit, settings
from tests.support.engines import engines
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.replicas import replication
from venus.broker.replicas.host import Host
from venus.broker.service import process
from venus.config import ClusterSettings
from venus.errors import NotLeader, OffsetDiverged, Unavailable
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber

BEHIND_S = 1_000_000.0


def test_a_status_and_its_times_use_the_same_clock(tmp_path: Path) -> None:
    clock = engines.Clock()
    engine = engines.make(tmp_path, clock)
    try:
        clock.wall_ahead_s = -7200.0
        assert engine.status().now_us == clock.clock_us()
    finally:
        engine.stop()


@pytest.mark.parametrize("ahead_s", [-7200.0, 7200.0])
def test_setting_the_clock_neither_raises_nor_hides_the_alarm_of_a_half_message(tmp_path: Path, ahead_s: float) -> None:
    clock = engines.Clock()
    engine = engines.make(tmp_path, clock)

    def alarms() -> list[str]:
        return [alarm for alarm in engines.status(engine).alarms if "undecided" in alarm]

    try:
        producer = engines.Producer(engine)
        producer.send(producer.next_half(engines.rows(0, 1)))
        clock.now_s += 30
        engine.producers.count_delivered_reviews(BUSINESS, [1])
        clock.wall_ahead_s = ahead_s
        assert alarms() == []
        clock.now_s += 31
        assert alarms() == ["half message 1 has been undecided for 61 s (1 of them)"]
        assert [half.waited_ms for half in engines.status(engine).halves] == [61_000]
    finally:
        engine.stop()


def test_the_age_of_a_commit_is_measured_by_a_clock_that_is_never_set(tmp_path: Path) -> None:
    clock = engines.Clock()
    engine = engines.make(tmp_path, clock)
    engines.Producer(engine).commit(engines.rows(0, 1))
    clock.now_s += 5
    clock.wall_ahead_s = 7200.0
    assert engines.status(engine).committed_ago_ms == 5000
    engine.stop()

    engine = engines.make(tmp_path, clock)
    assert not engines.status(engine).HasField("committed_ago_ms"), "it was before the start"
    engine.stop()


def is_connected(producer: Producer) -> bool:
    try:
        producer.connect(0, 0)
    except (NotLeader, Unavailable):
        return False
    return True


def test_leases_use_one_clock_that_also_counts_suspended_time(
    tmp_path: Path, etcd_server: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewal of the lease, acknowledgements under it and divergence reports use the same clock."""
    for module in (process, replication):
        monkeypatch.setattr(module, "steady_clock_s", lambda: time.monotonic() - BEHIND_S)
    until: list[float] = []
    leased = Host.on_lease

    def record_call(self: Host, at: float) -> None:
        until.append(at)
        leased(self, at)

    monkeypatch.setattr(Host, "on_lease", record_call)
    cluster = ClusterSettings(
        name=etcd_server.new_name(),
        broker_id="a",
        etcd=tuple(etcd_server.addresses),
        lease_s=20.0,
        replicas=1,
        policy="availability",
    )
    broker = process.start_in_thread(settings(tmp_path / "a").model_copy(update={"cluster": cluster}))
    try:
        with closing(Producer(broker.address, BUSINESS, "db", window_bytes_max=1 << 20)) as producer:
            eventually(lambda: is_connected(producer))  # it does not lead at once
            commit(producer, [half(1)])
            eventually(lambda: bool(until) and abs(until[-1] - time.monotonic() + BEHIND_S) < 1000.0)
            ahead = Subscriber(broker.address, BUSINESS, f"{BUSINESS}/eu", credit_bytes=1 << 20)
            with closing(ahead), pytest.raises(OffsetDiverged):
                ahead.open(1000, 0)
    finally:
        broker.stop()
