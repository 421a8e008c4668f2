"""Three replicas that receive everything at once: the shortest histories, message by message."""

from __future__ import annotations

from dataclasses import replace

from venus.replication.following import AHEAD_BYTES
from venus.replication.leading import BULK_S
from venus.replication.messages import (
    NO_LEASE,
    Advance,
    Append,
    BallotReceived,
    BrokersRead,
    Entries,
    FetchReply,
    FetchRequest,
    Lead,
    LeaseChanged,
    NotLeading,
    ReadRecords,
    RecordRead,
    RequestBallot,
    Retire,
    SendFetch,
    SendReply,
    Swap,
    SwapResult,
    Tick,
)
from venus.replication.position import LogChanged, Position, ReplicationTimes, TermCache
from venus.replication.records import Ballot, Leadership, LiveBroker, Member, Policy
from venus.replication.replica import Replica

A, B, C = (Member(broker=name, store="s") for name in "abc")
ALL_LIVE = {member: LiveBroker(member=member, address=f"{member.broker}:1") for member in (A, B, C)}
RECORD = Leadership(
    business="shop",
    term=1,
    leader=A,
    in_sync=frozenset({A, B, C}),
    replicas=("a", "b", "c"),
    min_in_sync=2,
    version=1,
)


def log(end: int, *, durable: int | None = None, term: int = 1, done: int = 0) -> LogChanged:
    terms = TermCache(((term, 1),)) if end > 1 else TermCache()
    return LogChanged(start=1, end=end, durable_end=durable or end, terms=terms, done=done)


def leader_of_three() -> Replica:
    replica = Replica(A, Position(), patience=ReplicationTimes(), begins=True)
    replica.step(BrokersRead(brokers=ALL_LIVE), 0.0)
    assert replica.step(RecordRead(leadership=RECORD), 0.0) == [Lead(term=1)]
    return replica


def build_fetch(follower: Member, index: int, *, version: int = 1) -> FetchRequest:
    return FetchRequest(sender=follower, term=1, index=index, last_term=1 if index > 1 else 0, version=version)


def test_an_entry_is_committed_once_every_in_sync_member_has_it_on_disk() -> None:
    replica = leader_of_three()
    replica.step(log(3, durable=1), 0.0)
    assert replica.step(build_fetch(B, 3), 0.1) == []
    assert replica.step(build_fetch(C, 3), 0.1) == []
    assert replica.high == 0

    effects = replica.step(log(3), 0.2)

    assert effects[0] == Advance(high=2)
    assert {effect.to for effect in effects if isinstance(effect, SendReply)} == {B, C}


def test_a_missing_follower_is_waited_for_until_the_coordinator_has_removed_it() -> None:
    replica = leader_of_three()
    replica.step(log(3), 0.0)
    replica.step(build_fetch(B, 3), 0.1)
    without_c = {A: ALL_LIVE[A], B: ALL_LIVE[B]}

    effects = replica.step(BrokersRead(brokers=without_c), 1.0)
    (swap,) = [effect for effect in effects if isinstance(effect, Swap)]
    assert swap.after.in_sync == {A, B}
    assert replica.high == 0

    stored = replace(swap.after, version=2)
    effects = replica.step(SwapResult(before=swap.before, after=swap.after, stored=stored), 1.1)
    assert Advance(high=2) in effects


def test_a_fetch_from_before_a_followers_removal_does_not_count_after_its_return() -> None:
    """The follower has removed its copy meanwhile; the leader may have missed the record without that follower."""
    replica = leader_of_three()
    replica.step(log(3), 0.0)
    replica.step(build_fetch(B, 3), 0.1)
    replica.step(build_fetch(C, 3), 0.1)
    replica.step(RecordRead(leadership=replace(RECORD, in_sync=frozenset({A, B}), version=2)), 0.2)
    back = replace(RECORD, in_sync=frozenset({A, B}), version=4)

    effects = replica.step(RecordRead(leadership=back), 0.3)
    effects += replica.step(BrokersRead(brokers=ALL_LIVE), 0.3)
    effects += replica.step(build_fetch(C, 3, version=1), 0.4)  # it was on its way for long
    assert not [effect for effect in effects if isinstance(effect, Swap)]

    replica.step(build_fetch(C, 1, version=4), 0.5)
    assert replica.step(build_fetch(C, 3, version=1), 0.6) == []  # overtaken by a newer fetch
    assert not [effect for effect in replica.step(Tick(), 0.7) if isinstance(effect, Swap)]

    replica.step(build_fetch(C, 3, version=4), 0.8)
    (swap,) = [effect for effect in replica.step(Tick(), 0.9) if isinstance(effect, Swap)]
    assert swap.after.in_sync == {A, B, C}


def test_a_follower_outside_the_in_sync_set_reports_a_newer_record() -> None:
    outside = replace(RECORD, in_sync=frozenset({A, C}))
    replica = Replica(B, Position(), patience=ReplicationTimes())
    replica.step(RecordRead(leadership=outside), 0.0)

    fetch = SendFetch(to=A, term=1, index=1, last_term=0, version=2)
    assert replica.step(RecordRead(leadership=replace(outside, version=2)), 0.1) == [fetch]
    assert replica.step(RecordRead(leadership=replace(RECORD, version=3)), 0.2) == []  # now it counts


def test_nothing_is_acknowledged_below_the_minimum_of_replicas() -> None:
    replica = leader_of_three()
    replica.step(RecordRead(leadership=replace(RECORD, in_sync=frozenset({A}), version=2)), 0.0)

    assert replica.step(log(3), 0.0) == []
    assert replica.refusal(0.0) == "1 of 3 replicas are in sync, 2 are needed"


def test_a_restarted_leader_requests_a_new_term() -> None:
    replica = Replica(A, Position(), patience=ReplicationTimes())

    assert replica.step(RecordRead(leadership=RECORD), 0.0) == []
    assert not replica.leads

    effects = replica.step(BrokersRead(brokers=ALL_LIVE), 0.1)
    assert [type(effect).__name__ for effect in effects] == ["RequestBallot", "RequestBallot"]
    (swap,) = replica.step(Tick(), 1.0)
    assert isinstance(swap, Swap)
    assert (swap.after.term, swap.after.leader, swap.after.in_sync, swap.after.last_in_sync) == (
        2,
        A,
        frozenset({A}),
        frozenset({B, C}),
    )


def test_a_term_in_a_log_is_not_used_again_after_the_coordinator_was_set_back() -> None:
    """Otherwise one index and term would have two contents, and logs that differ would count as equal."""
    replica = Replica(A, Position(), patience=ReplicationTimes())
    replica.step(log(9, term=7), 0.0)
    older = replace(RECORD, term=5, leader=B, version=9)
    replica.step(RecordRead(leadership=older), 0.0)
    without_b = {A: ALL_LIVE[A], C: ALL_LIVE[C]}

    effects = replica.step(BrokersRead(brokers=without_b), 0.1)
    assert [effect.to for effect in effects if isinstance(effect, RequestBallot)] == [C]
    ballot = Ballot(member=C, last_term=6, end=5, high=4)
    (swap,) = replica.step(BallotReceived(term=6, ballot=ballot), 0.2)

    assert isinstance(swap, Swap)
    assert (swap.after.term, swap.after.leader) == (8, A)


def test_no_broker_leads_in_a_term_that_its_log_has_from_another_leader() -> None:
    replica = Replica(A, Position(), patience=ReplicationTimes())
    replica.step(log(9, term=7), 0.0)
    replica.step(RecordRead(leadership=replace(RECORD, term=6, leader=B, version=9)), 0.0)

    assert replica.step(RecordRead(leadership=replace(RECORD, term=7, leader=A, version=10)), 0.1) == []
    assert not replica.leads
    assert replica.step(RecordRead(leadership=replace(RECORD, term=8, leader=A, version=11)), 0.2) == [Lead(term=8)]


def test_a_follower_appends_received_entries_and_reports_its_durable_end() -> None:
    replica = Replica(B, Position(), patience=ReplicationTimes())
    replica.step(BrokersRead(brokers=ALL_LIVE), 0.0)
    assert replica.step(RecordRead(leadership=RECORD), 0.0) == [
        SendFetch(to=A, term=1, index=1, last_term=0, version=1)
    ]

    answer = Entries(term=1, first=1, high=1, entries=(b"1", b"2"))
    assert replica.step(FetchReply(leader=A, answer=answer), 0.1) == [Append(order=1, first=1, entries=(b"1", b"2"))]
    assert replica.high == 0  # not before it is on this disk
    assert replica.step(log(3, done=1), 0.2) == [SendFetch(to=A, term=1, index=3, last_term=1, version=1)]
    effects = replica.step(FetchReply(leader=A, answer=Entries(term=1, first=3, high=2)), 0.3)
    assert effects == [Advance(high=2), SendFetch(to=A, term=1, index=3, last_term=1, version=1)]


LARGE = (bytes(AHEAD_BYTES), b"2")


def follower_that_fetches_ahead() -> Replica:
    """Return a follower that writes entries 1 and 2, and has requested those from 3 on."""
    replica = Replica(B, Position(), patience=ReplicationTimes())
    replica.step(BrokersRead(brokers=ALL_LIVE), 0.0)
    replica.step(RecordRead(leadership=RECORD), 0.0)
    assert replica.step(FetchReply(leader=A, answer=Entries(term=1, first=1, high=0, entries=LARGE)), 0.1) == [
        Append(order=1, first=1, entries=LARGE),
        SendFetch(to=A, term=1, index=1, last_term=0, version=1, start=3),
    ]
    return replica


def test_a_follower_prefetches_the_next_large_reply_while_it_writes_one() -> None:
    replica = follower_that_fetches_ahead()
    answer = Entries(term=1, first=3, high=2, entries=(b"3",))
    assert replica.step(FetchReply(leader=A, answer=answer), 0.2) == []
    assert replica.step(log(3, durable=1, done=1), 0.3) == [], "it is not on the disk yet"
    assert replica.high == 0
    assert replica.step(log(3, done=1), 0.4) == [
        Advance(high=2),
        Append(order=2, first=3, entries=(b"3",)),
        SendFetch(to=A, term=1, index=3, last_term=1, version=1, start=4),
    ]
    assert replica.step(FetchReply(leader=A, answer=Entries(term=1, first=4, high=2)), 0.5) == [], "nothing follows"
    assert replica.step(log(4, done=2), 0.6) == [SendFetch(to=A, term=1, index=4, last_term=1, version=1)]


def test_a_reply_that_comes_after_the_log_has_settled_is_appended_at_once() -> None:
    replica = follower_that_fetches_ahead()
    assert replica.step(log(3, done=1), 0.2) == [], "a fetch is open"
    appended, ahead = replica.step(FetchReply(leader=A, answer=Entries(term=1, first=3, high=0, entries=(b"3",))), 0.3)
    assert appended == Append(order=2, first=3, entries=(b"3",))
    assert ahead == SendFetch(to=A, term=1, index=3, last_term=1, version=1, start=4)


def test_prefetched_entries_are_dropped_with_the_log_the_leader_or_the_term() -> None:
    answer = FetchReply(leader=A, answer=Entries(term=1, first=3, high=2, entries=(b"3",)))
    replica = follower_that_fetches_ahead()
    replica.step(answer, 0.2)
    fetched = SendFetch(to=A, term=1, index=1, last_term=0, version=1)
    assert replica.step(log(1, done=1), 0.3) == [fetched], "an entry was damaged"

    replica = follower_that_fetches_ahead()
    replica.step(answer, 0.2)
    record = replace(RECORD, term=2, leader=C, version=2)
    assert replica.step(RecordRead(leadership=record), 0.3) == []
    assert replica.step(log(3, done=1), 0.4) == [SendFetch(to=C, term=2, index=3, last_term=1, version=2)]

    replica = follower_that_fetches_ahead()
    assert replica.step(replace(answer, answer=Entries(term=2, first=3, high=2, entries=(b"3",))), 0.2) == []
    assert replica.step(log(3, done=1), 0.3) == [SendFetch(to=A, term=1, index=3, last_term=1, version=1)]


def test_a_lost_connection_ends_a_prefetch() -> None:
    replica = follower_that_fetches_ahead()
    assert replica.step(FetchReply(leader=A, answer=None), 0.2) == []
    assert replica.step(log(3, done=1), 0.3) == [SendFetch(to=A, term=1, index=3, last_term=1, version=1)]


def test_a_leader_of_an_older_version_gets_no_second_prefetch() -> None:
    """Such a leader sends the entries that the follower is writing a second time."""
    replica = follower_that_fetches_ahead()
    assert replica.step(FetchReply(leader=A, answer=Entries(term=1, first=1, high=0, entries=LARGE)), 0.2) == []
    assert replica.step(log(3, done=1), 0.3) == [SendFetch(to=A, term=1, index=3, last_term=1, version=1)]
    answer = Entries(term=1, first=3, high=0, entries=LARGE)
    assert replica.step(FetchReply(leader=A, answer=answer), 0.4) == [Append(order=2, first=3, entries=LARGE)]


def test_a_prefetch_is_answered_at_once_and_counts_for_the_durable_entries() -> None:
    replica = leader_of_three()
    replica.step(log(5), 0.0)
    assert replica.step(replace(build_fetch(B, 3), start=5), 0.1) == [
        SendReply(to=B, answer=Entries(term=1, first=5, high=0))
    ]
    assert replica.leading is not None
    assert replica.leading.followers[B].end == 3
    replica.step(build_fetch(C, 5), 0.2)
    assert replica.high == 2


def test_a_prefetch_gets_a_large_reply_if_the_follower_catches_up_on_a_fast_connection() -> None:
    """What one in sync has to write delays acknowledgements, and a slow line would carry a large reply twice."""
    replica = leader_of_three()
    replica.step(log(9), 0.0)

    def is_bulk(follower: Member, index: int, now: float) -> bool:
        (reply,) = (
            effect
            for effect in replica.step(replace(build_fetch(follower, index, version=2), start=index + 2), now)
            if isinstance(effect, SendReply) and effect.to == follower
        )
        return reply.is_bulk

    without_c = replace(RECORD, in_sync=frozenset({A, B}), version=2)
    replica.step(RecordRead(leadership=without_c), 0.1)
    assert not is_bulk(C, 1, 1.0), "its line is not known"
    assert is_bulk(C, 3, 1.0 + BULK_S)
    assert not is_bulk(C, 5, 1.1 + 2 * BULK_S), "slow"
    assert not is_bulk(B, 1, 2.2)
    assert not is_bulk(B, 3, 2.3), "in sync"


def test_a_follower_soon_asks_a_leader_again_that_did_not_know_its_term() -> None:
    patience = ReplicationTimes()
    replica = Replica(B, Position(), patience=patience)
    replica.step(RecordRead(leadership=replace(RECORD, term=2, leader=C, version=2)), 0.0)

    assert replica.step(FetchReply(leader=C, answer=NotLeading(term=1)), 0.1) == [ReadRecords()]

    assert replica.step(Tick(), 0.1 + patience.idle_s / 2) == []
    asked = [effect.to for effect in replica.step(Tick(), 0.2 + patience.idle_s) if isinstance(effect, SendFetch)]
    assert asked == [C]


def test_an_older_leader_retires_when_it_sees_the_next_term() -> None:
    replica = leader_of_three()
    later = replace(RECORD, term=2, leader=B, in_sync=frozenset({B}), last_in_sync=frozenset({A, C}), version=2)

    effects = replica.step(RecordRead(leadership=later), 1.0)

    assert effects == [Retire(leader=B), SendFetch(to=B, term=2, index=1, last_term=0, version=2)]


def test_a_change_that_may_have_happened_is_read_again_and_counts_until_then() -> None:
    replica = leader_of_three()
    replica.step(log(2), 0.0)
    without_c = {A: ALL_LIVE[A], B: ALL_LIVE[B]}
    (swap,) = [e for e in replica.step(BrokersRead(brokers=without_c), 1.0) if isinstance(e, Swap)]

    effects = replica.step(SwapResult(before=swap.before, after=swap.after, stored=None, certain=False), 2.0)

    assert effects == [ReadRecords()]
    again = [effect for effect in replica.step(Tick(), 4.0) if isinstance(effect, Swap)]
    assert again == [swap]


def test_a_suspended_leader_acknowledges_nothing_before_its_record_is_swapped_again() -> None:
    """Under availability: its clock stood still, so its old lease seems to hold while others may hold an election."""
    alone = replace(RECORD, in_sync=frozenset({A}), min_in_sync=1, policy=Policy.AVAILABILITY)
    replica = Replica(A, Position(), patience=ReplicationTimes(), begins=True)
    replica.step(BrokersRead(brokers={A: ALL_LIVE[A]}), 0.0)
    replica.step(RecordRead(leadership=alone), 0.0)
    replica.step(LeaseChanged(until=3.0), 0.0)
    replica.step(log(2), 0.1)

    def confirm_swap(now: float, version: int) -> list[object]:
        (swap,) = [effect for effect in replica.step(Tick(), now) if isinstance(effect, Swap)]
        stored = replace(swap.after, version=version)
        return list(replica.step(SwapResult(before=swap.before, after=swap.after, stored=stored), now))

    assert Advance(high=1) in confirm_swap(0.2, 2)
    assert replica.refusal(0.3) == ""

    replica.step(LeaseChanged(until=NO_LEASE), 0.4)  # an hour later
    assert replica.refusal(0.4) == "the coordinator does not answer, so another broker may lead by now"
    assert replica.step(LeaseChanged(until=3.4), 0.4) == []
    assert Advance(high=2) not in replica.step(log(3), 0.5)
    assert replica.refusal(0.5) != ""

    assert Advance(high=2) in confirm_swap(0.6, 3)
    assert replica.refusal(0.7) == ""
