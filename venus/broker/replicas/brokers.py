"""Which brokers there are, as the coordinator said last."""

from __future__ import annotations

from collections.abc import Iterable

from venus.replication.records import LiveBroker, Member


class Brokers:
    """`live` have a lease; the address of one that is gone is remembered, because it may be back any moment."""

    def __init__(self) -> None:
        self.live: dict[Member, LiveBroker] = {}
        self._known: dict[Member, LiveBroker] = {}

    def seen(self, brokers: Iterable[LiveBroker]) -> None:
        """Take up who lives."""
        self.live = {broker.member: broker for broker in brokers}
        self._known.update(self.live)

    def order(self, member: Member) -> tuple[object, ...]:
        """Return what to sort living brokers by, the best leader first."""
        broker = self.live[member]
        return broker.draining, bool(broker.unhealthy), broker.priority, member

    def known(self, member: Member | None) -> LiveBroker | None:
        """Return a broker that lives, or did."""
        return self._known.get(member) if member is not None else None

    def address(self, member: Member | None) -> str:
        """Return where a broker is; empty = not known."""
        found = self.known(member)
        return found.address if found is not None else ""
