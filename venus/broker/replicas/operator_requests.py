"""Execution of operators' requests by the leader: added, moved and removed replicas, another leader.

Requests are stored in the record. So the operator's command need not wait, and a repeated request changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from venus.broker.replicas.placement import KnownBrokers, ReplicaPlacement, clear_successor
from venus.broker.replicas.ports import Coordination
from venus.replication.in_sync import NEAR_ENTRIES
from venus.replication.leading import Leading
from venus.replication.messages import HandOverRequest
from venus.replication.records import Leadership, Member
from venus.replication.replica import Replica

#: Interval between hand-overs by a draining broker; each delays writes until the successor has everything.
DRAIN_EVERY_S = 5.0

Take = Callable[[str, HandOverRequest], None]


class OperatorRequests:
    """Executes the requests after each read of the coordinator, in the host's thread."""

    def __init__(
        self,
        me: Member,
        wanted: ReplicaPlacement,
        brokers: KnownBrokers,
        coordination: Coordination,
        take: Take,
        monotonic: Callable[[], float],
    ) -> None:
        self._me, self._wanted, self._brokers = me, wanted, brokers
        self._coordination, self._take, self._monotonic = coordination, take, monotonic
        self._tried: dict[str, tuple[int, str]] = {}  # term and successor of the last attempt, by business
        self._drained_at: dict[str, float] = {}

    def execute(self, replicas: Iterable[Replica]) -> None:
        """Execute the requests of the businesses that this broker leads."""
        for replica in list(replicas):
            known, leading = replica.known, replica.leading
            if known is None or leading is None:
                continue
            after = self._wanted.next_record(known, self._brokers.live.values(), self._monotonic())
            if after is not None:
                self._coordination.swap(known, after)
            elif leading.handing_over is None:
                self._hand_over(replica, known, leading)

    def _hand_over(self, replica: Replica, known: Leadership, leading: Leading) -> None:
        business, now = known.business, self._monotonic()
        if known.successor:
            to = self._find_able(known, known.successor)
            if to is None or self._tried.get(business) == (known.term, known.successor):
                self._coordination.swap(known, clear_successor(known))
                return
            self._tried[business] = known.term, known.successor
            self._take(business, HandOverRequest(to=to))
            return
        self._tried.pop(business, None)
        own = self._brokers.live.get(self._me)
        if own is None or not own.draining or now < self._drained_at.get(business, -DRAIN_EVERY_S) + DRAIN_EVERY_S:
            return
        successor = self._find_successor(replica, known, leading)
        if successor is not None:
            self._drained_at[business] = now
            self._take(business, HandOverRequest(to=successor))

    def _find_able(self, known: Leadership, broker: str) -> Member | None:
        """Return the member of a broker that can take over; None = it cannot."""
        others = (known.in_sync & self._brokers.live.keys()) - {self._me}
        return next((member for member in others if member.broker == broker), None)

    def _find_successor(self, replica: Replica, known: Leadership, leading: Leading) -> Member | None:
        """Return the best successor for a draining broker; None = no follower has nearly caught up."""
        near = replica.position.end - NEAR_ENTRIES
        able = [
            member
            for member, progress in leading.followers.items()
            if progress.end >= near and self._find_able(known, member.broker) == member
            if not self._brokers.live[member].draining
        ]
        return min(able, key=self._brokers.leader_order, default=None)
