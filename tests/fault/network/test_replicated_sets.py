"""Sets of three brokers: the leader of each business pulls, and after a failover the new leader continues."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fault.coordination.conftest import etcd, three_nodes
from tests.support.brokers import networks
from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, business_status, commit, fill, take
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.errors import Refused, VenusError
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

__all__ = ["etcd", "three_nodes"]
pytestmark = [pytest.mark.fault, pytest.mark.timeout(500)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[RunningBroker]:
    broker = networks.start(tmp_path / "home")
    yield broker
    broker.stop()


def leader_of(cluster: BrokerCluster) -> str:
    """Return the broker that pulls."""
    for name, broker in cluster.brokers.items():
        mirror = networks.mirror_of(broker.address) if broker.is_alive else None
        if mirror is not None and mirror.state == "following":
            return name
    return ""


def find_settled_broker(cluster: BrokerCluster) -> str:
    """Return the broker that pulls, once all others agree on it; until then another one may be elected."""
    found = {name: networks.mirror_of(broker.address) for name, broker in cluster.brokers.items()}
    states = {name: mirror.state for name, mirror in found.items() if mirror is not None}
    pulling = [name for name, state in states.items() if state == "following"]
    return pulling[0] if sorted(states.values()) == ["elsewhere", "elsewhere", "following"] else ""


def read_all_increments(address: str, first: int, until: int) -> list[broker_pb2.Increment]:
    with Subscriber(address, BUSINESS, "look", credit_bytes=8 << 20, transient=True) as subscriber:
        subscriber.open(first, 0)
        return take(subscriber, until)


def test_another_broker_of_the_set_continues_pulling(tmp_path: Path, home: RunningBroker, etcd: EtcdCluster) -> None:
    fill(home.address, 1, 5, rows=10)
    with BrokerCluster(tmp_path, etcd, tier="access", level=1, set="eu", upstream=(home.address,)) as cluster:
        first = eventually(lambda: find_settled_broker(cluster))
        networks.has(cluster.brokers[first].address, 50)
        with (
            pytest.raises(Refused, match="takes no changes from producers"),
            Producer(cluster.brokers[first].address, BUSINESS, "x", window_bytes_max=1 << 20) as producer,
        ):
            producer.connect(0, 0)
        with Producer(home.address, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
            producer.connect(0, 5)
            commit(producer, [half(n, rows=10) for n in range(6, 11)])
            cluster.brokers[first].kill()
            commit(producer, [half(n, rows=10) for n in range(11, 21)])
        second = eventually(lambda: leader_of(cluster))
        networks.has(cluster.brokers[second].address, 200)
        cluster.start(first)
        wanted = read_all_increments(home.address, 50, 200)
        for broker in cluster.brokers.values():
            eventually(partial(has_all_increments, broker.address, 200))
            assert read_all_increments(broker.address, 50, 200) == wanted
        assert second != first
        assert [c.group for c in business_status(home.address).consumers] == ["mirror/eu"]
        with AdminClient(cluster.brokers[second].address) as admin:
            assert list(admin.status().network.path) == ["home", "eu"]


def has_all_increments(address: str, offset: int) -> bool:
    try:
        return business_status(address).next_offset >= offset
    except (StopIteration, VenusError):
        return False
