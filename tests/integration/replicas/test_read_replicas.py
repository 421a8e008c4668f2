"""Targets read increments from replicas: the leader works less but gets all positions; nothing is lost or doubled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer, bodies
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, business_status, take
from tests.support.waiting import eventually
from venus.config import BrokerSettings, Settings
from venus.config.cluster import ClusterSettings
from venus.errors import OffsetDiverged, VenusError
from venus.rpc.address import BrokerAddress, broker_address
from venus.rpc.nearest_subscriber import NearestSubscriber, open_subscriber
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration
ROWS = 10_000
BATCHES = 100
READERS = 6
IDLE_S = 3.0


@pytest.fixture
def cluster(tmp_path: Path, etcd_server: EtcdCluster) -> Iterator[BrokerCluster]:
    """Three brokers at three sites."""
    with BrokerCluster(tmp_path, etcd_server, "") as made:
        for name in "abc":
            made.configure(site=f"site {name}")
            made.start(name)
        yield made


def address(cluster: BrokerCluster, near: str | None) -> BrokerAddress:
    """Return the address of a target's configuration with `read_from` and its site; None = it reads from the leader."""
    broker = BrokerSettings(
        addresses=tuple(broker.address for broker in cluster.brokers.values()),
        read_from="leader" if near is None else "nearest",
    )
    return broker_address(Settings(broker=broker, cluster=ClusterSettings(site=near or "")))


def read_until_it_ends(subscriber: Subscriber) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        subscriber.increments(0.1)


def acknowledged_offset(cluster: BrokerCluster, leader: str, group: str) -> int:
    status = business_status(cluster.brokers[leader].address)
    return next(consumer.acknowledged for consumer in status.consumers if consumer.group == group)


class LeaderCpu:
    """Processor time of the leader beyond its use while no target reads."""

    def __init__(self, cluster: BrokerCluster, leader: str) -> None:
        self._process = psutil.Process(cluster.brokers[leader].process.pid)
        began, at = self._cpu_seconds(), time.monotonic()
        time.sleep(IDLE_S)
        self._idle_share = (self._cpu_seconds() - began) / (time.monotonic() - at)
        self._began, self._at = self._cpu_seconds(), time.monotonic()

    def _cpu_seconds(self) -> float:
        return sum(self._process.cpu_times()[:2])

    def restart(self) -> None:
        """Start the measurement."""
        self._began, self._at = self._cpu_seconds(), time.monotonic()

    def beyond_idle_s(self) -> float:
        """Return the seconds since the last restart."""
        return self._cpu_seconds() - self._began - self._idle_share * (time.monotonic() - self._at)


def read_everything(cluster: BrokerCluster, leader: str, near: str | None, sent: list[bytes], run: int) -> None:
    """Let some groups read all rows and acknowledge them."""
    until = BATCHES * ROWS
    groups = [f"main/{near}{run}.{n}" for n in range(READERS)]
    for group in groups:
        with open_subscriber(address(cluster, near), BUSINESS, group, credit_bytes=8 << 20) as subscriber:
            subscriber.open(0, 0)
            assert [increment.body for increment in take(subscriber, until)] == sent
            subscriber.acknowledge(until)
            if isinstance(subscriber, NearestSubscriber):
                assert subscriber.reads_from != cluster.brokers[leader].address
    eventually(lambda: {acknowledged_offset(cluster, leader, group) for group in groups} == {until}, every_s=0.2)


def test_targets_that_read_replicas_cost_the_leader_nothing_and_acknowledge_there(cluster: BrokerCluster) -> None:
    """Scenario 54: only the groups' own streams remain at the leader, whatever the number of rows."""
    writer = Writer(cluster)
    writer.write(BATCHES, ROWS)
    eventually(lambda: cluster.in_sync() == set("abc"))
    status = partial(business_status, cluster.brokers[writer.leader].address)
    eventually(lambda: status().materialised_offset == BATCHES * ROWS, every_s=0.2)  # CPU time used in any case
    sent = bodies(BATCHES, ROWS)
    cpu, took = LeaderCpu(cluster, writer.leader), dict[str | None, list[float]]({None: [], "": []})
    for run in range(3):  # alternating, because the store still compacts the written rows
        for near, seconds in took.items():
            cpu.restart()
            read_everything(cluster, writer.leader, near, sent, run)
            seconds.append(cpu.beyond_idle_s())
    print(f"the leader's CPU beyond idle: {took[None]} s, at replicas {took['']} s")  # noqa: T201
    assert min(took[""]) < 0.25 * min(took[None])


def test_a_target_reads_at_its_site_and_continues_at_another_when_that_broker_dies(cluster: BrokerCluster) -> None:
    writer = Writer(cluster)
    writer.write(5, 10)
    eventually(lambda: cluster.in_sync() == set("abc"))
    near = next(name for name in "cb" if name != writer.leader)
    with open_subscriber(address(cluster, f"site {near}"), BUSINESS, "main/eu", credit_bytes=8 << 20) as subscriber:
        assert isinstance(subscriber, NearestSubscriber)
        subscriber.open(0, 0)
        assert subscriber.reads_from == cluster.brokers[near].address
        taken = take(subscriber, 50)
        cluster.brokers[near].process.kill()  # its lease, which is longer than this takes, does not end yet

        def reads_elsewhere() -> bool:
            assert isinstance(subscriber, NearestSubscriber)
            taken.extend(subscriber.increments(0.5))
            return subscriber.reads_from != cluster.brokers[near].address

        eventually(reads_elsewhere)
        assert [increment.body for increment in taken] == bodies(5, 10)
        cluster.brokers[near].kill()
        with pytest.raises(VenusError, match="no longer in sync"):  # so that the adapter requests replicas again
            read_until_it_ends(subscriber)
    with open_subscriber(address(cluster, f"site {near}"), BUSINESS, "main/eu", credit_bytes=8 << 20) as subscriber:
        subscriber.open(50, taken[-1].epoch)
        assert isinstance(subscriber, NearestSubscriber)
        assert subscriber.reads_from not in {cluster.brokers[name].address for name in (near, writer.leader)}
        writer.write(5, 10)
        assert [increment.body for increment in take(subscriber, 100)] == bodies(10, 10)[5:]
        with (
            pytest.raises(OffsetDiverged),
            open_subscriber(address(cluster, ""), BUSINESS, "main/other", credit_bytes=1 << 20) as ahead,
        ):
            ahead.open(999, taken[-1].epoch)


def test_without_another_replica_the_leader_sends_the_increments(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server, "a", replicas=1, min_in_sync=1) as cluster:
        writer = Writer(cluster)
        writer.write(2, 10)
        with open_subscriber(address(cluster, ""), BUSINESS, "main/eu", credit_bytes=8 << 20) as subscriber:
            subscriber.open(0, 0)
            assert [increment.body for increment in take(subscriber, 20)] == bodies(2, 10)
