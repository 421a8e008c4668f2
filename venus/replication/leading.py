"""Role of a leader: it replies to fetches, moves the high watermark, maintains the in-sync set, hands over.

An entry is safe once it is on the disks of every member that may lead next (PacificA, Kafka, RocketMQ's controller).
While a change of the in-sync set is on its way to the coordinator, either of the two sets may hold, so the entry must
be on the disks of both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from venus.model import count_phrase
from venus.replication import messages as m
from venus.replication.position import Position, ReplicationTimes, find_divergence
from venus.replication.records import NEAR_ENTRIES, Leadership, Member, Policy

#: A follower that is not in sync and fetches ahead gets large replies while its fetches are at most this far apart. On
#: a slower line a large reply could take longer than `fetch_s`, and the fetch would be repeated.
BULK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerProgress:
    """Progress of a follower, as its leader knows it."""

    end: int = 0  # the first index that it does not have on disk
    version: int = 0  # of the record that it knew at its last fetch
    heard_at: float = 0.0
    leader_end: int = 0  # end of the leader's log at the fetch that counts (see `after_fetch`)
    leader_end_at: float = 0.0  # the time of that fetch
    caught_up_at: float = 0.0  # the last time for which it is known to have had the whole log
    moved_at: float = 0.0  # when it last had the whole log, or had more of it than at the fetch before

    def after_fetch(
        self, end: int, version: int, leader_end: int, now: float, *, ahead: bool = False
    ) -> FollowerProgress:
        """Return the progress after a fetch of the follower.

        A fetch `ahead` is sent before the disk has what the previous fetch returned, so the leader's end at the
        previous fetch still counts.
        """
        if end >= leader_end:
            caught_up_at = now
        elif self.leader_end and end >= self.leader_end:
            caught_up_at = self.leader_end_at
        else:
            caught_up_at = self.caught_up_at
        if ahead and end < self.leader_end:
            leader_end, leader_end_at = self.leader_end, self.leader_end_at
        else:
            leader_end_at = now
        return FollowerProgress(
            end=end,
            version=version,
            heard_at=now,
            leader_end=leader_end,
            leader_end_at=leader_end_at,
            caught_up_at=caught_up_at,
            moved_at=now if end >= leader_end or end > self.end else self.moved_at,
        )

    def after_wait(self, now: float) -> FollowerProgress:
        """Return the progress of a follower that had every entry until now."""
        return replace(self, caught_up_at=now, moved_at=now)


def high_watermark(
    own_end: int, known: Leadership, asked_for: Leadership | None, ends: Mapping[Member, int], before: int
) -> int:
    """Return the newest index on the disks of all members that may lead next; `before` if too few are in sync.

    `before` is the previous high watermark, which never falls; `own_end` is the end of the log on the leader's disk;
    `asked_for` is a requested change of the record that has no answer yet.
    """
    sets = [known.in_sync] if asked_for is None else [known.in_sync, asked_for.in_sync]
    if min(map(len, sets)) < known.min_in_sync:
        return before
    followers = frozenset[Member]().union(*sets) - {known.leader}
    safe_end = min([own_end, *(ends.get(member, 0) for member in followers)])
    return max(before, safe_end - 1)


def with_members(known: Leadership, gone: frozenset[Member], back: frozenset[Member]) -> Leadership:
    """Return the leadership without the members that lag too far, and with the members that have caught up.

    A member that leaves a set that is then too small stays complete, because nothing is acknowledged from now on. Once
    the set is large enough again, such members are dropped: entries are acknowledged without them.
    """
    inside = (known.in_sync - gone) | back
    left = frozenset[Member]() if len(inside) >= known.min_in_sync else (known.last_in_sync | gone) - inside
    return replace(known, in_sync=inside, last_in_sync=left)


def followers_keeping_up(
    followers: Mapping[Member, FollowerProgress], waiting: Collection[Member], now: float, lag_s: float
) -> frozenset[Member]:
    """Return the followers that were caught up within `lag_s`, including those that wait for the next entry."""
    return frozenset(
        member for member, progress in followers.items() if member in waiting or now - progress.caught_up_at <= lag_s
    )


def moving_followers(
    followers: Mapping[Member, FollowerProgress], waiting: Collection[Member], since: float
) -> frozenset[Member]:
    """Return the followers that have made progress since a time, including those that wait for the next entry.

    A fetch alone is no progress: if replies get lost, the same fetch is repeated.
    """
    return frozenset(
        member for member, progress in followers.items() if member in waiting or progress.moved_at >= since
    )


def is_cut_off(known: Leadership, live: frozenset[Member], moving: frozenset[Member]) -> bool:
    """Whether a leader reaches too few followers, while the living brokers without it could acknowledge.

    One of the brokers that it does not reach must be known to be complete. A leader cannot know whether the others
    reach each other, so True is a reason to let them try, and no proof.
    """
    others = frozenset(member for member in live if member.broker in known.replicas) - {known.leader}
    if len(others & moving) + 1 >= known.min_in_sync or len(others) < known.min_in_sync:
        return False
    return bool((others - moving) & known.candidates)


def members_behind(known: Leadership, present: frozenset[Member]) -> frozenset[Member]:
    """Return the members that are no longer replicas, or not `present` (alive and keeping up)."""
    return frozenset(
        member
        for member in known.in_sync
        if member != known.leader and (member not in present or member.broker not in known.replicas)
    )


def followers_in_sync(
    known: Leadership,
    followers: Mapping[Member, FollowerProgress],
    present: frozenset[Member],
    high: int,
    term_start: int,
) -> frozenset[Member]:
    """Return followers outside the set that have all that is safe, and the first entry of the leader's term.

    Fetches from before the follower knew this record do not count: it may have been removed since, with all its data,
    and added again.
    """
    return frozenset(
        member
        for member, progress in followers.items()
        if member not in known.in_sync
        and member in present
        and member.broker in known.replicas
        and progress.version >= known.version
        and progress.end > high
        and progress.end > term_start
    )


class ReplicationMode(StrEnum):
    """Replication state of a business, derived from the in-sync set and the lag (RocketMQ part 2); for status."""

    SINGLE = "single"  # no follower
    ASYNC = "async"  # a follower is far behind
    SEMI_SYNC = "semi-sync"  # a follower is about to be in sync
    SYNC = "sync"  # at least one follower has everything acknowledged


def replication_mode(
    known: Leadership, followers: Mapping[Member, FollowerProgress], end: int
) -> tuple[ReplicationMode, str]:
    """Return the replication state and its reason."""
    if len(known.in_sync) > 1:
        return ReplicationMode.SYNC, f"{len(known.in_sync)} of {len(known.replicas)} replicas are in sync"
    if not followers:
        return ReplicationMode.SINGLE, "no other replica follows"
    behind = min(end - progress.end for progress in followers.values())
    if behind <= NEAR_ENTRIES:
        return ReplicationMode.SEMI_SYNC, f"the nearest follower is {_format_entries(max(behind, 0))} behind"
    return ReplicationMode.ASYNC, f"the nearest follower is {_format_entries(behind)} behind"


def _format_entries(count: int) -> str:
    return count_phrase(count, "entry", "entries")


class Leading:
    """State of a replica that leads in one term. `followers` has the progress of each follower."""

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
        self._parked: dict[Member, tuple[m.FetchRequest, float]] = {}  # fetches without anything to send yet
        self._early: dict[Member, m.FetchRequest] = {}  # fetches from before the log had the first entry of this term
        self._stays_until = stays_until  # no resignation before this time: it has resigned recently
        self._ticked_at = self._listens_since = now
        self._sent_high: dict[Member, int] = {}  # the high watermark last sent to each follower

    # -- the record ------------------------------------------------------------------------------------------------

    def on_record(self, leadership: Leadership) -> None:
        """Handle a newer record of the same term: it shows whether a requested change was made."""
        self.known = leadership
        self._requested = None

    def on_swap_result(self, event: m.SwapResult) -> None:
        """Handle the result of a requested change; its success proves that no other leader was elected."""
        if event.stored is not None and event.after == self._requested and self._asked_confirms:
            self.confirmed = True

    def on_lease_gap(self) -> None:
        """Require one more swap of the record: without a lease, others may have begun an unclean election."""
        self.confirmed = self._asked_confirms = False

    def tick(self, live: frozenset[Member] | None, now: float) -> list[m.Effect]:
        """Maintain the in-sync set, reply to waiting followers, hand over.

        A change of the record whose result is uncertain stays pending: the leader requests the same change again until
        a newer record arrives.
        """
        if now - self._ticked_at > self._patience.silence_s / 4:
            self._listens_since = now  # the process was suspended: fetches sent during that time arrive now
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
            return [*effects, m.Swap(before=self.known, after=self._requested)]
        wanted = None if live is None or not self._has_begun else self._wanted_record(live, now)
        if wanted is None:
            return effects
        self._requested, self._asked_at, self._asked_confirms = wanted, now, True
        return [*effects, m.Swap(before=self.known, after=wanted)]

    def _wanted_record(self, live: frozenset[Member], now: float) -> Leadership | None:
        """Return the record that the leader should request now; None = no change."""
        known, position = self.known, self._position
        successor = self.handing_over
        if successor is not None and successor in known.in_sync and self._has_all(successor):
            return replace(known, term=known.term + 1, leader=successor)
        waiting = [follower for follower, (event, _) in self._parked.items() if event.index >= position.end]
        reached = self._reachable_members(live, waiting, now)
        present = reached & followers_keeping_up(self.followers, waiting, now, self._patience.lag_s)
        if now >= self._stays_until and is_cut_off(known, live, reached):
            return replace(known, term=known.term + 1, leader=None)
        gone = members_behind(known, present)
        term_start = position.terms.starts[-1][1]
        back = followers_in_sync(known, self.followers, present, position.high, term_start)
        if not gone and not back:
            return None if self.confirmed or known.policy is Policy.CONSISTENCY else known
        return with_members(known, gone, back)

    def _reachable_members(self, live: frozenset[Member], waiting: list[Member], now: float) -> frozenset[Member]:
        """Return the living members that are not silent; all of them until this leader has listened for long enough."""
        since = now - self._patience.silence_s
        if since <= self._listens_since:
            return live
        return live & moving_followers(self.followers, waiting, since)

    def hand_over(self, to: Member, now: float) -> list[m.Effect]:
        """Refuse proposals until the successor has every entry and leads, or the hand-over times out."""
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
        """Return the end of the log on a follower's disk, as far as it is known."""
        return self.followers.get(member, FollowerProgress()).end

    def _has_all(self, member: Member) -> bool:
        """Return whether a follower has every entry of this log on disk."""
        position = self._position
        return self._end_of(member) >= position.end and position.durable_end >= position.end

    @property
    def _has_begun(self) -> bool:
        """Whether the log has the first entry of this term: all earlier orders to it are executed by then."""
        return self._position.terms.newest == self.known.term

    # -- the log ---------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[m.Effect]:
        """Move the high watermark as far as the disks of the in-sync set allow."""
        position = self._position
        if not self._has_begun:
            return []
        ends = {member: progress.end for member, progress in self.followers.items()}
        high = high_watermark(position.durable_end, self.known, self._requested, ends, position.high)
        if high <= position.high:
            return []
        position.high = high
        return [m.Advance(high=high), *self._answer_parked(now)]

    def on_log_changed(self, now: float) -> list[m.Effect]:
        """Send new entries to the followers that wait for them."""
        effects: list[m.Effect] = []
        if self._early and self._has_begun:
            early, self._early = self._early, {}
            for event in early.values():
                effects += self.on_fetch(event, now)
        return [*effects, *self._answer_parked(now)]

    def on_fetch(self, event: m.FetchRequest, now: float) -> list[m.Effect]:
        """Handle a fetch: record the follower's progress, and reply now or when there is something to send."""
        position, follower = self._position, event.sender
        if not self._has_begun:
            self._early[follower] = event
            return []
        if event.index < position.start:
            return [m.SendReply(to=follower, answer=m.LogTrimmed(term=self.known.term, start=position.start))]
        parted = find_divergence(position.terms, position.end, event.index, event.last_term)
        if parted is not None:
            known_term, end = parted
            answer = m.LogsDiverge(
                term=self.known.term, index=event.index, last_term=event.last_term, known_term=known_term, end=end
            )
            return [m.SendReply(to=follower, answer=answer)]
        before = self.followers.get(follower, FollowerProgress())
        if event.version < before.version:
            return []  # a newer fetch has overtaken it
        ahead = bool(event.start)
        self.followers[follower] = before.after_fetch(event.index, event.version, position.end, now, ahead=ahead)
        if ahead:  # at once, even without entries: the next fetch reports what is on the follower's disk by then
            self._parked.pop(follower, None)
            entries = m.Entries(term=self.known.term, first=event.start, high=position.high)
            is_bulk = follower not in self.known.in_sync and now - before.heard_at <= BULK_S
            return [m.SendReply(to=follower, answer=entries, is_bulk=is_bulk)]
        _, since = self._parked.get(follower, (event, now))  # a repeated fetch does not restart the wait
        self._parked[follower] = (event, since)
        return self._answer_parked(now)

    def _answer_parked(self, now: float) -> list[m.Effect]:
        """Reply to waiting fetches for which there is something to send, or that have waited long enough."""
        high, effects = self._position.high, []
        for follower, (event, since) in list(self._parked.items()):
            news = event.index < self._position.end or self._sent_high.get(follower, 0) < high
            if news or now - since >= self._patience.idle_s:
                del self._parked[follower]
                if since < now:  # it was caught up while it waited
                    self.followers[follower] = self.followers[follower].after_wait(now)
                self._sent_high[follower] = high
                effects.append(
                    m.SendReply(to=follower, answer=m.Entries(term=self.known.term, first=event.index, high=high))
                )
        return list[m.Effect](effects)
