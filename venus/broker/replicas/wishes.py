"""What a leader does for operators: replicas that come and go, another leader. The record has what they want.

Wishes stand in the record, so whoever had one need not wait, and a wish that is repeated changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from venus.broker.replicas.placement import Brokers, Wanted, dismissed
from venus.broker.replicas.ports import Coordination
from venus.replication.in_sync import NEAR_ENTRIES
from venus.replication.leading import Leading
from venus.replication.messages import HandOver
from venus.replication.records import Leadership, Member
from venus.replication.replica import Replica

#: A broker that is draining tries so often to hand over; each try holds writes back until the successor has everything.
DRAIN_EVERY_S = 5.0

Take = Callable[[str, HandOver], None]


class Wishes:
    """Looked at whenever the coordinator was read; in the host's thread."""

    def __init__(
        self,
        me: Member,
        wanted: Wanted,
        brokers: Brokers,
        coordination: Coordination,
        take: Take,
        monotonic: Callable[[], float],
    ) -> None:
        self._me, self._wanted, self._brokers = me, wanted, brokers
        self._coordination, self._take, self._monotonic = coordination, take, monotonic
        self._tried: dict[str, tuple[int, str]] = {}  # the term and the successor with whom it was tried, by business
        self._drained_at: dict[str, float] = {}

    def look(self, replicas: Iterable[Replica]) -> None:
        """Carry out what is wanted of the businesses that this broker leads."""
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
            to = self._able(known, known.successor)
            if to is None or self._tried.get(business) == (known.term, known.successor):
                self._coordination.swap(known, dismissed(known))
                return
            self._tried[business] = known.term, known.successor
            self._take(business, HandOver(to=to))
            return
        self._tried.pop(business, None)
        own = self._brokers.live.get(self._me)
        if own is None or not own.draining or now < self._drained_at.get(business, -DRAIN_EVERY_S) + DRAIN_EVERY_S:
            return
        successor = self._successor(replica, known, leading)
        if successor is not None:
            self._drained_at[business] = now
            self._take(business, HandOver(to=successor))

    def _able(self, known: Leadership, broker: str) -> Member | None:
        """Return the member of a broker that may be handed to."""
        others = (known.in_sync & self._brokers.live.keys()) - {self._me}
        return next((member for member in others if member.broker == broker), None)

    def _successor(self, replica: Replica, known: Leadership, leading: Leading) -> Member | None:
        """Return who leads best while this broker is draining; None = nobody is nearly there."""
        near = replica.position.end - NEAR_ENTRIES
        able = [
            member
            for member, progress in leading.followers.items()
            if progress.end >= near and self._able(known, member.broker) == member
            if not self._brokers.live[member].draining
        ]
        return min(able, key=self._brokers.order, default=None)
