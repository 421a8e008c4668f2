"""Placement of replicas: which brokers get a replica of a business, and the known brokers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from venus.network.scheduling import BrokerLoadReport, Scheduler
from venus.replication.records import Leadership, LiveBroker, Member, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlacement:
    """Replication settings of `[cluster]`, and the records that follow from them. `now` is a monotonic time."""

    replicas: int = 3
    policy: Policy = Policy.CONSISTENCY
    min_in_sync: int = 2
    #: Reported loads of the brokers, and what was placed since.
    scheduler: Scheduler = field(default_factory=Scheduler, compare=False)

    def new_record(
        self, business: str, me: Member, live: Collection[LiveBroker], term: int, now: float = 0.0
    ) -> Leadership:
        """Return the record of a new business, led by `me`."""
        names = [me.broker, *self._choose_others(business, live, (me.broker,), self.replicas - 1, now)]
        return Leadership(
            business=business,
            term=term,
            leader=me,
            in_sync=frozenset({me}),
            replicas=tuple(names),
            policy=self.policy,
            min_in_sync=self.min_in_sync,
        )

    def joining_record(self, business: str, me: Member, term: int) -> Leadership:
        """Return the record of a business that one broker had alone; its minimum rises once more brokers are in sync.

        One copy was enough before the cluster, so writes do not wait for other brokers.
        """
        first = self.new_record(business, me, (), term)
        if first.min_in_sync == 1:
            return first
        return replace(first, min_in_sync=1, min_in_sync_wanted=first.min_in_sync)

    def next_record(self, known: Leadership, live: Collection[LiveBroker], now: float = 0.0) -> Leadership | None:
        """Return the leader's next change of the replicas; None = nothing to change."""
        return (
            raise_minimum(known)
            or remove_leaving(known, live)
            or self.replace_draining(known, live, now)
            or self.add_missing(known, live, now)
        )

    def replace_draining(self, known: Leadership, live: Collection[LiveBroker], now: float = 0.0) -> Leadership | None:
        """Return the record with an additional replica in place of one on a draining broker; None = none is needed."""
        draining = [one.member.broker for one in live if one.draining and one.member.broker in staying_replicas(known)]
        spare = self._choose_others(known.business, live, known.replicas, 1, now) if draining else []
        if not spare:
            return None
        return replace(known, replicas=(*known.replicas, spare[0]), leaving=(*known.leaving, draining[0]))

    def add_missing(self, known: Leadership, live: Collection[LiveBroker], now: float = 0.0) -> Leadership | None:
        """Return the record with the missing replicas; None = none is missing, or no broker is available."""
        missing = (known.replicas_wanted or self.replicas) - len(staying_replicas(known))
        if missing <= 0:
            return None
        more = self._choose_others(known.business, live, known.replicas, missing, now)
        return replace(known, replicas=(*known.replicas, *more)) if more else None

    def _choose_others(
        self, business: str, live: Collection[LiveBroker], known: Iterable[str], count: int, now: float
    ) -> list[str]:
        """Return up to `count` living brokers without a replica: the owners by rank, unless their load is high."""
        self._take_reports(live, now)
        taken = frozenset(known)
        left = {broker.member.broker for broker in live if not broker.draining} - taken
        chosen: list[str] = []
        while left and len(chosen) < count:
            chosen.append(self.scheduler.choose(business, left, now))
            left.remove(chosen[-1])
        return chosen

    def _take_reports(self, live: Collection[LiveBroker], now: float) -> None:
        self.scheduler.keep_only({broker.member.broker for broker in live})
        for broker in live:
            if broker.load is not None:
                self.scheduler.record_report(
                    broker.member.broker,
                    BrokerLoadReport(load=broker.load, businesses=broker.businesses, number=broker.report, at=now),
                )


def staying_replicas(known: Leadership) -> tuple[str, ...]:
    """Return the brokers whose replicas are not leaving."""
    return tuple(name for name in known.replicas if name not in known.leaving)


def raise_minimum(known: Leadership) -> Leadership | None:
    """Return the record with the postponed minimum once enough replicas are in sync; None = no change."""
    if known.min_in_sync_wanted <= known.min_in_sync or len(known.in_sync) < known.min_in_sync_wanted:
        return None
    return replace(known, min_in_sync=known.min_in_sync_wanted, min_in_sync_wanted=0)


def remove_leaving(known: Leadership, live: Iterable[LiveBroker]) -> Leadership | None:
    """Return the record without the leaving replicas; None = there are none, or the others are not in sync."""
    stay = staying_replicas(known)
    living = {broker.member for broker in live}
    ready = {member.broker for member in known.in_sync & living}
    if not known.leaving or not ready.issuperset(stay) or len(stay) < known.min_in_sync:
        return None
    return replace(known, replicas=stay, leaving=())


def clear_successor(known: Leadership) -> Leadership:
    """Return the record without the request for another leader."""
    return replace(known, successor="")


def can_be_removed(known: Leadership, me: Member) -> bool:
    """Whether this broker's replica can be removed: it was taken away, and enough others are complete."""
    if me.broker in known.replicas or known.leader in (None, me):
        return False
    return me not in known.in_sync | known.last_in_sync and len(known.in_sync) >= known.min_in_sync


class KnownBrokers:
    """Known brokers. `live` have a lease; the addresses of others are kept, because they may return at any moment."""

    def __init__(self) -> None:
        self.live: dict[Member, LiveBroker] = {}
        self._known: dict[Member, LiveBroker] = {}

    def update(self, brokers: Iterable[LiveBroker]) -> None:
        """Update the living brokers."""
        self.live = {broker.member: broker for broker in brokers}
        self._known.update(self.live)

    def leader_order(self, member: Member) -> tuple[object, ...]:
        """Return the sort key of a living broker, the best leader first."""
        broker = self.live[member]
        return broker.draining, bool(broker.unhealthy), broker.priority, member

    def find(self, member: Member | None) -> LiveBroker | None:
        """Return a broker that is or was alive."""
        return self._known.get(member) if member is not None else None

    def address_of(self, member: Member | None) -> str:
        """Return the address of a broker; empty = unknown."""
        found = self.find(member)
        return found.address if found is not None else ""
