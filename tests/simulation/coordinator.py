"""A coordinator in memory: compare-and-swap and leases. Calls to it and its answers may be late or lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simulation.loop import Loop
from venus.replication.records import Leadership, LiveBroker, Member

LEASE_S = 3.0


class SimulatedCoordinator:
    """The coordinator; `record` is the business's record, and `watchers` are notified of changes."""

    record: Leadership

    def __init__(self, loop: Loop) -> None:
        self.away = False
        self.watchers: list[Callable[[], None]] = []
        #: Callback with the replaced record, and the time of the list of living brokers that its writer used.
        self.stored: Callable[[Leadership, float], None] = lambda _before, _knew: None
        self._loop = loop
        self._leases: dict[str, tuple[LiveBroker, float]] = {}
        self._since: dict[str, float] = {}

    def lives_since(self, member: Member) -> float:
        """Return the start of a member's uninterrupted lease; infinity if it has none."""
        return self._since[member.broker] if self.lease_of(member) > self._loop.now else float("inf")

    def lease_of(self, member: Member) -> float:
        """Return the end of a member's lease."""
        broker, until = self._leases.get(member.broker, (None, float("-inf")))
        return until if broker is not None and broker.member == member else float("-inf")

    def register(self, broker: LiveBroker) -> bool:
        """Give a broker a lease; False if another store of it still has one."""
        other = self._leases.get(broker.member.broker)
        if other is not None and other[0].member != broker.member and other[1] > self._loop.now:
            return False
        new = other is None or other[1] <= self._loop.now
        self._leases[broker.member.broker] = broker, self._loop.now + LEASE_S
        if new or other is None or other[0].member != broker.member:
            self._since[broker.member.broker] = self._loop.now
        if new:
            self._loop.after(LEASE_S, self._expire, broker.member.broker)
            self._notify()
        return True

    def refresh(self, member: Member) -> bool:
        """Renew a lease; False if it has ended."""
        broker, until = self._leases.get(member.broker, (None, 0.0))
        if broker is None or broker.member != member or until <= self._loop.now:
            return False
        self._leases[member.broker] = broker, self._loop.now + LEASE_S
        return True

    def leave(self, member: Member) -> bool:
        """End a broker's lease."""
        broker, _ = self._leases.get(member.broker, (None, 0.0))
        if broker is not None and broker.member == member:
            del self._leases[member.broker]
            self._notify()
        return True

    def brokers(self) -> dict[Member, LiveBroker]:
        return {broker.member: broker for broker, until in self._leases.values() if until > self._loop.now}

    def read(self) -> Leadership:
        return self.record

    def swap(self, before: Leadership, after: Leadership, knew: float = float("-inf")) -> Leadership | None:
        """Replace the record if `before` is current; return the stored record, or None."""
        if before.version != self.record.version:
            return None
        old, self.record = self.record, replace(after, version=self.record.version + 1)
        if self._loop.traces:
            self._loop.say(f"coordinator {describe(self.record)}")
        self.stored(old, knew)
        self._notify()
        return self.record

    def _expire(self, broker: str) -> None:
        """Notify the watchers once a lease has ended."""
        found = self._leases.get(broker)
        if found is None:
            return
        if found[1] <= self._loop.now:
            self._notify()
        else:
            self._loop.at(found[1], self._expire, broker)

    def _notify(self) -> None:
        for watcher in self.watchers:
            watcher()


def describe(record: Any) -> str:
    """Return a record as one line that is the same in each run."""
    inside, last = (",".join(map(str, sorted(members))) for members in (record.in_sync, record.last_in_sync))
    unclean = f" unclean {record.unclean_terms}" if record.unclean_terms else ""
    return f"v{record.version} term {record.term} leader {record.leader} in sync {inside} last {last}{unclean}"
