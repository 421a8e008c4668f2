"""A target that reads from the new leader after an election returns to a replica once there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS
from tests.support.waiting import eventually
from venus.errors import NotLeader
from venus.rpc.address import BrokerAddress
from venus.rpc.nearest_subscriber import NearestSubscriber

pytestmark = pytest.mark.integration


def read_from(reach: str) -> str:
    """Return where a target reads from until its stream ends because of another replica."""
    with NearestSubscriber(BrokerAddress(reach), BUSINESS, "main/eu", near="", credit_bytes=1 << 20) as subscriber:
        subscriber.open(0, 0)
        first = subscriber.reads_from
        with pytest.raises(NotLeader, match="another replica can be read"):
            eventually(lambda: subscriber.increments(0.5) is None, timeout_s=60)
    return first


def test_after_an_election_a_target_returns_to_a_replica(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server, lease_s=4.0, min_in_sync=1) as cluster:
        writer = Writer(cluster)
        writer.write(5, 10)
        eventually(lambda: cluster.in_sync() == set("abc"))
        killed = writer.leader
        last, other = (name for name in "abc" if name != killed)
        cluster.brokers[other].kill()
        eventually(lambda: cluster.in_sync() == {killed, last}, every_s=0.2)
        cluster.brokers[killed].kill()
        leader = cluster.brokers[last].address
        eventually(lambda: (found := cluster.record().leader) is not None and found.broker == last, every_s=0.2)
        cluster.start(other)
        assert read_from(leader) == leader
        with NearestSubscriber(BrokerAddress(leader), BUSINESS, "main/eu", near="", credit_bytes=1 << 20) as subscriber:
            subscriber.open(0, 0)
            assert subscriber.reads_from == cluster.brokers[other].address
