"""Elections that a replica runs. Several replicas may run one; the coordinator's compare-and-swap decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from venus.replication import election
from venus.replication.election import Ballot
from venus.replication.messages import BallotReceived, Effect, RequestBallot, Swap
from venus.replication.position import ReplicationTimes
from venus.replication.records import Leadership, LiveBroker, Member, Policy


@dataclass(slots=True, kw_only=True)
class _Election:
    term: int
    asked: frozenset[Member]
    until: float
    ballots: dict[Member, Ballot] = field(default_factory=dict)


#: Number of resignations in a row after which the interval to the next one stops growing.
_RESIGNED_MAX = 2
#: Maximum number of terms by which a log may be ahead of the record, if the coordinator was restored from a backup.
TERMS_MAX = 2**32


class Elections:
    """The elections that this replica runs, one at a time."""

    def __init__(self, me: Member, patience: ReplicationTimes) -> None:
        self._me = me
        self._patience = patience
        self._running: _Election | None = None
        self._wanted_since: float | None = None
        self._not_before = float("-inf")
        self._resigned = 0  # number of resignations since the last acknowledgement
        self._stands_back_until = float("-inf")
        self.stays_until = float("-inf")  # this leader does not resign before
        self.ranks: Mapping[str, int] = {}  # the scheduler's order of the brokers

    def cancel(self) -> None:
        """Cancel the election: there is a leader, or a newer term."""
        self._running = self._wanted_since = None

    def stand_back(self, now: float) -> None:
        """Leave the next term to others: this replica has resigned because it reaches too few of its followers.

        The interval between resignations grows while they have no effect: the others do not reach each other either.
        """
        silence_s = self._patience.silence_s
        self._resigned = min(self._resigned + 1, _RESIGNED_MAX)
        self._stands_back_until = now + 2 * silence_s
        self.stays_until = now + silence_s * 4.0**self._resigned

    def is_standing_back(self, now: float) -> bool:
        """Whether this replica has resigned lately."""
        return now < self._stands_back_until

    def record_progress(self) -> None:
        """Record that this replica has acknowledged something as the leader."""
        self._resigned, self.stays_until = 0, float("-inf")

    def tick(
        self, known: Leadership, live: Mapping[Member, LiveBroker], own: Ballot | None, now: float
    ) -> list[Effect]:
        """Begin, continue or end an election while there is no leader; `own` None = this replica cannot lead."""
        if self._running is not None:
            return self._decide(known, live, now) if now >= self._running.until else []
        if self._me not in live:
            return []  # others ignore a broker without a lease
        asked = election.eligible_members(known, live)
        if self.is_standing_back(now) and asked - {self._me}:
            return []
        self._wanted_since = now if self._wanted_since is None else self._wanted_since
        if (
            now < self._not_before
            or now < self._wanted_since + self._queue_position(known, live) * self._patience.turn_s
        ):
            return []
        if not asked:
            return []
        self._running = _Election(term=known.term + 1, asked=asked, until=now + self._patience.ballot_s)
        if self._me in asked and own is not None:
            self._running.ballots[self._me] = own
        effects: list[Effect] = [RequestBallot(to=member, term=known.term + 1) for member in sorted(asked - {self._me})]
        return [*effects, *self._decide_if_complete(known, live, now)]

    def resign(self, known: Leadership, now: float) -> list[Effect]:
        """Give up the leadership: this replica, chosen in an unclean election, has begun an installation since."""
        if known.policy is Policy.CONSISTENCY or now < self._not_before:
            return []
        self._not_before = now + self._patience.election_every_s
        mine = frozenset({self._me})
        without_me = replace(
            known,
            term=known.term + 1,
            leader=None,
            in_sync=known.in_sync - mine,
            last_in_sync=known.last_in_sync - mine,
        )
        return [Swap(before=known, after=without_me)]

    def on_ballot(
        self, event: BallotReceived, known: Leadership, live: Mapping[Member, LiveBroker], now: float
    ) -> list[Effect]:
        """Handle a ballot; the last one ends the election."""
        running = self._running
        if running is None or event.term != running.term or event.ballot.member not in running.asked:
            return []
        if event.ballot.last_term > known.term + TERMS_MAX:
            return []  # a term this high leaves no room for the next ones
        running.ballots[event.ballot.member] = event.ballot
        return self._decide_if_complete(known, live, now)

    def _decide_if_complete(self, known: Leadership, live: Mapping[Member, LiveBroker], now: float) -> list[Effect]:
        running = self._running
        if running is None or len(running.ballots) < len(running.asked):
            return []
        return self._decide(known, live, now)

    def _decide(self, known: Leadership, live: Mapping[Member, LiveBroker], now: float) -> list[Effect]:
        running, self._running = self._running, None
        assert running is not None
        self._not_before = now + self._patience.election_every_s
        may_lead = election.eligible_members(known, live)  # checked again: it may have changed since
        ballots = {member: ballot for member, ballot in running.ballots.items() if member in may_lead}
        chosen = election.choose_leader(known, ballots, live, self.ranks)
        return [] if chosen is None else [Swap(before=known, after=chosen)]

    def _queue_position(self, known: Leadership, live: Mapping[Member, LiveBroker]) -> int:
        """Return the position of this broker in the order of elections, so that brokers do not start them together.

        The others wait for the leader of the record while it lives, so it need not wait for them.
        """
        if known.leader == self._me:
            return 0
        order = sorted(
            (broker.draining, broker.priority, member)
            for member, broker in live.items()
            if member.broker in known.replicas
        )
        return next((i for i, (_, _, member) in enumerate(order) if member == self._me), len(order))
