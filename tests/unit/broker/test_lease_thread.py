"""A broker's lease: whoever comes back with an empty disk waits for the one of the disk that was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from venus.broker.replicas.lease_thread import LeaseThread
from venus.coordination.memory import MemoryCluster, MemoryCoordinator
from venus.errors import Refused
from venus.replication.records import LiveBroker, Member

LEASE_S = 0.3


def broker(store: str) -> LiveBroker:
    return LiveBroker(member=Member(broker="a", store=store), address="a:1")


@contextmanager
def lease(cluster: MemoryCluster) -> Iterator[LeaseThread]:
    found = LeaseThread(
        MemoryCoordinator(cluster, lease_s=LEASE_S),
        lease_s=LEASE_S, monotonic=time.monotonic, leased=lambda _: None, failed=lambda _: None,
    )  # fmt: skip
    try:
        yield found
    finally:
        found.stop()


def test_a_broker_whose_disk_was_lost_waits_for_its_old_lease_to_end() -> None:
    cluster = MemoryCluster(clock=time.monotonic)
    MemoryCoordinator(cluster, lease_s=LEASE_S).register(broker("lost"))
    with lease(cluster) as found:
        found.start(broker("empty"))
        assert MemoryCoordinator(cluster, lease_s=LEASE_S).brokers() == (broker("empty"),)


def test_a_broker_is_refused_whose_id_another_one_goes_on_using() -> None:
    cluster, stop = MemoryCluster(clock=time.monotonic), threading.Event()
    other = MemoryCoordinator(cluster, lease_s=10 * LEASE_S)
    other.register(broker("other"))
    thread = threading.Thread(target=lambda: [other.refresh() for _ in iter(lambda: stop.wait(0.05), True)])
    thread.start()
    try:
        with lease(cluster) as found, pytest.raises(Refused, match="another broker with the id a is alive"):
            found.start(broker("newcomer"))
    finally:
        stop.set()
        thread.join()
