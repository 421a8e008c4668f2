"""An etcd of three members loses one, its leader, its majority: writers continue, or stop and continue, as documented.

While brokers live, nothing that is acknowledged passes through etcd, so writers do not notice that it has no majority.
Only a change of the leader or of the in-sync set needs it (docs/explanation/replication.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.brokers import broker_clusters
from tests.support.brokers.broker_clusters import BrokerCluster, SteadyWriter, Writer, bodies
from tests.support.brokers.etcd import EtcdCluster, EtcdNode, running_etcd
from tests.support.waiting import eventually
from venus.coordination.etcd import EtcdCoordinator

pytestmark = [pytest.mark.fault, pytest.mark.integration, pytest.mark.timeout(300)]

ROWS = 5
#: Of the brokers' leases: a broker that waits for the machine for less keeps its own.
LEASE_S = 6.0
#: Of a write, while only etcd is in trouble; a change of the leader would take longer than its lease.
PAUSE_MAX_S = LEASE_S
#: How long a member of etcd is away: longer than a broker's lease lasts.
AWAY_S = 2 * LEASE_S
#: Longer than another broker needs to lead where etcd answers.
STOPS_S = 2 * LEASE_S


@pytest.fixture(scope="module")
def members() -> Iterator[EtcdCluster]:
    with running_etcd(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path, members: EtcdCluster) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path, members, lease_s=LEASE_S) as made:
        yield made
    for node in members.nodes:
        if node.is_alive:
            node.resume()
        else:
            node.start()
    members.wait()


def wait_until_written(steady: SteadyWriter, writes: int) -> None:
    """Wait for this many further writes."""
    wanted = len(steady.took_s) + writes
    eventually(lambda: steady.failure is not None or len(steady.took_s) >= wanted)


def write_past_leases(steady: SteadyWriter, cluster: BrokerCluster, left: list[str]) -> None:
    """Write for longer than the leases last; check that all brokers and their leases are still registered."""
    end = time.monotonic() + AWAY_S
    while time.monotonic() < end:
        wait_until_written(steady, 5)
    with closing(EtcdCoordinator(left, cluster.name, timeout_s=60.0)) as coordinator:
        assert {found.member.broker for found in coordinator.brokers()} == set("abc")


def follower(etcd: EtcdCluster) -> EtcdNode:
    leads = etcd.leader()
    return next(node for node in etcd.nodes if node is not leads)


def compare(cluster: BrokerCluster, writer: Writer) -> None:
    """Check that every broker has each acknowledged batch once and in order."""
    eventually(lambda: cluster.in_sync() == set("abc"))
    found = cluster.contents(writer.acknowledged * ROWS)
    assert [found[name] for name in "abc"] == [bodies(writer.acknowledged, ROWS)] * 3


def test_writers_do_not_notice_that_etcd_loses_members(cluster: BrokerCluster, members: EtcdCluster) -> None:
    writer = Writer(cluster)
    writer.write(3, ROWS)
    eventually(lambda: cluster.in_sync() == set("abc"))
    before = cluster.record()
    with SteadyWriter(writer, ROWS) as steady:
        wait_until_written(steady, 20)
        for victim in (follower(members), members.leader()):
            victim.kill()
            write_past_leases(steady, cluster, [node.address for node in members.nodes if node is not victim])
            victim.start()
            members.wait()
        paused = members.leader()  # the paused member keeps its connections, and sends nothing on them
        paused.pause()
        write_past_leases(steady, cluster, [node.address for node in members.nodes if node is not paused])
        paused.resume()
        members.wait()
        wait_until_written(steady, 20)
    assert writer.errors == []
    assert max(steady.took_s) < PAUSE_MAX_S
    after = cluster.record()
    assert (after.leader, after.term) == (before.leader, before.term), "no other broker had to lead"
    compare(cluster, writer)


def test_without_a_majority_of_etcd_no_other_broker_leads_until_it_is_back(
    cluster: BrokerCluster, members: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(cluster)
    writer.write(3, ROWS)
    eventually(lambda: cluster.in_sync() == set("abc"))
    first, term = writer.leader, cluster.record().term
    lost = [members.leader(), follower(members)]
    with SteadyWriter(writer, ROWS) as steady:
        for node in lost:
            node.kill()
        time.sleep(AWAY_S)  # longer than the leases, which no broker can renew
        wait_until_written(steady, 5)
    assert writer.errors == []
    acknowledged = writer.acknowledged
    cluster.brokers[first].kill()
    with monkeypatch.context() as patched:
        patched.setattr(broker_clusters, "FAIL_OVER_S", STOPS_S)
        with pytest.raises(AssertionError, match="no broker lets a producer in"):
            cluster.connect_producer(acknowledged)
    for node in lost:
        node.start()
    members.wait()
    writer.reconnect()
    assert writer.leader != first
    assert cluster.record().term > term
    writer.write(20, ROWS)
    cluster.start(first)
    compare(cluster, writer)
