"""Placement: which brokers get a replica of a business, and which of them leads it first. Pure.

Placement prefers different sites, then brokers with a lower load grade, then brokers with fewer replicas. A broker
without a site counts as a site of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from venus.network.scheduling import grade_loads, rank_brokers
from venus.replication.leaders import UNEVEN, UNEVEN_S, Balancer, LeaderSchedule, find_obstacle
from venus.replication.records import Leadership, LiveBroker, Member, Policy


class ClusterView:
    """The cluster as of one read of the coordinator. `sites` also has brokers that are not alive.

    Counts include the replicas that were placed by this view.
    """

    def __init__(
        self,
        live: Collection[LiveBroker],
        records: Iterable[Leadership] = (),
        sites: Mapping[str, str] | None = None,
    ) -> None:
        self.live = {broker.member: broker for broker in live}
        self.by_name = {broker.member.broker: broker for broker in live}
        self._records = records
        self._sites = dict(sites or {}) | {name: broker.site for name, broker in self.by_name.items()}

    @cached_property
    def leaders(self) -> LeaderSchedule:
        """Order of the brokers by the businesses that they lead."""
        return LeaderSchedule(self._records, self.live)

    @cached_property
    def replicas(self) -> Counter[str]:
        """Number of the replicas at each broker."""
        return Counter(name for known in self._records for name in known.replicas)

    @cached_property
    def grades(self) -> dict[str, int]:
        """Load grade of each living broker."""
        return grade_loads({name: broker.load for name, broker in self.by_name.items()})

    def site_of(self, broker: str) -> tuple[str, str]:
        """Return the site of a broker."""
        site = self._sites.get(broker, "")
        return ("site", site) if site else ("broker", broker)

    def choose_replicas(self, business: str, present: Collection[str], taken: Collection[str], count: int) -> list[str]:
        """Return up to `count` living brokers for replicas of a business.

        `present` are the brokers whose replicas stay, `taken` the brokers that get no new replica.
        """
        left = {name for name, broker in self.by_name.items() if not broker.draining} - {*present, *taken}
        rank = {name: n for n, name in enumerate(rank_brokers(business, left))}
        chosen: list[str] = []
        while left and len(chosen) < count:
            sites = {self.site_of(name) for name in (*present, *chosen)}
            chosen.append(
                min(
                    left,
                    key=lambda name: (self.site_of(name) in sites, self.grades[name], self.replicas[name], rank[name]),
                )
            )
            left.remove(chosen[-1])
        self.replicas.update(chosen)
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlacement:
    """Replication settings of `[cluster]`, and the records that follow from them."""

    replicas: int = 3
    policy: Policy = Policy.CONSISTENCY
    min_in_sync: int = 2

    def new_record(self, business: str, me: Member, view: ClusterView, term: int) -> Leadership:
        """Return the record of a new business, led by `me`, which alone is known to have no older data of this name.

        If the scheduler prefers another replica as leader, `me` is requested to hand over once that one is in sync.
        """
        others = view.choose_replicas(business, (me.broker,), (), self.replicas - 1)
        able = [member for member in (me, *(view.by_name[name].member for name in others)) if member in view.live]
        chosen = view.leaders.assign(able, me) if able else me
        return Leadership(
            business=business,
            term=term,
            leader=me,
            in_sync=frozenset({me}),
            replicas=(me.broker, *others),
            policy=self.policy,
            min_in_sync=self.min_in_sync,
            successor=chosen.broker if chosen != me else "",
        )

    def joining_record(self, business: str, me: Member, term: int) -> Leadership:
        """Return the record of a business that one broker had alone; its minimum rises once more brokers are in sync.

        Before the broker joined the cluster one copy was enough, so writes do not wait for other brokers at first.
        """
        first = self.new_record(business, me, ClusterView(()), term)
        if first.min_in_sync == 1:
            return first
        return replace(first, min_in_sync=1, min_in_sync_wanted=first.min_in_sync)

    def next_record(self, known: Leadership, view: ClusterView) -> Leadership | None:
        """Return the leader's next change of the replicas; None = nothing to change."""
        return (
            raise_minimum(known)
            or remove_leaving(known, view.live)
            or replace_draining(known, view)
            or self.add_missing(known, view)
            or replace_crowded(known, view)
        )

    def add_missing(self, known: Leadership, view: ClusterView) -> Leadership | None:
        """Return the record with the missing replicas; None = none is missing, or no broker is available."""
        stay = known.staying_replicas
        missing = (known.replicas_wanted or self.replicas) - len(stay)
        if missing <= 0:
            return None
        more = view.choose_replicas(known.business, stay, known.replicas, missing)
        return replace(known, replicas=(*known.replicas, *more)) if more else None


def replace_draining(known: Leadership, view: ClusterView) -> Leadership | None:
    """Return the record with a new replica in place of one on a draining broker; None = no change."""
    stay = known.staying_replicas
    draining = [name for name in stay if name in view.by_name and view.by_name[name].draining]
    return _replace_replica(known, draining[0], view) if draining else None


def replace_crowded(known: Leadership, view: ClusterView) -> Leadership | None:
    """Return the record with a new replica at a free site, for one of two at the same site; None = no change.

    Only one replica is replaced at a time, never the leader's; replicas that are not in sync come first.
    """
    stay = known.staying_replicas
    sites = Counter(view.site_of(name) for name in stay)
    if known.leaving or len(sites) == len(stay):
        return None
    free = {view.site_of(name) for name, broker in view.by_name.items() if not broker.draining} - sites.keys()
    leader = known.leader.broker if known.leader is not None else ""
    crowded = [name for name in stay if sites[view.site_of(name)] > 1 and name != leader]
    if not free or not crowded:
        return None
    in_sync = {member.broker for member in known.in_sync}
    return _replace_replica(known, min(crowded, key=lambda name: (name in in_sync, -view.replicas[name], name)), view)


class Rebalancer:
    """Automatic balance of leaders, then of replicas, from the records that all brokers read."""

    def __init__(self, me: str, uneven_s: float = UNEVEN_S) -> None:
        self._leaders, self._replicas = Balancer(me, uneven_s), ReplicaBalancer(me, uneven_s)

    def next_record(
        self, records: Mapping[str, Leadership], view: ClusterView, now: float
    ) -> tuple[Leadership, str] | None:
        """Return a record that this broker should change now, and why; None = nothing to change."""
        move = self._leaders.next_move(records, view.live, now)
        after = self._replicas.next_record(records, view, now)
        if move is not None:
            reason = f"it moves to broker {move.target} for balance: {move.reason}"
            return replace(records[move.business], successor=move.target), reason
        if after is not None:
            return after, f"its replica at {after.leaving[-1]} moves to {after.replicas[-1]}, which has hardly any"
        return None


class ReplicaBalancer:
    """Automatic moves of replicas, one at a time in the cluster, to a broker with hardly any, such as a new one.

    A leader moves replicas of the businesses that it leads, but never its own replica. The new replica is added first;
    the one that it replaces leaves once all others are in sync (`remove_leaving`).
    """

    def __init__(self, me: str, uneven_s: float = UNEVEN_S) -> None:
        self._me, self._uneven_s = me, uneven_s
        self._since: float | None = None  # since when there is such a broker

    def next_record(self, records: Mapping[str, Leadership], view: ClusterView, now: float) -> Leadership | None:
        """Return a record with a replica that moves; None = none should move, or another broker leads that business."""
        found = _find_replica_move(list(records.values()), view)
        if found is None:
            self._since = None
            return None
        self._since = now if self._since is None else self._since
        known, source, target = found
        leads = known.leader is not None and known.leader.broker == self._me
        if not leads or now - self._since < self._uneven_s or find_obstacle(records.values(), view.live):
            return None
        return replace(known, replicas=(*known.replicas, target), leaving=(*known.leaving, source))


def _find_replica_move(records: Sequence[Leadership], view: ClusterView) -> tuple[Leadership, str, str] | None:
    """Return a business, the broker with a replica that should move, and the one that has far fewer than the mean."""
    able = sorted(name for name, broker in view.by_name.items() if not broker.draining)
    counts = Counter(dict.fromkeys(able, 0))
    counts.update(name for known in records for name in known.staying_replicas if name in counts)
    target = min(able, key=lambda name: (counts[name], name), default="")
    if not target or counts[target] * UNEVEN * len(able) >= counts.total():
        return None
    for source in sorted(able, key=lambda name: (-counts[name], name)):
        if counts[source] < counts[target] + 2 or view.grades[target] > view.grades[source]:
            continue
        for known in sorted(records, key=lambda known: known.business):
            if _can_move(known, source, target, view):
                return known, source, target
    return None


def _can_move(known: Leadership, source: str, target: str, view: ClusterView) -> bool:
    """Whether a replica may move: it does not lead, and the replicas are at no fewer sites afterwards."""
    stay = known.staying_replicas
    if source not in stay or target in known.replicas or known.leader is None or known.leader.broker == source:
        return False
    sites = {view.site_of(name) for name in stay}
    return len({view.site_of(name) for name in (*stay, target) if name != source}) >= len(sites)


def _replace_replica(known: Leadership, leaving: str, view: ClusterView) -> Leadership | None:
    """Return the record with a new replica for a leaving one; None = no broker is available."""
    present = [name for name in known.staying_replicas if name != leaving]
    spare = view.choose_replicas(known.business, present, known.replicas, 1)
    if not spare:
        return None
    return replace(known, replicas=(*known.replicas, spare[0]), leaving=(*known.leaving, leaving))


def raise_minimum(known: Leadership) -> Leadership | None:
    """Return the record with the postponed minimum once enough replicas are in sync; None = no change."""
    if known.min_in_sync_wanted <= known.min_in_sync or len(known.in_sync) < known.min_in_sync_wanted:
        return None
    return replace(known, min_in_sync=known.min_in_sync_wanted, min_in_sync_wanted=0)


def remove_leaving(known: Leadership, living: Collection[Member]) -> Leadership | None:
    """Return the record without leaving replicas; None = none leaves, or the staying ones are not all in sync."""
    stay = known.staying_replicas
    ready = {member.broker for member in known.in_sync & set(living)}
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
        self.sites: dict[str, str] = {}  # of each broker, as it was last alive

    def update(self, brokers: Iterable[LiveBroker]) -> None:
        """Update the living brokers."""
        self.live = {broker.member: broker for broker in brokers}
        self._known.update(self.live)
        self.sites.update({member.broker: broker.site for member, broker in self.live.items()})

    def find(self, member: Member | None) -> LiveBroker | None:
        """Return a broker that is or was alive."""
        return self._known.get(member) if member is not None else None

    def address_of(self, member: Member | None) -> str:
        """Return the address of a broker; empty = unknown."""
        found = self.find(member)
        return found.address if found is not None else ""
