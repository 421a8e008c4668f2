"""Small parts of the replicas: the memory kept for followers, and the placement of replicas."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from venus.broker.pipeline.shared_log import NO_BACKLOG, Backlog
from venus.broker.replicas.host import AWAIT_SUCCESSOR_S, LeaderRequests
from venus.broker.replicas.placement import ClusterView, ReplicaPlacement
from venus.broker.replicas.replicated_logs import RecentEntries
from venus.replication.messages import HandOverRequest
from venus.replication.records import Leadership, LiveBroker, Member

A, B, C, D = (LiveBroker(member=Member(broker=name, store="s"), address=f"{name}:1") for name in "abcd")


def test_recent_entries_are_read_in_frames() -> None:
    recent = RecentEntries(100)
    recent.extend(5, [b"a" * 10, b"b" * 10, b"c" * 10])
    assert recent.read(5, 25) == (b"a" * 10, b"b" * 10)
    assert recent.read(7, 1) == (b"c" * 10,), "at least one, however large"
    assert recent.read(8, 25) == ()
    assert recent.read(4, 25) is None
    assert recent.read(9, 25) is None


def test_recent_entries_are_limited_in_bytes_and_the_newest_are_kept() -> None:
    recent = RecentEntries(25)
    recent.extend(1, [b"x" * 10] * 4)
    assert recent.read(2, 100) is None
    assert recent.read(3, 100) == (b"x" * 10,) * 2


def test_truncated_entries_are_replaced() -> None:
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


def test_a_business_gets_its_replicas_as_brokers_join() -> None:
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
    made = [wanted.new_record(f"business {n}", A.member, view, 1) for n in range(40)]
    assert Counter(record.successor or "a" for record in made) == dict.fromkeys("abcd", 10)
    assert {record.replicas[1] for record in made} == set("bcd")


class Requests:
    """Requests for other leaders at broker a, which leads one business alone."""

    def __init__(self, *living: LiveBroker) -> None:
        self.now, self.given, self.swapped = 0.0, list[HandOverRequest](), list[Leadership]()
        self.known = replace(ReplicaPlacement().new_record("shop", A.member, ClusterView([A, B, C]), 1), successor="b")
        self.view = ClusterView(living)
        self._requests = LeaderRequests(
            A.member, ReplicaPlacement(), cast(Any, self), self._record_request, lambda: self.now, rebalance=False
        )

    def swap(self, _: Leadership, after: Leadership) -> None:
        self.swapped.append(after)

    def _record_request(self, _: str, event: HandOverRequest) -> None:
        self.given.append(event)

    def execute(self, now: float = 0.0) -> list[str]:
        """Return the leaders that are requested after one check."""
        self.now = now
        replica = SimpleNamespace(known=self.known, leading=SimpleNamespace(handing_over=None))
        self._requests.execute({"shop": cast(Any, replica)}, {"shop": self.known}, self.view)
        return [after.successor for after in self.swapped]


def test_a_requested_leader_has_time_to_catch_up() -> None:
    requests = Requests(A, B, C)
    assert requests.execute(100.0) == []
    assert requests.execute(100.0 + AWAIT_SUCCESSOR_S - 1) == []
    requests.known = replace(requests.known, in_sync=frozenset({A.member, B.member}))
    assert requests.execute(100.0 + AWAIT_SUCCESSOR_S) == []
    assert requests.given == [HandOverRequest(to=B.member)]

    late = Requests(A, B, C)
    late.execute(100.0)
    assert late.execute(100.0 + AWAIT_SUCCESSOR_S) == [""]
    assert late.given == []


def test_the_request_for_a_leader_that_is_gone_is_withdrawn_at_once() -> None:
    assert Requests(A, C).execute() == [""]
    assert Requests(A, replace(B, draining=True), C).execute() == [""]
    assert Requests(replace(A, draining=True), B, C).execute() == [""]


def test_a_backlog_is_kept_up_to_its_limit() -> None:
    backlog = Backlog(needed_from=10, bytes_max=1000)
    assert not backlog.must_keep(9, 0)
    assert backlog.must_keep(10, 1000)
    assert not backlog.must_keep(10, 1001)
    assert not NO_BACKLOG.must_keep(1, 0)


def test_a_business_on_one_broker_needs_no_other_until_enough_are_in_sync() -> None:
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
