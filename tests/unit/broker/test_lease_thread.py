"""A broker's lease: a broker with an empty disk waits until the lease of its lost disk ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.engines.memory_coordinator import MemoryCluster, MemoryCoordinator
from tests.support.waiting import eventually
from venus.broker.replicas.coordinator_thread import CoordinatorThread, LeaseThread
from venus.errors import Fenced, Refused, Unavailable
from venus.replication.messages import NO_LEASE, SwapResult
from venus.replication.records import Leadership, LiveBroker, Member

LEASE_S = 0.3


def broker(store: str) -> LiveBroker:
    return LiveBroker(member=Member(broker="a", store=store), address="a:1")


@contextmanager
def lease(cluster: MemoryCluster) -> Iterator[LeaseThread]:
    found = LeaseThread(
        MemoryCoordinator(cluster, lease_s=LEASE_S),
        lease_s=LEASE_S,
        monotonic=time.monotonic,
        on_lease=lambda _: None,
        on_failure=lambda _: None,
    )
    try:
        yield found
    finally:
        found.stop()


def test_a_broker_whose_disk_was_lost_waits_for_its_old_lease_to_end() -> None:
    cluster = MemoryCluster(clock=time.monotonic)
    MemoryCoordinator(cluster, lease_s=LEASE_S).register(broker("lost"))
    with lease(cluster) as found:
        found.start(broker("empty"))
        eventually(lambda: MemoryCoordinator(cluster, lease_s=LEASE_S).brokers() == (broker("empty"),), "its own lease")


def test_a_broker_is_refused_whose_id_another_one_still_uses() -> None:
    cluster = MemoryCluster(clock=lambda: 0.0)  # its lease is refreshed at any moment
    MemoryCoordinator(cluster, lease_s=LEASE_S).register(broker("other"))
    with lease(cluster) as found, pytest.raises(Refused, match="another broker with the id a is alive"):
        found.start(broker("newcomer"))


@pytest.mark.parametrize("says", [False, True], ids=["refreshed", "registered"])
def test_a_lease_that_ended_while_the_machine_was_suspended_counts_as_ended(says: bool) -> None:
    """The machine's own clock stood still, by which the old lease would hold for some more seconds."""
    slept_s, leases = 0.0, list[float]()
    cluster = MemoryCluster(clock=lambda: slept_s)  # while it stands, no pause of this test ends a lease
    thread = LeaseThread(
        MemoryCoordinator(cluster, lease_s=LEASE_S),
        lease_s=LEASE_S,
        monotonic=time.monotonic,
        on_lease=leases.append,
        on_failure=lambda _: None,
    )
    thread.start(broker("s"))
    try:
        eventually(lambda: len(leases) > 3)
        known = len(leases)
        slept_s = 3600.0
        if says:
            thread.publish(
                LiveBroker(member=Member(broker="a", store="s"), address="a:1", unhealthy="its disk is slow")
            )
        eventually(lambda: any(until == NO_LEASE for until in leases[known:]))
        eventually(lambda: leases[-1] > time.monotonic())
        assert leases[known:].count(NO_LEASE) in (1, 2)
        assert leases[:known].count(NO_LEASE) <= 1
    finally:
        thread.stop()


class SilentCoordinator(MemoryCoordinator):
    """A coordinator that can refuse registrations."""

    silent = False

    def register(self, broker: LiveBroker) -> None:
        if self.silent:
            raise Unavailable("no answer")
        super().register(broker)


def test_an_ended_lease_does_not_count_until_there_is_another() -> None:
    slept_s, leases = 0.0, list[float]()
    coordinator = SilentCoordinator(MemoryCluster(clock=lambda: slept_s), lease_s=LEASE_S)
    thread = LeaseThread(
        coordinator, lease_s=LEASE_S, monotonic=time.monotonic, on_lease=leases.append, on_failure=lambda _: None
    )
    thread.start(broker("s"))
    try:
        eventually(lambda: len(leases) > 3)
        coordinator.silent, slept_s = True, 3600.0
        eventually(lambda: leases[-1] == NO_LEASE)
        time.sleep(LEASE_S)
        assert leases[-1] == NO_LEASE
        coordinator.silent = False
        eventually(lambda: leases[-1] > time.monotonic())
    finally:
        thread.stop()


class RecordingHost:
    """A host that records the terms of the records that it gets."""

    def __init__(self) -> None:
        self.terms: list[int] = []
        self.heard = 0

    def on_topology(self, leaderships: tuple[Leadership, ...], _: tuple[LiveBroker, ...]) -> None:
        self.heard += 1
        self.terms += [found.term for found in leaderships]

    def on_lease(self, until: float) -> None: ...

    def on_swap_result(self, event: SwapResult) -> None: ...

    def on_forgotten_term(self, business: str, term: int) -> None: ...


def test_a_process_replaced_by_a_copy_ends_before_it_sees_a_term_of_the_copy() -> None:
    """Both would lead in that term, as one member with two logs."""
    cluster, ended, leases = MemoryCluster(clock=time.monotonic), list[BaseException](), RecordingHost()
    thread = CoordinatorThread(
        MemoryCoordinator(cluster, lease_s=LEASE_S),
        lease_s=LEASE_S,
        monotonic=time.monotonic,
        post=lambda call: call(),
        on_fatal=ended.append,
    )
    thread.start(leases, broker("s"))
    try:
        eventually(lambda: leases.heard)
        copy = MemoryCoordinator(cluster, lease_s=100.0)
        copy.register(broker("s"))
        me = broker("s").member
        copy.create(Leadership(business="main", term=7, leader=me, in_sync=frozenset({me}), replicas=("a",)))
        eventually(lambda: ended)
        assert isinstance(ended[0], Fenced)
        eventually(lambda: len(ended) > 3)
        assert leases.terms == []
        assert copy.refresh()
    finally:
        thread.stop()
