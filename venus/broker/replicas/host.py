"""All replicas of a broker: events go in, effects are carried out. One thread, no waiting.

Whatever decides is in `venus.replication`; this file knows whom to tell. A standing is published before the effects of
the step that changed it, because the commit thread looks at it when an effect wakes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from venus.broker.replicas.brokers import Brokers
from venus.broker.replicas.effects import Effects
from venus.broker.replicas.losses import doubted
from venus.broker.replicas.placement import Wanted
from venus.broker.replicas.ports import Coordination, Installations, Logs, Post, Transport
from venus.broker.replicas.shared import ReplicatedLogs
from venus.broker.replicas.standing import Standing
from venus.replication import messages as m
from venus.replication.election import Ballot
from venus.replication.position import Position
from venus.replication.records import Leadership, LiveBroker, Member
from venus.replication.replica import Replica
from venus.replication.settings import Patience

logger = logging.getLogger(__name__)


class Host:
    """The replicas of one broker. Every method is called in the host's thread, but for `log_changed`."""

    def __init__(
        self,
        me: LiveBroker,
        *,
        logs: Logs,
        shared: ReplicatedLogs,
        transport: Transport,
        coordination: Coordination,
        installations: Installations,
        wanted: Wanted,
        patience: Patience,
        monotonic: Callable[[], float],
        post: Post,
    ) -> None:
        self.me = me
        self.replicas: dict[str, Replica] = {}
        self.brokers = Brokers()
        self._effects = Effects(
            self.brokers, self.replicas, logs, transport, coordination, post, self._installer(installations)
        )
        self.troubles = self._effects.troubles
        self._logs, self._shared, self._transport, self._coordination = logs, shared, transport, coordination
        self._wanted = wanted
        self._patience = patience
        self._monotonic = monotonic
        self._lease_until = float("-inf")
        self._begun: set[str] = set()  # businesses that this process made
        shared.tell(lambda business, position: post(lambda: self.take(business, position)))

    # -- one event of one replica ----------------------------------------------------------------------------------

    def take(self, business: str, event: m.Event) -> None:
        """Give one event to a replica and carry out what it wants; nothing happens if there is none."""
        replica = self.replicas.get(business)
        if replica is None:
            return
        effects = replica.step(event, self._monotonic())
        self._publish(business, replica)
        for effect in effects:
            self._effects.carry_out(business, effect)

    def _publish(self, business: str, replica: Replica) -> None:
        leader = replica.known.leader if replica.known is not None else None
        standing = Standing(
            term=replica.known.term if replica.known is not None else 0,
            leads=replica.leads,
            refusal=replica.refusal(self._monotonic()),
            leader=self.brokers.address(leader) if leader != self.me.member else "",
            high=replica.high,
            needed_from=needed_from(replica),
            doubted=doubted(replica.known) if replica.known is not None else (),
        )
        before = self._shared.standing(business)
        self._shared.publish(business, standing)
        stuck = replica.leading is not None and replica.leading.handing_over is None and standing.refusal
        if stuck and before.leads and not before.refusal:
            logger.warning("%s: nothing can be written: %s", business, standing.refusal)
            self._logs.refuse(business)

    def _installer(self, installations: Installations) -> Callable[[str, LiveBroker], None]:
        def installed(business: str, log: m.LogChanged) -> None:
            self.troubles.pop(business, None)
            self.take(business, m.Installed(log=log))

        return lambda business, leader: installations.begin(business, leader, partial(installed, business))

    # -- from other brokers ----------------------------------------------------------------------------------------

    def fetched(self, business: str, event: m.Fetched) -> None:
        """Take a follower's fetch."""
        if business in self.replicas:
            self.take(business, event)
        else:
            self._transport.answer(event.follower, business, m.NotLeading(term=0))

    def answered(self, business: str, event: m.Answered) -> None:
        """Take the answer to a fetch of ours."""
        if isinstance(event.answer, m.Entries):
            self.troubles.pop(business, None)
        self.take(business, event)

    def line_lost(self, to: Member) -> None:
        """Note that fetches that were sent to a broker will not be answered."""
        for business in list(self.replicas):
            self.take(business, m.Answered(leader=to, answer=None))

    def ballot_asked(self, business: str, by: Member, term: int) -> Ballot | None:
        """Return the ballot that another broker asks for; None = it gets none."""
        self._effects.ballot = None
        self.take(business, m.BallotAsked(by=by, term=term))
        return self._effects.ballot

    def ballot_came(self, business: str, term: int, ballot: Ballot) -> None:
        """Take a ballot that was asked for."""
        self.take(business, m.BallotCame(term=term, ballot=ballot))

    # -- from the coordinator --------------------------------------------------------------------------------------

    def seen(self, leaderships: Iterable[Leadership], brokers: Iterable[LiveBroker]) -> None:
        """Take up who leads and who lives."""
        self.brokers.seen(brokers)
        for leadership in leaderships:
            if self.me.member.broker in leadership.replicas:
                self._open(leadership.business)
                self.take(leadership.business, m.Seen(leadership=leadership))
        for business in list(self.replicas):  # an election wants to know who lived after the record was read
            self.take(business, m.Living(brokers=self.brokers.live))
        for known in list(self._led()):
            self._place(known)

    def _open(self, business: str) -> None:
        if business in self.replicas:
            return
        log, applied, whole = self._logs.open(business)
        position = Position(high=applied, whole=whole)
        position.changed(log)
        self.replicas[business] = Replica(
            self.me.member, position, patience=self._patience, begins=business in self._begun
        )
        self.take(business, m.Living(brokers=self.brokers.live))
        self.take(business, m.Leased(until=self._lease_until))

    def leased(self, until: float) -> None:
        """Note for how long the lease of this broker holds."""
        self._lease_until = until
        for business in list(self.replicas):
            self.take(business, m.Leased(until=until))

    def swapped(self, event: m.Swapped) -> None:
        """Take the coordinator's answer to a swap."""
        self.take(event.before.business, event)

    def tick(self) -> None:
        """Let time pass; a few times a second."""
        for business in list(self.replicas):
            self.take(business, m.Tick())

    # -- businesses ------------------------------------------------------------------------------------------------

    def begun(self, businesses: Iterable[str]) -> None:
        """Note that this process has told the cluster of businesses: nobody has led their terms before it."""
        self._begun.update(businesses)

    def create(self, business: str, *, term: int = 1) -> None:
        """Make a business that the cluster does not know, led by this broker."""
        self._begun.add(business)
        self._coordination.create(self._wanted.first(business, self.me.member, self.brokers.live.values(), term))

    def _led(self) -> Iterator[Leadership]:
        for replica in self.replicas.values():
            if replica.leads and replica.known is not None:
                yield replica.known

    def _place(self, known: Leadership) -> None:
        after = self._wanted.grown(known, self.brokers.live.values())
        if after is not None:
            self._coordination.swap(known, after)

    def hand_over(self) -> bool:
        """Let others lead what this broker leads; False = it leads nothing that another one could."""
        under_way = False
        for known in list(self._led()):
            able = [member for member in known.in_sync if member != self.me.member and member in self.brokers.live]
            if able:
                under_way = True
                self.take(known.business, m.HandOver(to=min(able, key=lambda member: self._order(member))))
        return under_way

    def _order(self, member: Member) -> tuple[object, ...]:
        broker = self.brokers.live[member]
        return broker.draining, broker.priority, member


def needed_from(replica: Replica) -> int:
    """Return the first entry that a follower of a leader lacks; of one that was never heard, the first of all."""
    known, leading = replica.known, replica.leading
    if known is None or leading is None:
        return 2**63
    ends = {member.broker: progress.end for member, progress in leading.followers.items()}
    return min([2**63, *(ends.get(name, 0) for name in known.replicas if name != replica.me.broker)])
