"""A target that reads from the new leader after an election returns to a replica once there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS
from tests.support.waiting import eventually
from venus.errors import NotLeader, VenusError
from venus.rpc.address import BrokerAddress
from venus.rpc.nearest_subscriber import NearestSubscriber
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration


def open_stream(leader: str, is_expected: Callable[[broker_pb2.Opened], bool]) -> NearestSubscriber:
    """Open the stream of a target, repeatedly until the leader leads and offers the expected replicas."""
    opened: list[NearestSubscriber] = []

    def is_open() -> bool:
        subscriber = NearestSubscriber(BrokerAddress(leader), BUSINESS, "main/eu", near="", credit_bytes=1 << 20)
        try:
            if is_expected(subscriber.open(0, 0)):
                opened.append(subscriber)
        except VenusError:
            pass
        if not opened:
            subscriber.close()
        return bool(opened)

    eventually(is_open, "a stream with the expected replicas", every_s=0.2)
    return opened[0]


def test_after_an_election_a_target_returns_to_a_replica(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server, min_in_sync=1) as cluster:
        writer = Writer(cluster)
        writer.write(5, 10)
        eventually(lambda: cluster.in_sync() == set("abc"))
        killed = writer.leader
        last, other = (name for name in "abc" if name != killed)
        cluster.brokers[other].kill()
        eventually(lambda: cluster.in_sync() == {killed, last}, every_s=0.2)
        cluster.brokers[killed].kill()
        leader = cluster.brokers[last].address
        # the stream begins before the other broker: a stream that begins later may read there at once
        with open_stream(leader, lambda opened: not opened.replicas) as subscriber:
            assert subscriber.reads_from == leader
            cluster.start(other)
            with pytest.raises(NotLeader, match="another replica can be read"):
                eventually(lambda: subscriber.increments(0.5) is None, "the end of the stream")
        address = cluster.brokers[other].address
        with open_stream(leader, lambda opened: [r.address for r in opened.replicas] == [address]) as subscriber:
            assert subscriber.reads_from == address
