"""A leader whose write waits for a follower that says nothing: how long, and in which words it is refused then. Pure.

The follower leaves the in-sync set once it has lagged for `lag_s`, if the coordinator takes that change and enough
members are left. Until then, or without the coordinator for ever, writers would wait without an answer.
"""

from __future__ import annotations

from venus.replication.replica import Replica


def refusal(replica: Replica, now: float, silent_s: float) -> str:
    """Return why nothing can be written now; empty = it can, or it may still be answered.

    What was proposed stays proposed: it is acknowledged when it is asked for again, once the follower is back.
    """
    known, leading, position = replica.known, replica.leading, replica.position
    if known is None or leading is None or leading.handing_over is not None or position.end <= position.high + 1:
        return ""  # nothing waits
    silent = [
        member.broker
        for member, progress in leading.followers.items()
        if member in known.in_sync and now - max(progress.heard_at, progress.caught_up_at) > silent_s
    ]
    if not silent or len(known.in_sync) - len(silent) >= known.min_in_sync:
        return ""  # it goes on without them soon
    names = ", ".join(sorted(silent))
    heard = len(known.in_sync) - len(silent)
    return (
        f"nothing was heard of {names} for {silent_s:g} s: {heard} of {len(known.replicas)} replicas "
        f"{'are' if heard != 1 else 'is'} in sync without it, {known.min_in_sync} are needed"
    )
