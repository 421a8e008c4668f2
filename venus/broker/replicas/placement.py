"""Which brokers shall have a replica of a business; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import xxhash

from venus.replication.records import Leadership, LiveBroker, Member, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What `[cluster]` wants of every business."""

    replicas: int = 3
    policy: Policy = Policy.CONSISTENCY
    min_in_sync: int = 2

    def first(self, business: str, me: Member, live: Iterable[LiveBroker], term: int) -> Leadership:
        """Return the record of a new business, led by `me`."""
        names = [me.broker, *self._others(business, live, (me.broker,))]
        return Leadership(
            business=business,
            term=term,
            leader=me,
            in_sync=frozenset({me}),
            replicas=tuple(names[: self.replicas]),
            policy=self.policy,
            min_in_sync=self.min_in_sync,
        )

    def grown(self, known: Leadership, live: Iterable[LiveBroker]) -> Leadership | None:
        """Return the record with the replicas that are missing; None = nobody is there, or nobody is missing."""
        missing = self.replicas - len(known.replicas)
        if missing <= 0:
            return None
        more = self._others(known.business, live, known.replicas)[:missing]
        return replace(known, replicas=(*known.replicas, *more)) if more else None

    def _others(self, business: str, live: Iterable[LiveBroker], known: Iterable[str]) -> list[str]:
        """Return living brokers that have none, each business's in an order of its own (rendezvous hashing)."""
        taken = frozenset(known)
        names = {broker.member.broker for broker in live if not broker.draining} - taken
        return sorted(names, key=lambda name: xxhash.xxh3_64_intdigest(f"{business}/{name}".encode()))
