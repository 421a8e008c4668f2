"""Connections between the brokers of a cluster: with TLS they accept only the role broker."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.certificates import Authority
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, business_status, fill
from tests.support.waiting import eventually
from venus.config import ClusterSettings, SecuritySettings, Settings
from venus.errors import ConfigError, Denied, VenusError
from venus.rpc.admin import AdminClient
from venus.rpc.channel import open_channel
from venus.rpc.producer import Producer
from venus.rpc.sealed import ask
from venus.security import certificate_files
from venus.wire import replica_pb2

pytestmark = pytest.mark.integration


def test_brokers_replicate_over_mutual_tls(tmp_path: Path, authority: Authority, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server, authority=authority) as cluster:
        addresses = [cluster.address(name) for name in cluster.brokers]
        eventually(lambda: logs_are_equal(addresses))

        stranger = authority.address(addresses[0], "stranger", "producer(*)", "consumer(*, *)", "operator", "viewer")
        with open_channel(stranger) as channel, pytest.raises(Denied, match="role broker is missing"):
            ask(channel, "Replica/Ballot", replica_pb2.BallotRequest(), replica_pb2.BallotAnswer, timeout_s=60)


def logs_are_equal(addresses: list[str]) -> bool:
    """Connect a producer, whose epoch is an entry of the log; return whether every broker has that entry."""
    for address in addresses:
        with (
            contextlib.suppress(VenusError),
            Producer(address, BUSINESS, "p", window_bytes_max=1000) as producer,
        ):
            producer.connect(0, 0, owner="p", take_over=True, timeout_s=1)
    ends = []
    for address in addresses:
        with AdminClient(address) as admin:
            ends += [found.replication.log_end for found in admin.status().businesses]
    return len(ends) == len(addresses) and len(set(ends)) == 1 and ends[0] > 1


def test_a_cluster_with_tls_needs_a_certificate_authority() -> None:
    cluster = ClusterSettings(name="c", broker_id="a", etcd=("127.0.0.1:2379",))
    security = SecuritySettings(certificate="b.crt", key="b.key", client_auth="token", token_file="tokens")

    with pytest.raises(ConfigError, match="it would trust no other broker"):
        certificate_files.check_listeners(Settings(cluster=cluster, security=security))


def fill_at_the_leader(cluster: BrokerCluster, first: int, last: int) -> str:
    """Commit batches at the broker that accepts a producer; return its name."""
    for _ in range(100):
        for name in [name for name, broker in cluster.brokers.items() if broker.process.poll() is None]:
            with contextlib.suppress(VenusError):
                fill(cluster.address(name), first, last, rows=50)
                return name
    raise AssertionError("no broker lets a producer in")


def own_status(cluster: BrokerCluster, name: str) -> tuple[int, int]:
    """Return the next and the first offset of a broker; (0, 0) while it has no data."""
    with contextlib.suppress(StopIteration, VenusError):
        found = business_status(cluster.address(name))
        return found.next_offset, found.log_start
    return 0, 0


def test_a_copy_is_installed_over_mutual_tls(tmp_path: Path, authority: Authority, etcd_server: EtcdCluster) -> None:
    keeps_nothing = {"retain_bytes": 0}
    with BrokerCluster(
        tmp_path, etcd_server, authority=authority, broker=keeps_nothing, follower_backlog_bytes=0
    ) as cluster:
        leader = fill_at_the_leader(cluster, 1, 2)
        lost = next(name for name in cluster.brokers if name != leader)
        cluster.brokers[lost].kill()
        shutil.rmtree(tmp_path / lost)
        leader = fill_at_the_leader(cluster, 3, 10)
        eventually(lambda: own_status(cluster, leader)[1] > 0)
        cluster.start(lost)
        eventually(lambda: own_status(cluster, lost)[0] == 500)
