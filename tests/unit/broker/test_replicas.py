"""Small parts of the replicas: what is kept in memory for followers, and where replicas are placed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from venus.broker.pipeline.shared_log import NO_BACKLOG, Backlog
from venus.broker.replicas.placement import ClusterView, ReplicaPlacement
from venus.broker.replicas.replicated_logs import RecentEntries
from venus.replication.records import LiveBroker, Member

A, B, C, D = (LiveBroker(member=Member(broker=name, store="s"), address=f"{name}:1") for name in "abcd")


def test_recent_entries_are_taken_in_frames() -> None:
    recent = RecentEntries(100)
    recent.extend(5, [b"a" * 10, b"b" * 10, b"c" * 10])
    assert recent.read(5, 25) == (b"a" * 10, b"b" * 10)
    assert recent.read(7, 1) == (b"c" * 10,), "at least one, however large"
    assert recent.read(8, 25) == ()
    assert recent.read(4, 25) is None
    assert recent.read(9, 25) is None


def test_recent_entries_are_bounded_in_bytes_and_keep_the_newest() -> None:
    recent = RecentEntries(25)
    recent.extend(1, [b"x" * 10] * 4)
    assert recent.read(2, 100) is None
    assert recent.read(3, 100) == (b"x" * 10,) * 2


def test_entries_that_were_taken_back_are_replaced() -> None:
    recent = RecentEntries(100)
    recent.extend(1, [b"1", b"2", b"3"])
    recent.truncate(2)
    assert recent.read(2, 10) == ()
    recent.extend(2, [b"two"])
    assert recent.read(1, 10) == (b"1", b"two")
    recent.extend(2, [b"other"])
    assert recent.read(1, 10) == (b"1", b"other")
    recent.extend(9, [b"9"])
    assert recent.read(1, 10) is None, "a gap is no run"
    assert recent.read(9, 10) == (b"9",)


def test_a_business_gets_its_replicas_as_brokers_come() -> None:
    wanted = ReplicaPlacement(replicas=3, min_in_sync=2)
    first = wanted.new_record("shop", A.member, ClusterView([A]), 1)
    assert (first.leader, first.in_sync, first.replicas) == (A.member, frozenset({A.member}), ("a",))
    assert wanted.add_missing(first, ClusterView([A])) is None
    grown = wanted.add_missing(first, ClusterView([A, B, C, D]))
    assert grown is not None
    assert len(set(grown.replicas)) == 3
    assert grown.replicas[0] == "a"
    assert wanted.add_missing(grown, ClusterView([A, B, C, D])) is None


def test_businesses_are_spread_over_the_brokers() -> None:
    wanted = ReplicaPlacement(replicas=2, min_in_sync=2)
    view = ClusterView([A, B, C, D])
    made = [wanted.new_record(f"business {n}", A.member, view, 1).replicas for n in range(40)]
    assert Counter(leader for leader, _ in made) == dict.fromkeys("abcd", 10)
    assert len(set(made)) > 4


def test_a_backlog_is_kept_up_to_its_limit() -> None:
    backlog = Backlog(needed_from=10, bytes_max=1000)
    assert not backlog.must_keep(9, 0)
    assert backlog.must_keep(10, 1000)
    assert not backlog.must_keep(10, 1001)
    assert not NO_BACKLOG.must_keep(1, 0)


def test_a_business_that_one_broker_had_alone_needs_no_other_until_enough_are_in_sync() -> None:
    wanted = ReplicaPlacement(replicas=3, min_in_sync=2)
    alone = wanted.joining_record("shop", A.member, 1)
    assert (alone.min_in_sync, alone.min_in_sync_wanted) == (1, 2)
    assert wanted.next_record(alone, ClusterView([A])) is None

    grown = wanted.next_record(alone, ClusterView([A, B]))
    assert grown is not None
    assert grown.min_in_sync == 1

    raised = wanted.next_record(replace(grown, in_sync=frozenset({A.member, B.member})), ClusterView([A, B]))
    assert raised is not None
    assert (raised.min_in_sync, raised.min_in_sync_wanted) == (2, 0)
    assert wanted.next_record(raised, ClusterView([A, B])) is None
    assert ReplicaPlacement(replicas=3, min_in_sync=1).joining_record("shop", A.member, 1).min_in_sync_wanted == 0
