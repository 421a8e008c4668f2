"""A replica with an unfinished installation has no valid log: it gives no ballot and does not lead."""

from __future__ import annotations

from dataclasses import replace

from venus.replication.messages import (
    BallotRequest,
    BrokersRead,
    CopyInstalled,
    FetchReply,
    Lead,
    LogTrimmed,
    RecordRead,
    Reinstall,
    SendBallot,
    SendFetch,
    Swap,
)
from venus.replication.position import LogChanged, Position, ReplicationTimes, TermCache
from venus.replication.records import Leadership, LiveBroker, Member, Policy
from venus.replication.replica import Replica

A, B = (Member(broker=name, store="s") for name in "ab")
ALL_LIVE = {member: LiveBroker(member=member, address=f"{member.broker}:1") for member in (A, B)}
RECORD = Leadership(
    business="shop",
    term=2,
    leader=A,
    in_sync=frozenset({A}),
    replicas=("a", "b"),
    policy=Policy.AVAILABILITY,
    version=1,
)


def follower(*, whole: bool = True) -> Replica:
    replica = Replica(B, Position(whole=whole), patience=ReplicationTimes())
    replica.step(BrokersRead(brokers=ALL_LIVE), 0.0)
    return replica


def installing() -> Replica:
    replica = follower()
    assert replica.step(RecordRead(leadership=RECORD), 0.0) == [
        SendFetch(to=A, term=2, index=1, last_term=0, version=1)
    ]
    (effect,) = replica.step(FetchReply(leader=A, answer=LogTrimmed(term=2, start=50)), 0.1)
    assert isinstance(effect, Reinstall)
    return replica


def test_a_ballot_is_given_after_the_installation() -> None:
    replica = installing()
    assert replica.step(BallotRequest(sender=A, term=3), 0.2) == []

    log = LogChanged(start=50, end=50, durable_end=50, terms=TermCache(((2, 40),)))
    assert replica.step(CopyInstalled(log=log), 0.3) == [SendFetch(to=A, term=2, index=50, last_term=2, version=1)]
    (effect,) = replica.step(BallotRequest(sender=A, term=3), 0.4)

    assert isinstance(effect, SendBallot)
    assert (effect.ballot.end, effect.ballot.high) == (50, 49)


def test_a_broker_that_is_elected_meanwhile_resigns() -> None:
    replica = installing()
    chosen = replace(RECORD, term=3, leader=B, in_sync=frozenset({B}), unclean_terms=(3,), version=2)

    effects = replica.step(RecordRead(leadership=chosen), 0.2)
    assert not any(isinstance(effect, Lead) for effect in effects)
    (swap,) = replica.step(BrokersRead(brokers=ALL_LIVE), 0.2)

    assert isinstance(swap, Swap)
    assert (swap.after.term, swap.after.leader, swap.after.in_sync) == (4, None, frozenset())


def test_an_installation_continues_after_a_restart_and_with_another_leader() -> None:
    replica = follower(whole=False)
    (effect,) = replica.step(RecordRead(leadership=RECORD), 0.0)
    assert isinstance(effect, Reinstall)
    assert effect.leader == A

    other = Member(broker="c", store="s")
    (effect,) = replica.step(RecordRead(leadership=replace(RECORD, term=3, leader=other, version=2)), 1.0)
    assert isinstance(effect, Reinstall)
    assert effect.leader == other
