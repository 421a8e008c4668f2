"""A replica that leads: it answers fetches, moves the high watermark, keeps the in-sync set, hands over."""

from __future__ import annotations

from dataclasses import replace

from venus.replication import divergence, in_sync
from venus.replication.in_sync import Progress
from venus.replication.messages import (
    Advance,
    Diverge,
    Effect,
    Entries,
    Fetched,
    Read,
    Reply,
    Swap,
    Swapped,
    Trimmed,
)
from venus.replication.position import Position
from venus.replication.records import Leadership, Member
from venus.replication.settings import Patience


class Leading:
    """The leader of one term. `followers` is what it knows of the others."""

    def __init__(self, me: Member, position: Position, known: Leadership, patience: Patience, now: float) -> None:
        self.known = known
        self.followers: dict[Member, Progress] = {
            member: Progress(caught_up_at=now) for member in known.in_sync if member != me
        }
        self.handing_over: Member | None = None
        self._position = position
        self._patience = patience
        self._asked_for: Leadership | None = None  # a change of the record whose answer has not come
        self._asked_at = now
        self._parked: dict[Member, tuple[Fetched, float]] = {}  # fetches with nothing to answer yet
        self._told: dict[Member, int] = {}  # the high watermark that a follower was told last

    # -- the record ------------------------------------------------------------------------------------------------

    def taken_up(self, leadership: Leadership, now: float) -> list[Effect]:
        """Go on with a newer record of the same term: what was asked for is decided by that."""
        self.known = leadership
        self._asked_for = None
        return self.advance(now)

    def swapped(self, event: Swapped, now: float) -> list[Effect]:
        """Note an answer of the coordinator.

        A change that may have happened counts until a newer record is seen: the very same one is asked for again.
        """
        if event.after == self._asked_for and event.stored is None and event.certain:
            return [Read()]
        return []

    def tick(self, live: frozenset[Member], now: float) -> list[Effect]:
        """Keep the in-sync set, answer those who wait, hand over."""
        effects = self._answer_parked(now)
        if self._asked_for is not None:
            if now - self._asked_at < self._patience.election_every_s:
                return effects
            self._asked_at = now
            return [*effects, Swap(before=self.known, after=self._asked_for)]
        wanted = self._wanted(live, now)
        if wanted is None:
            return effects
        self._asked_for, self._asked_at = wanted, now
        return [*effects, Swap(before=self.known, after=wanted)]

    def _wanted(self, live: frozenset[Member], now: float) -> Leadership | None:
        known, position = self.known, self._position
        successor = self.handing_over
        if successor is not None and successor in known.in_sync and self._has_all(successor):
            return replace(known, term=known.term + 1, leader=successor)
        gone = in_sync.fallen_behind(known, self.followers, live, now, self._patience.lag_s)
        term_start = dict(position.terms.starts).get(known.term)
        back: frozenset[Member] = frozenset()
        if term_start is not None:
            back = in_sync.caught_up(known, self.followers, live, position.high, term_start)
        if not gone and not back:
            return None
        return in_sync.grown(in_sync.without(known, gone), back)

    def hand_over(self, to: Member, now: float) -> list[Effect]:
        """Take no more proposals; the successor leads once it has everything."""
        self.handing_over = to
        return self._answer_parked(now)

    def _has_all(self, member: Member) -> bool:
        position = self._position
        found = self.followers.get(member)
        return found is not None and found.end >= position.end and position.durable_end >= position.end

    # -- the log ---------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Move the high watermark as far as the disks of the in-sync set allow."""
        position = self._position
        ends = {member: progress.end for member, progress in self.followers.items()}
        high = in_sync.high_watermark(position.durable_end, self.known, self._asked_for, ends, position.high)
        if high <= position.high:
            return []
        position.high = high
        return [Advance(high=high), *self._answer_parked(now)]

    def log_changed(self, now: float) -> list[Effect]:
        """Send what is new to those who wait for it."""
        return self._answer_parked(now)

    def fetched(self, event: Fetched, now: float) -> list[Effect]:
        """Take a follower's word about its disk, and answer it now or when there is something to say."""
        position, who = self._position, event.follower
        if event.index < position.start:
            return [Reply(to=who, answer=Trimmed(term=self.known.term, start=position.start))]
        parted = divergence.known_end(position.terms, position.end, event.index, event.last_term)
        if parted is not None:
            term, end = parted
            return [Reply(to=who, answer=Diverge(term=self.known.term, last_term=term, end=end))]
        before = self.followers.get(who, Progress())
        self.followers[who] = before.heard(event.index, position.end, now)
        self._parked[who] = (event, now)
        return self._answer_parked(now)

    def _answer_parked(self, now: float) -> list[Effect]:
        high, effects = self._position.high, []
        for who, (event, since) in list(self._parked.items()):
            news = event.index < self._position.end or self._told.get(who, 0) < high
            if news or now - since >= self._patience.idle_s:
                del self._parked[who]
                self._told[who] = high
                effects.append(Reply(to=who, answer=Entries(term=self.known.term, first=event.index, high=high)))
        return list[Effect](effects)
