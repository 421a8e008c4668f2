"""Role of a leader: it replies to fetches, moves the high watermark, maintains the in-sync set, hands over."""

from __future__ import annotations

from dataclasses import replace

from venus.replication import in_sync, terms
from venus.replication.in_sync import FollowerProgress
from venus.replication.messages import (
    Advance,
    Effect,
    Entries,
    FetchRequest,
    LogsDiverge,
    LogTrimmed,
    SendReply,
    Swap,
    SwapResult,
)
from venus.replication.position import Position, ReplicationTimes
from venus.replication.records import Leadership, Member, Policy


class Leading:
    """State of the leader of one term. `followers` has the progress of the others."""

    def __init__(
        self,
        me: Member,
        position: Position,
        known: Leadership,
        patience: ReplicationTimes,
        now: float,
        *,
        stays_until: float = 0.0,
    ) -> None:
        self.known = known
        self.followers: dict[Member, FollowerProgress] = {
            member: FollowerProgress(caught_up_at=now, moved_at=now) for member in known.in_sync if member != me
        }
        self.handing_over: Member | None = None
        self._position = position
        self._patience = patience
        self._hand_over_until = now
        self._requested: Leadership | None = None  # a change of the record without an answer yet
        self._asked_at = now
        self.confirmed = False  # the record was swapped since the lease began: there was no other leader
        self._asked_confirms = False
        self._parked: dict[Member, tuple[FetchRequest, float]] = {}  # fetches without anything to send yet
        self._early: dict[Member, FetchRequest] = {}  # fetches from before the log had the first entry of this term
        self._stays_until = stays_until  # no resignation before: it has resigned lately
        self._ticked_at = self._listens_since = now
        self._sent_high: dict[Member, int] = {}  # the high watermark last sent to each follower

    # -- the record ------------------------------------------------------------------------------------------------

    def on_record(self, leadership: Leadership) -> None:
        """Handle a newer record of the same term: it decides an open change."""
        self.known = leadership
        self._requested = None

    def on_swap_result(self, event: SwapResult) -> None:
        """Handle the result of a swap."""
        if event.stored is not None and event.after == self._requested and self._asked_confirms:
            self.confirmed = True

    def on_lease_gap(self) -> None:
        """Require one more swap of the record: without a lease, others may have begun an unclean election."""
        self.confirmed = self._asked_confirms = False

    def tick(self, live: frozenset[Member] | None, now: float) -> list[Effect]:
        """Maintain the in-sync set, reply to waiting followers, hand over.

        A change without a certain answer counts until a newer record arrives: the same change is requested again.
        """
        if now - self._ticked_at > self._patience.silence_s / 4:
            self._listens_since = now  # the process was suspended: fetches sent meanwhile arrive now
        self._ticked_at = now
        if self.handing_over is not None and now > self._hand_over_until:
            self.handing_over = None
        elif self.handing_over is None:
            self._leave_if_removed(now)
        effects = self._answer_parked(now)
        if self._requested is not None:
            if now - self._asked_at < self._patience.election_every_s:
                return effects
            self._asked_at = now
            return [*effects, Swap(before=self.known, after=self._requested)]
        wanted = None if live is None or not self._has_begun else self._wanted_record(live, now)
        if wanted is None:
            return effects
        self._requested, self._asked_at, self._asked_confirms = wanted, now, True
        return [*effects, Swap(before=self.known, after=wanted)]

    def _wanted_record(self, live: frozenset[Member], now: float) -> Leadership | None:
        known, position = self.known, self._position
        successor = self.handing_over
        if successor is not None and successor in known.in_sync and self._has_all(successor):
            return replace(known, term=known.term + 1, leader=successor)
        waiting = [follower for follower, (event, _) in self._parked.items() if event.index >= position.end]
        reached = self._reachable_members(live, waiting, now)
        present = reached & in_sync.followers_keeping_up(self.followers, waiting, now, self._patience.lag_s)
        if now >= self._stays_until and in_sync.is_cut_off(known, live, reached):
            return replace(known, term=known.term + 1, leader=None)
        gone = in_sync.members_behind(known, present)
        term_start = position.terms.starts[-1][1]
        back = in_sync.followers_in_sync(known, self.followers, present, position.high, term_start)
        if not gone and not back:
            return None if self.confirmed or known.policy is Policy.CONSISTENCY else known
        return in_sync.with_members(known, gone, back)

    def _reachable_members(self, live: frozenset[Member], waiting: list[Member], now: float) -> frozenset[Member]:
        """Return the living members that are not silent; all of them until this leader has listened for long enough."""
        since = now - self._patience.silence_s
        if since <= self._listens_since:
            return live
        return live & in_sync.moving_followers(self.followers, waiting, since)

    def hand_over(self, to: Member, now: float) -> list[Effect]:
        """Accept no more proposals. The successor leads once it has every entry, or the hand-over is cancelled."""
        self.handing_over = to
        self._hand_over_until = now + self._patience.hand_over_s
        return self._answer_parked(now)

    def _leave_if_removed(self, now: float) -> None:
        """Hand over if this broker's replica was removed, as soon as another one can lead."""
        known, replicas = self.known, self.known.replicas
        if known.leader is None or known.leader.broker in replicas:
            return
        others = [member for member in known.in_sync if member.broker in replicas]
        if others and len(others) >= known.min_in_sync:
            self.hand_over(max(others, key=lambda member: (self._end_of(member), member)), now)

    def _end_of(self, member: Member) -> int:
        return self.followers.get(member, FollowerProgress()).end

    def _has_all(self, member: Member) -> bool:
        position = self._position
        return self._end_of(member) >= position.end and position.durable_end >= position.end

    @property
    def _has_begun(self) -> bool:
        """Whether the log has the first entry of this term: all earlier orders to it are executed by then."""
        return self._position.terms.newest == self.known.term

    # -- the log ---------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Move the high watermark as far as the disks of the in-sync set allow."""
        position = self._position
        if not self._has_begun:
            return []
        ends = {member: progress.end for member, progress in self.followers.items()}
        high = in_sync.high_watermark(position.durable_end, self.known, self._requested, ends, position.high)
        if high <= position.high:
            return []
        position.high = high
        return [Advance(high=high), *self._answer_parked(now)]

    def on_log_changed(self, now: float) -> list[Effect]:
        """Send new entries to the followers that wait for them."""
        effects: list[Effect] = []
        if self._early and self._has_begun:
            early, self._early = self._early, {}
            for event in early.values():
                effects += self.on_fetch(event, now)
        return [*effects, *self._answer_parked(now)]

    def on_fetch(self, event: FetchRequest, now: float) -> list[Effect]:
        """Handle a fetch: record the follower's progress, and reply now or when there is something to send."""
        position, follower = self._position, event.sender
        if not self._has_begun:
            self._early[follower] = event
            return []
        if event.index < position.start:
            return [SendReply(to=follower, answer=LogTrimmed(term=self.known.term, start=position.start))]
        parted = terms.find_divergence(position.terms, position.end, event.index, event.last_term)
        if parted is not None:
            known_term, end = parted
            answer = LogsDiverge(
                term=self.known.term, index=event.index, last_term=event.last_term, known_term=known_term, end=end
            )
            return [SendReply(to=follower, answer=answer)]
        before = self.followers.get(follower, FollowerProgress())
        if event.version < before.version:
            return []  # a newer fetch has overtaken it
        self.followers[follower] = before.after_fetch(event.index, event.version, position.end, now)
        _, since = self._parked.get(follower, (event, now))  # a repeated fetch does not restart the wait
        self._parked[follower] = (event, since)
        return self._answer_parked(now)

    def _answer_parked(self, now: float) -> list[Effect]:
        high, effects = self._position.high, []
        for follower, (event, since) in list(self._parked.items()):
            news = event.index < self._position.end or self._sent_high.get(follower, 0) < high
            if news or now - since >= self._patience.idle_s:
                del self._parked[follower]
                if since < now:  # it was caught up while it waited
                    self.followers[follower] = self.followers[follower].after_wait(now)
                self._sent_high[follower] = high
                effects.append(
                    SendReply(to=follower, answer=Entries(term=self.known.term, first=event.index, high=high))
                )
        return list[Effect](effects)
