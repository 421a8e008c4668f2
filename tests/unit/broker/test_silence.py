"""A write that waits for a silent follower is refused in one line, but only if no other broker could help."""

from __future__ import annotations

from venus.replication.messages import FetchRequest, RecordRead
from venus.replication.position import LogChanged, Position, ReplicationTimes, TermCache
from venus.replication.records import Leadership, Member
from venus.replication.replica import Replica, silence_refusal

A, B, C = (Member(broker=name, store="s") for name in "abc")
TERMS = TermCache(((1, 1),))


def leader(*in_sync: Member, needed: int = 2) -> Replica:
    """Return a leader whose durable log ends at 6, while followers had 5 at time 10.0."""
    replica = Replica(A, Position(), patience=ReplicationTimes(), begins=True)
    known = Leadership(
        business="main",
        term=1,
        leader=A,
        in_sync=frozenset({A, *in_sync}),
        replicas=("a", "b", "c"),
        min_in_sync=needed,
        version=1,
    )
    replica.step(RecordRead(leadership=known), 0.0)
    replica.step(LogChanged(start=1, end=5, durable_end=5, terms=TERMS), 10.0)
    for member in in_sync:
        replica.step(FetchRequest(sender=member, term=1, index=5, last_term=1, version=1), 10.0)
    assert replica.high == 4
    return replica


def test_a_write_that_waits_is_refused_after_a_while() -> None:
    replica = leader(B)
    assert silence_refusal(replica, 100.0, 5.0) == ""  # no write waits
    replica.step(LogChanged(start=1, end=6, durable_end=6, terms=TERMS), 11.0)
    assert silence_refusal(replica, 14.9, 5.0) == ""
    said = "no answer from b for 5 s: 1 of 3 replicas is in sync without it, 2 are needed"
    assert silence_refusal(replica, 15.1, 5.0) == said
    replica.step(FetchRequest(sender=B, term=1, index=5, last_term=1, version=1), 15.2)
    assert silence_refusal(replica, 15.3, 5.0) == ""


def test_a_leader_that_can_continue_without_the_silent_follower_does() -> None:
    replica = leader(B, C)
    replica.step(LogChanged(start=1, end=6, durable_end=6, terms=TERMS), 11.0)
    replica.step(FetchRequest(sender=C, term=1, index=6, last_term=1, version=1), 15.0)
    assert silence_refusal(replica, 15.1, 5.0) == ""
    assert silence_refusal(replica, 21.0, 5.0) != ""  # now both are silent
