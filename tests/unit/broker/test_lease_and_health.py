"""The lease continues while other calls to the coordinator hang; states that make a broker unhealthy as a leader."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engines.memory_coordinator import MemoryCluster, MemoryCoordinator
from tests.support.waiting import eventually
from venus.broker.replicas.broker_load import NEARLY_FULL, SLOW_SYNC_S, BrokerHealth, find_trouble
from venus.broker.replicas.coordinator_thread import REFRESH_PART, CoordinatorThread
from venus.broker.store.files import FreeSpace
from venus.broker.store.rocks import Store, SyncTimes
from venus.flow.degradation import Degradation, DegradedLane, HealthMonitor, HealthRule, Lane
from venus.replication.messages import SwapResult
from venus.replication.records import Leadership, LiveBroker, Member

LEASE_S = 1.5
ME = LiveBroker(member=Member(broker="a", store="s"), address="a:1")
RECORD = Leadership(business="main", term=1, leader=ME.member, in_sync=frozenset({ME.member}))
MIB = 1 << 20


class StuckCoordinator(MemoryCoordinator):
    """A coordinator whose swaps block until the test releases them."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster, lease_s=LEASE_S)
        self.may_answer = threading.Event()

    def swap(self, before: Leadership, after: Leadership) -> Leadership | None:
        self.may_answer.wait(60)
        return super().swap(before, after)


class Host:
    """Records the events that the host would receive."""

    def __init__(self) -> None:
        self.until: list[float] = []

    def on_topology(self, leaderships: object, brokers: object) -> None: ...

    def on_lease(self, until: float) -> None:
        self.until.append(until)

    def on_swap_result(self, event: SwapResult) -> None: ...

    def on_forgotten_term(self, business: str, term: int) -> None: ...


def test_a_swap_that_is_not_answered_does_not_cost_the_lease() -> None:
    now = 0.0
    coordinator, host = StuckCoordinator(MemoryCluster(lambda: now)), Host()
    stored = coordinator.create(RECORD)
    assert stored is not None
    thread = CoordinatorThread(coordinator, lease_s=LEASE_S, monotonic=lambda: now, post=lambda call: call())
    thread.start(host, ME)
    try:
        thread.swap(stored, stored)
        for _ in range(9):  # three leases
            now += LEASE_S * REFRESH_PART
            eventually(lambda: host.until[-1] >= now + LEASE_S, "the lease to be refreshed")  # noqa: B023
            assert [broker.member for broker in coordinator.brokers()] == [ME.member]
        thread.publish(LiveBroker(member=ME.member, address="a:1", unhealthy="its disk is slow"))
        eventually(lambda: coordinator.brokers()[0].unhealthy == "its disk is slow")
    finally:
        coordinator.may_answer.set()
        thread.stop()


@pytest.mark.parametrize(
    ("free", "slow", "running_s", "wrong"),
    [
        (NEARLY_FULL * 512 * MIB, 1, 0.0, ""),
        (NEARLY_FULL * 512 * MIB - 1, 0, 0.0, "its disk has less than 1024 MiB free"),
        (1 << 40, 2, 0.0, "2 fsyncs took 1 s or more in 30 s"),
        (1 << 40, 0, SLOW_SYNC_S, "an fsync does not end"),
    ],
)
def test_states_that_make_a_broker_unhealthy(free: int, slow: int, running_s: float, wrong: str) -> None:
    syncs, now = SyncTimes(), 100.0
    for _ in range(slow):
        syncs.begin(now - 10)
        syncs.end(now - 10 + SLOW_SYNC_S)
    for _ in range(5):  # too long ago
        syncs.begin(now - 40)
        syncs.end(now - 35)
    if running_s:
        syncs.begin(now - running_s)
    assert find_trouble(free, 512 * MIB, syncs, now) == wrong


def test_a_problem_that_has_ended_counts_for_a_while(tmp_path: Path) -> None:
    now, free = 0.0, 10 * MIB
    store = Store(tmp_path / "db")
    try:
        health = BrokerHealth(store, FreeSpace(tmp_path, 10 * MIB, lambda _: free), lambda: now)
        assert "less than 20 MiB free" in health()
        free = 1 << 40
        now = 29.0
        assert health() != ""
        now = 31.0
        assert health() == ""

        health.facts = HealthMonitor((HealthRule(fact="crash", limit=1, text="it ended"),), keep_s=1800)
        health.facts.evaluate({"crash": 1}, 0.0)
        health.lanes = Degradation((), restore_s=30)
        assert health() == "sub-healthy in the last half hour: crash"
        health.lanes.degraded.append(DegradedLane(lane=Lane.DETAILS, since=0.0, reason="CPU is at 97 %"))
        assert health() == "lane 4 (details) is degraded", "no figures: each change is published"
        assert replace(ME, unhealthy=health()).is_degraded
        assert not health.trouble, "facts and lanes raise no alarm here"
    finally:
        store.close()
