"""The coordinator in memory: the faults that tests can cause, and the coordinator of a single broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engines.memory_coordinator import MemoryCluster, MemoryCoordinator
from venus.errors import Unavailable
from venus.replication.records import Leadership, LiveBroker, Member

A = Member(broker="a", store="sa")
MAIN = Leadership(business="main", term=1, leader=A, in_sync=frozenset({A}))


def test_leases_end_by_the_given_clock() -> None:
    now = 100.0
    cluster = MemoryCluster(lambda: now)
    one, other = MemoryCoordinator(cluster, lease_s=3.0), MemoryCoordinator(cluster, lease_s=3.0)
    one.register(LiveBroker(member=A, address="h:1"))

    now = 102.9
    assert other.brokers() != ()
    assert one.refresh()
    now = 105.9
    assert other.brokers() == ()
    assert not one.refresh()


def test_while_the_coordinator_is_away_no_call_succeeds() -> None:
    coordinator = MemoryCoordinator(MemoryCluster(lambda: 0.0), lease_s=3.0)
    coordinator.away = True

    with pytest.raises(Unavailable):
        coordinator.create(MAIN)
    coordinator.away = False
    assert coordinator.read("main") is None


def test_a_write_whose_answer_is_lost_has_happened() -> None:
    coordinator = MemoryCoordinator(MemoryCluster(lambda: 0.0), lease_s=3.0)
    stored = coordinator.create(MAIN)
    assert stored is not None
    coordinator.loses_answer = True

    with pytest.raises(Unavailable):
        coordinator.swap(stored, replace(stored, term=2))
    assert coordinator.read("main") == replace(MAIN, term=2)
