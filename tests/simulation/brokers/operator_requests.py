"""Operators change replicas and leaders while faults happen, by the requests that their commands write to the record.

These histories are separate, so that each seed of the others still yields the same history.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tests.simulation.brokers.world import BrokerWorld
from venus.coordination import operator_changes
from venus.errors import VenusError
from venus.replication.records import Leadership

LOOK_S = 0.1


def request_change(world: Any) -> None:
    """Write an operator's request to move the leadership or a replica, to add or to remove a replica."""
    record, random = world.coordinator.record, world.loop.random
    living = list(world.coordinator.brokers().values())
    broker, other = random.choice(list(world.hosts)), random.choice(list(world.hosts))
    make = random.choice(
        (
            lambda: operator_changes.request_leader(record, broker, living),
            lambda: operator_changes.move_replica(record, broker, other, living),
            lambda: operator_changes.add_replica(record, broker, living, len(record.replicas)),
            lambda: operator_changes.remove_replica(record, broker, living, fewer=True),
        )
    )
    with suppress(VenusError):  # the operator's command would be refused in the same way
        after = make()
        if after != record:
            world.loop.counts["operator request"] += 1
            world.loop.say(f"an operator requests: leader {after.successor or '-'}, leaving {after.leaving or '-'}")
            world.coordinator.swap(record, after)


class OperatedWorld(BrokerWorld):
    """Whole brokers with operators' requests."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._before: Leadership = self.coordinator.record
        self.loop.at(LOOK_S, self._count_outcomes)
        self.loop.at(1.0, self._operate)

    def _operate(self) -> None:
        """Write an operator's request from time to time, until all faults end."""
        if self.loop.now < self.cruel_until:
            request_change(self)
        self.loop.after(2.0 * self.loop.random.random(), self._operate)

    def _count_outcomes(self) -> None:
        """Count the outcomes of requests."""
        before, after, counts = self._before, self.coordinator.record, self.loop.counts
        led_by = after.leader.broker if after.leader is not None else ""
        if before.successor and not after.successor:
            counts["led by the requested broker" if led_by == before.successor else "a leader was not to be had"] += 1
        if before.leaving and not after.leaving and not set(before.leaving) & set(after.replicas):
            counts["a replica has left"] += 1
        if len(after.replicas) > len(before.replicas):
            counts["a replica has come"] += 1
        self._before = after
        self.loop.after(LOOK_S, self._count_outcomes)
