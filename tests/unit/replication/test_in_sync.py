"""Which followers a leader counts as reached, and when it lets another broker lead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from venus.replication import leading
from venus.replication.leading import FollowerProgress
from venus.replication.messages import BrokersRead, FetchRequest, RecordRead, Swap, Tick
from venus.replication.position import LogChanged, Position, ReplicationTimes, TermCache
from venus.replication.records import Leadership, LiveBroker, Member
from venus.replication.replica import Replica

A, B, C, D = (Member(broker=name, store="s") for name in "abcd")
RECORD = Leadership(
    business="shop", term=1, leader=A, in_sync=frozenset({A, B, C}), replicas=("a", "b", "c"), min_in_sync=2, version=1
)
SILENCE_S = 2.0


@pytest.mark.parametrize(
    ("record", "live", "moving", "is_cut_off"),
    [
        pytest.param(RECORD, {A, B, C}, set(), True, id="none is reached"),
        pytest.param(RECORD, {A, B, C}, {B}, False, id="one is enough"),
        pytest.param(RECORD, {A, B}, set(), False, id="one alone could not acknowledge either"),
        pytest.param(RECORD, {A}, set(), False, id="the others are dead"),
        pytest.param(replace(RECORD, min_in_sync=1), {A, B, C}, set(), False, id="the leader is enough"),
        pytest.param(replace(RECORD, replicas=("a", "b")), {A, B, C}, set(), False, id="one is no replica any more"),
        pytest.param(
            replace(RECORD, in_sync=frozenset({A}), last_in_sync=frozenset({B})),
            {A, B, C},
            set(),
            True,
            id="one that left last has everything",
        ),
        pytest.param(replace(RECORD, in_sync=frozenset({A})), {A, B, C}, set(), False, id="no other has everything"),
        pytest.param(
            replace(RECORD, in_sync=frozenset({A}), last_in_sync=frozenset({D})),
            {A, B, C},
            set(),
            False,
            id="who has everything is another member",
        ),
    ],
)
def test_a_leader_is_cut_off_if_its_unreached_followers_could_continue(
    record: Leadership, live: set[Member], moving: set[Member], is_cut_off: bool
) -> None:
    assert leading.is_cut_off(record, frozenset(live), frozenset(moving)) is is_cut_off


def test_a_fetch_is_progress_if_it_requests_more_or_has_everything() -> None:
    first = FollowerProgress().after_fetch(3, 1, 5, 1.0)
    again = first.after_fetch(3, 1, 5, 2.0)
    further = again.after_fetch(4, 1, 9, 3.0)
    level = further.after_fetch(9, 1, 9, 4.0).after_fetch(9, 1, 9, 5.0)

    assert [found.moved_at for found in (first, again, further, level)] == [1.0, 1.0, 3.0, 5.0]


def test_a_prefetching_follower_keeps_up_if_it_gets_all_existing_entries() -> None:
    """At each fetch the log is longer than its durable part, and the entries of the previous one are being written."""
    progress, fetched = FollowerProgress(), 1
    for n in range(2, 20):
        end = 10 * n
        progress = progress.after_fetch(fetched, 1, end, float(n), ahead=n > 2)
        fetched = end - 10
    assert progress.caught_up_at >= 15


def leader() -> Replica:
    replica = Replica(A, Position(), patience=ReplicationTimes(silence_s=SILENCE_S), begins=True)
    live = {member: LiveBroker(member=member, address=f"{member.broker}:1") for member in (A, B, C)}
    replica.step(BrokersRead(brokers=live), 0.0)
    replica.step(RecordRead(leadership=RECORD), 0.0)
    replica.step(LogChanged(start=1, end=3, durable_end=3, terms=TermCache(((1, 1),))), 0.0)
    return replica


def wait(replica: Replica, since: float, until: float) -> list[Swap]:
    """Advance the time in small steps; return the requested changes of the record."""
    found, now = list[Swap](), since
    while now < until:
        now += 0.2
        found += [effect for effect in replica.step(Tick(), now) if isinstance(effect, Swap)]
    return found


def test_a_leader_that_no_follower_answers_resigns_and_keeps_the_in_sync_set() -> None:
    replica = leader()

    assert wait(replica, 0.0, SILENCE_S - 0.3) == []
    (swap,) = wait(replica, SILENCE_S, SILENCE_S + 0.3)
    assert swap.after == replace(RECORD, term=2, leader=None)


def test_a_leader_whose_process_stood_still_listens_to_its_followers_first() -> None:
    replica = leader()
    later = 4 * SILENCE_S

    assert [effect for effect in replica.step(Tick(), later) if isinstance(effect, Swap)] == []
    for member in (B, C):
        replica.step(FetchRequest(sender=member, term=1, index=3, last_term=1, version=1), later + 0.1)
    assert wait(replica, later, later + SILENCE_S - 0.3) == []


def test_a_follower_that_takes_no_entries_leaves_while_the_other_continues() -> None:
    replica, now = leader(), 0.0
    swaps = list[Swap]()
    while now < SILENCE_S + 0.5:
        replica.step(FetchRequest(sender=B, term=1, index=3, last_term=1, version=1), now)
        replica.step(FetchRequest(sender=C, term=1, index=2, last_term=1, version=1), now)
        swaps += wait(replica, now, now + 0.2)
        now += 0.2

    assert [swap.after.in_sync for swap in swaps] == [{A, B}]
