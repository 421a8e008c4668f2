"""Random calls of the Replica service, which no broker would make: the broker survives them, the cluster continues."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from tests.fault.service.test_fuzz import GROWTH_BYTES_MAX, extreme, mutate, seal, send
from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, RssWatch, commit
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.replicas import connections
from venus.coordination.etcd import EtcdCoordinator
from venus.rpc.channel import open_channel
from venus.wire import replica_pb2

pytestmark = [pytest.mark.fault, pytest.mark.integration]

METHODS = list(replica_pb2.DESCRIPTOR.services_by_name["Replica"].methods)


def frames(chance: random.Random, method: Any, greeting: replica_pb2.Greeting) -> list[bytes]:
    """Return the frames of one call; most calls begin with a valid greeting, so that the broker reads the rest."""
    found = []
    for n in range(chance.choice((1, 2, 5)) if method.client_streaming else 1):
        message: Any = extreme(chance, method.input_type)
        message.ClearField("greeting")
        if n == 0 and chance.random() < 0.8:
            message.greeting.CopyFrom(greeting)
        for fetch in getattr(message, "fetches", ()):
            fetch.business = chance.choice((BUSINESS, fetch.business))
        content = message.SerializeToString()
        if chance.random() < 0.3:
            content = mutate(chance, content)
        found.append(seal(content) if chance.random() < 0.9 else content)
    return found


def greeting_of(cluster: BrokerCluster, sender: str, receiver: str) -> replica_pb2.Greeting:
    """Return the greeting by which one broker opens a connection to another."""
    with contextlib.closing(EtcdCoordinator(cluster.etcd.addresses, cluster.name, timeout_s=60.0)) as coordinator:
        members = {live.member.broker: live.member for live in coordinator.brokers()}
        return replica_pb2.Greeting(
            cluster=coordinator.identity(create=False) or "",
            sender=connections.encode_member(members[sender]),
            receiver=connections.encode_member(members[receiver]),
        )


def send_random_calls(folder: Path, etcd: EtcdCluster, calls: int, seed: int) -> None:
    """Send this many random calls of each method to the leader and to a follower; all brokers then take a batch."""
    with BrokerCluster(folder, etcd) as cluster:
        leader, producer, _ = cluster.connect_producer()
        with producer:
            commit(producer, [half(1, rows=3)])
        eventually(lambda: cluster.in_sync() == set("abc"))
        follower = next(name for name in "abc" if name != leader)
        for sender, receiver in ((follower, leader), (leader, follower)):
            greeting = greeting_of(cluster, sender, receiver)
            broker = cluster.brokers[receiver]
            with open_channel(broker.address) as channel, RssWatch(broker) as watch:
                before = watch.peak_bytes
                for method in METHODS:
                    chance = random.Random(f"{method.name} {seed} {receiver == leader}")
                    for _ in range(calls):
                        send(channel, method, frames(chance, method, greeting))
                assert watch.peak_bytes - before < GROWTH_BYTES_MAX
        assert all(broker.is_alive for broker in cluster.brokers.values())
        _, producer, ack = cluster.connect_producer()
        with producer:
            assert ack.last_batch == 1
            assert commit(producer, [half(2, rows=3)]).next_offset == 6
        eventually(lambda: cluster.in_sync() == set("abc"))
        assert cluster.record().term < 1000, "a stranger's number was believed"


@pytest.mark.timeout(600)
def test_brokers_survive_random_calls(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    send_random_calls(tmp_path, etcd_server, 60, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_brokers_survive_ten_thousand_random_calls(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    send_random_calls(tmp_path, etcd_server, 10_000 // (2 * len(METHODS)), seed=2)
