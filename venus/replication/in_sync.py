"""In-sync set and high watermark: how the set shrinks and grows (PacificA, Kafka, RocketMQ's controller).

An entry is safe once it is on the disks of every member that may lead next. While a change of the in-sync set is on its
way to the coordinator, either of the two sets may hold, so the entry must be on the disks of both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from venus.model import count_phrase
from venus.replication.records import Leadership, Member

#: A follower that is behind by less than this is about to be in sync.
NEAR_ENTRIES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerProgress:
    """Progress of a follower, as its leader knows it."""

    end: int = 0  # the first index that it does not have on disk
    version: int = 0  # of the record that it knew at its last fetch
    heard_at: float = 0.0
    leader_end: int = 0  # end of the leader's log at its last fetch
    caught_up_at: float = 0.0  # when it last had the whole log of that time
    moved_at: float = 0.0  # when it last had the whole log, or more than before

    def after_fetch(self, end: int, version: int, leader_end: int, now: float) -> FollowerProgress:
        """Return the progress after a fetch of the follower."""
        if end >= leader_end:
            caught_up_at = now
        elif self.leader_end and end >= self.leader_end:
            caught_up_at = self.heard_at
        else:
            caught_up_at = self.caught_up_at
        return FollowerProgress(
            end=end,
            version=version,
            heard_at=now,
            leader_end=leader_end,
            caught_up_at=caught_up_at,
            moved_at=now if end >= leader_end or end > self.end else self.moved_at,
        )

    def after_wait(self, now: float) -> FollowerProgress:
        """Return the progress of a follower that had everything until now."""
        return replace(self, caught_up_at=now, moved_at=now)


def high_watermark(
    own_end: int, known: Leadership, asked_for: Leadership | None, ends: Mapping[Member, int], before: int
) -> int:
    """Return the newest index that is safe; `before` is what it was, and it never falls.

    `own_end` is the end of what is on the leader's disk; `asked_for` is a change without an answer yet.
    """
    sets = [known.in_sync] if asked_for is None else [known.in_sync, asked_for.in_sync]
    if min(map(len, sets)) < known.min_in_sync:
        return before
    followers = frozenset[Member]().union(*sets) - {known.leader}
    safe_end = min([own_end, *(ends.get(member, 0) for member in followers)])
    return max(before, safe_end - 1)


def with_members(known: Leadership, gone: frozenset[Member], back: frozenset[Member]) -> Leadership:
    """Return the leadership without members that fell behind and with those that have caught up.

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

    One of them must be known to be complete. A leader cannot know whether the others reach each other, so True is a
    reason to let them try, and no proof.
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
