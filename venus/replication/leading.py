"""A replica that leads: it answers fetches, moves the high watermark, keeps the in-sync set, hands over."""

from __future__ import annotations

from dataclasses import replace

from venus.replication import in_sync, terms
from venus.replication.in_sync import Progress
from venus.replication.messages import (
    Advance,
    Diverge,
    Effect,
    Entries,
    Fetched,
    Reply,
    Swap,
    Swapped,
    Trimmed,
)
from venus.replication.position import Patience, Position
from venus.replication.records import Leadership, Member, Policy


class Leading:
    """The leader of one term. `followers` is what it knows of the others."""

    def __init__(
        self,
        me: Member,
        position: Position,
        known: Leadership,
        patience: Patience,
        now: float,
        *,
        stays_until: float = 0.0,
    ) -> None:
        self.known = known
        self.followers: dict[Member, Progress] = {
            member: Progress(caught_up_at=now, moved_at=now) for member in known.in_sync if member != me
        }
        self.handing_over: Member | None = None
        self._position = position
        self._patience = patience
        self._hand_over_until = now
        self._asked_for: Leadership | None = None  # a change of the record whose answer has not come
        self._asked_at = now
        self.confirmed = False  # the record was swapped since the lease began: nobody led between
        self._asked_confirms = False
        self._parked: dict[Member, tuple[Fetched, float]] = {}  # fetches with nothing to answer yet
        self._early: dict[Member, Fetched] = {}  # fetches from before the log had the first entry of this term
        self._stays_until = stays_until  # it does not resign before: it has resigned lately
        self._ticked_at = self._listens_since = now
        self._told: dict[Member, int] = {}  # the high watermark that a follower was told last

    # -- the record ------------------------------------------------------------------------------------------------

    def taken_up(self, leadership: Leadership) -> None:
        """Go on with a newer record of the same term: what was asked for is decided by that."""
        self.known = leadership
        self._asked_for = None

    def swapped(self, event: Swapped) -> None:
        """Note an answer of the coordinator."""
        if event.stored is not None and event.after == self._asked_for and self._asked_confirms:
            self.confirmed = True

    def lease_had_ended(self) -> None:
        """Have the record swapped once more: while there was no lease, others may have begun an unclean election."""
        self.confirmed = self._asked_confirms = False

    def tick(self, live: frozenset[Member] | None, now: float) -> list[Effect]:
        """Keep the in-sync set, answer those who wait, hand over.

        A change that may have happened counts until a newer record is seen: the very same one is asked for again.
        """
        if now - self._ticked_at > self._patience.silence_s / 4:
            self._listens_since = now  # this process has stood still: what followers have sent meanwhile comes now
        self._ticked_at = now
        if self.handing_over is not None and now > self._hand_over_until:
            self.handing_over = None
        elif self.handing_over is None:
            self._leave_if_removed(now)
        effects = self._answer_parked(now)
        if self._asked_for is not None:
            if now - self._asked_at < self._patience.election_every_s:
                return effects
            self._asked_at = now
            return [*effects, Swap(before=self.known, after=self._asked_for)]
        wanted = None if live is None or not self._has_begun else self._wanted(live, now)
        if wanted is None:
            return effects
        self._asked_for, self._asked_at, self._asked_confirms = wanted, now, True
        return [*effects, Swap(before=self.known, after=wanted)]

    def _wanted(self, live: frozenset[Member], now: float) -> Leadership | None:
        known, position = self.known, self._position
        successor = self.handing_over
        if successor is not None and successor in known.in_sync and self._has_all(successor):
            return replace(known, term=known.term + 1, leader=successor)
        waiting = [who for who, (event, _) in self._parked.items() if event.index >= position.end]
        reached = self._reached(live, waiting, now)
        present = reached & in_sync.keeping_up(self.followers, waiting, now, self._patience.lag_s)
        if now >= self._stays_until and in_sync.is_cut_off(known, live, reached):
            return replace(known, term=known.term + 1, leader=None)
        gone = in_sync.fallen_behind(known, present)
        term_start = position.terms.starts[-1][1]
        back = in_sync.caught_up(known, self.followers, present, position.high, term_start)
        if not gone and not back:
            return None if self.confirmed or known.policy is Policy.CONSISTENCY else known
        return in_sync.changed(known, gone, back)

    def _reached(self, live: frozenset[Member], waiting: list[Member], now: float) -> frozenset[Member]:
        """Return the living that are not silent; until this leader has listened for long enough, none is."""
        since = now - self._patience.silence_s
        if since <= self._listens_since:
            return live
        return live & in_sync.moving(self.followers, waiting, since)

    def hand_over(self, to: Member, now: float) -> list[Effect]:
        """Take no more proposals; the successor leads once it has everything, or it is given up after a while."""
        self.handing_over = to
        self._hand_over_until = now + self._patience.hand_over_s
        return self._answer_parked(now)

    def _leave_if_removed(self, now: float) -> None:
        """Hand over if this broker shall not have a replica any more, as soon as another one can lead."""
        known, replicas = self.known, self.known.replicas
        if known.leader is None or known.leader.broker in replicas:
            return
        others = [member for member in known.in_sync if member.broker in replicas]
        if others and len(others) >= known.min_in_sync:
            self.hand_over(max(others, key=lambda member: (self._end_of(member), member)), now)

    def _end_of(self, member: Member) -> int:
        return self.followers.get(member, Progress()).end

    def _has_all(self, member: Member) -> bool:
        position = self._position
        return self._end_of(member) >= position.end and position.durable_end >= position.end

    @property
    def _has_begun(self) -> bool:
        """Whether the log has the first entry of this term: whatever it was told before has been done by then."""
        return self._position.terms.newest == self.known.term

    # -- the log ---------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Move the high watermark as far as the disks of the in-sync set allow."""
        position = self._position
        if not self._has_begun:
            return []
        ends = {member: progress.end for member, progress in self.followers.items()}
        high = in_sync.high_watermark(position.durable_end, self.known, self._asked_for, ends, position.high)
        if high <= position.high:
            return []
        position.high = high
        return [Advance(high=high), *self._answer_parked(now)]

    def log_changed(self, now: float) -> list[Effect]:
        """Send what is new to those who wait for it."""
        effects: list[Effect] = []
        if self._early and self._has_begun:
            early, self._early = self._early, {}
            for event in early.values():
                effects += self.fetched(event, now)
        return [*effects, *self._answer_parked(now)]

    def fetched(self, event: Fetched, now: float) -> list[Effect]:
        """Take a follower's word about its disk, and answer it now or when there is something to say."""
        position, who = self._position, event.follower
        if not self._has_begun:
            self._early[who] = event
            return []
        if event.index < position.start:
            return [Reply(to=who, answer=Trimmed(term=self.known.term, start=position.start))]
        parted = terms.known_end(position.terms, position.end, event.index, event.last_term)
        if parted is not None:
            known_term, end = parted
            answer = Diverge(
                term=self.known.term, index=event.index, last_term=event.last_term, known_term=known_term, end=end
            )
            return [Reply(to=who, answer=answer)]
        before = self.followers.get(who, Progress())
        if event.version < before.version:
            return []  # it was overtaken
        self.followers[who] = before.heard(event.index, event.version, position.end, now)
        _, since = self._parked.get(who, (event, now))  # whoever repeats a fetch does not begin to wait again
        self._parked[who] = (event, since)
        return self._answer_parked(now)

    def _answer_parked(self, now: float) -> list[Effect]:
        high, effects = self._position.high, []
        for who, (event, since) in list(self._parked.items()):
            news = event.index < self._position.end or self._told.get(who, 0) < high
            if news or now - since >= self._patience.idle_s:
                del self._parked[who]
                if since < now:  # it waited with everything there was, until now
                    self.followers[who] = self.followers[who].waited(now)
                self._told[who] = high
                effects.append(Reply(to=who, answer=Entries(term=self.known.term, first=event.index, high=high)))
        return list[Effect](effects)
