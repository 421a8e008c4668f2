"""The states of RocketMQ's controller, derived from the in-sync set and the lag, for people (RocketMQ part 2)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from venus.model import counted
from venus.replication.in_sync import Progress
from venus.replication.records import Leadership, Member

#: A follower that is behind by less than this is about to be in sync.
NEAR_ENTRIES = 1000


class Mode(StrEnum):
    """How a business is replicated now."""

    SINGLE = "single"  # nobody follows
    ASYNC = "async"  # a follower is far behind
    SEMI_SYNC = "semi-sync"  # a follower is about to be in sync
    SYNC = "sync"  # at least one follower has all that is acknowledged


def mode(known: Leadership, followers: Mapping[Member, Progress], end: int) -> tuple[Mode, str]:
    """Return the state and why."""
    if len(known.in_sync) > 1:
        return Mode.SYNC, f"{len(known.in_sync)} of {len(known.replicas)} replicas are in sync"
    if not followers:
        return Mode.SINGLE, "no other replica follows"
    behind = min(end - progress.end for progress in followers.values())
    if behind <= NEAR_ENTRIES:
        return Mode.SEMI_SYNC, f"the nearest follower is {_entries(max(behind, 0))} behind"
    return Mode.ASYNC, f"the nearest follower is {_entries(behind)} behind"


def _entries(count: int) -> str:
    return counted(count, "entry", "entries")
