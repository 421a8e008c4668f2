"""Role of a follower, and elections. It fetches and appends, and truncates its log where the leader's differs.

Several replicas may run an election at once; the coordinator's compare-and-swap decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from venus.replication import messages as m
from venus.replication.position import Position, ReplicationTimes, truncation_end
from venus.replication.records import Ballot, Leadership, LiveBroker, Member, Policy, choose_leader, eligible_members

#: A reply of at least this many bytes is probably followed by another, which is fetched ahead. Frames are smaller if
#: there are many businesses (replicated_logs.py), so that not too many of them are in memory.
AHEAD_BYTES = 512 << 10


class Following:
    """State of a follower. At most one fetch is open.

    A fetch reports what is on this disk, so none is open while the log changes, except a fetch ahead: while a large
    reply is written, the next reply is on its way. That reply is kept until the log has settled, and dropped if the log
    then ends elsewhere. Like this object, that reply belongs to one leader and term.
    """

    def __init__(self, position: Position, leader: Member, known: Leadership, patience: ReplicationTimes) -> None:
        self.leader = leader
        self.term = known.term
        self._version = known.version
        self._position = position
        self._patience = patience
        self._asked_at: float | None = None  # when the open fetch was sent
        self._ahead_from = 0  # the entry at which the reply to the open fetch ahead begins; 0 = there is none
        self._ahead: m.Entries | None = None  # that reply, while the log changes
        self._may_fetch_ahead = True  # False = the leader's version ignores where a reply should begin

    def begin(self, now: float) -> list[m.Effect]:
        """Fetch what follows the log, or continue an installation that another leader's term had begun."""
        if not self._position.whole:
            return self._reinstall("an installation was interrupted")
        return self._fetch(now)

    def on_record(self, known: Leadership, now: float, *, counts: bool) -> list[m.Effect]:
        """Handle a newer record of the same term. A follower that is not in sync reports its version to the leader."""
        self._version = known.version
        return [] if counts or self._asked_at is None else self._fetch(now)

    def tick(self, now: float) -> list[m.Effect]:
        """Send a fetch if none is open, or again if its reply is overdue."""
        if self._asked_at is None or now - self._asked_at > self._patience.fetch_s:
            return self._fetch(now)
        return []

    def on_log_changed(self, now: float) -> list[m.Effect]:
        """Continue once the orders to the log are executed."""
        if self._ahead is not None and self._is_ready:
            ahead, self._ahead = self._ahead, None
            if ahead.first == self._position.end:
                return self._on_entries(ahead, now, continues=True)
        return self._fetch(now) if self._asked_at is None else []

    def on_fetch_reply(self, event: m.FetchReply, now: float) -> list[m.Effect]:
        """Handle a reply of the leader; one of another leader or term, or to an earlier fetch, is stale."""
        if event.leader != self.leader:
            return []
        continues = self._on_reply_ahead(event.answer) if self._ahead_from else False
        if not self._is_ready:
            return []
        match event.answer:
            case None:
                self._asked_at = None  # the next tick repeats the fetch
                return []
            case m.NotLeading(term=term):
                patience = self._patience
                # fetch again soon if that broker will learn that it leads; else after the timeout, or once the record
                # changes
                self._asked_at = now - patience.fetch_s + patience.idle_s if term < self.term else now
                return [m.ReadRecords()]
            case m.Entries() | m.LogsDiverge() | m.LogTrimmed() if event.answer.term != self.term:
                return []
            case m.Entries():
                return self._on_entries(event.answer, now, continues=continues)
            case m.LogsDiverge():
                return self._on_diverge(event.answer)
            case m.LogTrimmed():
                return self._on_trimmed(event.answer)

    def _on_reply_ahead(self, answer: m.Answer | None) -> bool:
        """Keep the reply to a fetch ahead while the log changes. Any other reply ends the fetch: return False."""
        start, self._ahead_from = self._ahead_from, 0
        is_ahead = isinstance(answer, m.Entries) and answer.term == self.term and answer.first == start
        if isinstance(answer, m.Entries) and answer.term == self.term:
            self._may_fetch_ahead = is_ahead
            if is_ahead and answer.entries and not self._is_ready:
                self._ahead = answer
        if not self._is_ready:
            self._asked_at = None  # the next fetch is sent once the log has settled
        return is_ahead

    @property
    def _is_ready(self) -> bool:
        """Whether a fetch may be sent: the data is complete and the log is settled."""
        return self._position.whole and self._position.is_settled

    def _on_entries(self, answer: m.Entries, now: float, *, continues: bool = False) -> list[m.Effect]:
        """Append the entries of a reply, and move the high watermark."""
        position = self._position
        if answer.first != position.end:
            return []  # a reply to an earlier fetch
        continues = continues or sum(map(len, answer.entries)) >= AHEAD_BYTES
        effects: list[m.Effect] = []
        # Entries before the first one of this reply are on this disk, and equal to the leader's.
        high = min(answer.high, answer.first - 1)
        if high > position.high:
            position.high = high
            effects.append(m.Advance(high=high))
        if not answer.entries:
            return [*effects, *self._fetch(now)]
        self._asked_at = None
        append = m.Append(order=position.next_order(), first=answer.first, entries=answer.entries)
        if not continues or not self._may_fetch_ahead:
            return [*effects, append]
        self._asked_at, self._ahead_from = now, answer.first + len(answer.entries)
        return [*effects, append, self._fetch_effect(start=self._ahead_from)]

    def _on_diverge(self, answer: m.LogsDiverge) -> list[m.Effect]:
        """Truncate the log where it diverges, or install the full data if applied entries differ."""
        position = self._position
        if (answer.index, answer.last_term) != (position.end, position.last_term):
            return []  # a reply to an earlier fetch: the log has changed since
        end = truncation_end(position.terms, position.end, answer.known_term, answer.end)
        if end <= position.high:
            return self._reinstall(
                f"its log has other entries from {end} on, of which ours up to {position.high} are applied",
                diverged=True,
            )
        self._asked_at = None
        return [m.Truncate(order=position.next_order(), end=end)]

    def _on_trimmed(self, answer: m.LogTrimmed) -> list[m.Effect]:
        """Install the leader's full data if the leader's log begins after the end of this one."""
        if answer.start <= self._position.end:
            return []  # a reply to an earlier fetch
        return self._reinstall(f"its log starts at entry {answer.start}, ours ends before that")

    def _reinstall(self, reason: str, *, diverged: bool = False) -> list[m.Effect]:
        """Return the request to install the leader's full data."""
        self._position.whole = False  # until CopyInstalled
        self._asked_at, self._ahead = None, None
        return [m.Reinstall(leader=self.leader, reason=reason, diverged=diverged)]

    def _fetch(self, now: float) -> list[m.Effect]:
        """Send a fetch, unless the log is about to change or its data is incomplete."""
        if not self._is_ready:
            self._asked_at = None  # sent once the log has settled
            return []
        self._asked_at, self._ahead_from = now, 0
        return [self._fetch_effect()]

    def _fetch_effect(self, *, start: int = 0) -> m.SendFetch:
        """Return a fetch that reports what is on this disk."""
        return m.SendFetch(
            to=self.leader,
            term=self.term,
            index=self._position.end,
            last_term=self._position.last_term,
            version=self._version,
            start=start,
        )


@dataclass(slots=True, kw_only=True)
class _Election:
    """A running election: the replicas asked for ballots, and the ballots that have arrived."""

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
        """Whether this replica has resigned recently."""
        return now < self._stands_back_until

    def record_progress(self) -> None:
        """Record that this replica has acknowledged something as the leader."""
        self._resigned, self.stays_until = 0, float("-inf")

    def tick(
        self, known: Leadership, live: Mapping[Member, LiveBroker], own: Ballot | None, now: float
    ) -> list[m.Effect]:
        """Begin, continue or end an election while there is no leader; `own` None = this replica cannot lead."""
        if self._running is not None:
            return self._decide(known, live, now) if now >= self._running.until else []
        if self._me not in live:
            return []  # others ignore a broker without a lease
        asked = eligible_members(known, live)
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
        effects: list[m.Effect] = [
            m.RequestBallot(to=member, term=known.term + 1) for member in sorted(asked - {self._me})
        ]
        return [*effects, *self._decide_if_complete(known, live, now)]

    def resign(self, known: Leadership, now: float) -> list[m.Effect]:
        """Give up the leadership: this replica was elected in an unclean election, and has begun an installation."""
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
        return [m.Swap(before=known, after=without_me)]

    def on_ballot(
        self, event: m.BallotReceived, known: Leadership, live: Mapping[Member, LiveBroker], now: float
    ) -> list[m.Effect]:
        """Handle a ballot; the last one ends the election."""
        running = self._running
        if running is None or event.term != running.term or event.ballot.member not in running.asked:
            return []
        if event.ballot.last_term > known.term + TERMS_MAX:
            return []  # a term this high leaves no room for the next ones
        running.ballots[event.ballot.member] = event.ballot
        return self._decide_if_complete(known, live, now)

    def _decide_if_complete(self, known: Leadership, live: Mapping[Member, LiveBroker], now: float) -> list[m.Effect]:
        """Decide the election if all requested ballots have arrived."""
        running = self._running
        if running is None or len(running.ballots) < len(running.asked):
            return []
        return self._decide(known, live, now)

    def _decide(self, known: Leadership, live: Mapping[Member, LiveBroker], now: float) -> list[m.Effect]:
        """Choose the next leader by the ballots that have arrived."""
        running, self._running = self._running, None
        assert running is not None
        self._not_before = now + self._patience.election_every_s
        may_lead = eligible_members(known, live)  # checked again: it may have changed since
        ballots = {member: ballot for member, ballot in running.ballots.items() if member in may_lead}
        chosen = choose_leader(known, ballots, live, self.ranks)
        return [] if chosen is None else [m.Swap(before=known, after=chosen)]

    def _queue_position(self, known: Leadership, live: Mapping[Member, LiveBroker]) -> int:
        """Return the position of this broker in the order of elections, so that brokers do not start them together.

        While the leader of the record lives, the other brokers wait for it. So that leader need not wait for them.
        """
        if known.leader == self._me:
            return 0
        order = sorted(
            (broker.draining, broker.priority, member)
            for member, broker in live.items()
            if member.broker in known.replicas
        )
        return next((i for i, (_, _, member) in enumerate(order) if member == self._me), len(order))
