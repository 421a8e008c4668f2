"""Ends of micro-batches: whole cuts, limits, and at least one step."""

from __future__ import annotations

import time
from collections import deque
from typing import cast

import pytest

from venus.rpc.subscriber import Subscriber
from venus.spark import streaming_plan
from venus.spark.streaming_plan import BatchLimit, BatchPlanner, IncrementMark, boundary
from venus.wire import broker_pb2, change_pb2


def marks(*spec: tuple[int, int, bool]) -> deque[IncrementMark]:
    """Return marks: rows, bytes, and whether the cut ends."""
    found: deque[IncrementMark] = deque()
    end = 0
    for rows, nbytes, cut_end in spec:
        end += rows
        found.append(IncrementMark(end=end, rows=rows, nbytes=nbytes, cut_end=cut_end, epoch=1))
    return found


CUTS = marks((10, 100, False), (10, 100, True), (10, 100, True), (10, 100, False), (10, 100, True))


def end(limit: BatchLimit, *, whole_cuts: bool, of: deque[IncrementMark] = CUTS) -> int | None:
    found = boundary(of, limit, whole_cuts=whole_cuts)
    return found.end if found is not None else None


def test_a_micro_batch_ends_where_a_cut_ends() -> None:
    assert end(BatchLimit(), whole_cuts=True) == 50
    assert end(BatchLimit(rows=45), whole_cuts=True) == 30
    assert end(BatchLimit(rows=25), whole_cuts=True) == 20
    assert end(BatchLimit(nbytes=399), whole_cuts=True) == 30


def test_a_cut_larger_than_the_limit_is_delivered_completely() -> None:
    assert end(BatchLimit(rows=5), whole_cuts=True) == 20
    assert end(BatchLimit(nbytes=1), whole_cuts=True) == 20


def test_half_a_cut_is_not_delivered_unless_it_may_be_split() -> None:
    half = marks((10, 100, False), (10, 100, False))

    assert end(BatchLimit(rows=5), whole_cuts=True, of=half) is None
    assert end(BatchLimit(rows=15), whole_cuts=False, of=half) == 10
    assert end(BatchLimit(rows=5), whole_cuts=False, of=half) == 10
    assert end(BatchLimit(), whole_cuts=True, of=marks()) is None


def test_the_search_ends_at_the_limit() -> None:
    assert BatchLimit(rows=10).is_reached(10, 0)
    assert not BatchLimit(rows=10).is_exceeded(10, 0)
    assert not BatchLimit().is_reached(10**9, 10**12)


class _Stream:
    """A queue of one-row cuts of table 1, a few at a time."""

    def __init__(self, count: int, *, cut: int = 1) -> None:
        self.count, self.cut = count, cut
        self.position = 0

    def increments(self, _timeout_s: float) -> list[broker_pb2.Increment]:
        first, self.position = self.position, min(self.count, self.position + 20)
        return [self._increment(n) for n in range(first, self.position)]

    def _increment(self, n: int) -> broker_pb2.Increment:
        body = change_pb2.BatchBody(count=1, cut_end=(n + 1) % self.cut == 0)
        body.tables.add(table_id=1, count=1, record_ids=b"1", rows=b"x")
        return broker_pb2.Increment(base_offset=n, count=1, epoch=1, body=body.SerializeToString())

    def close(self) -> None:
        """Do nothing."""


def _planner(stream: _Stream, table_id: int) -> BatchPlanner:
    planner = BatchPlanner("", "main", "", lambda found: found == table_id)
    planner._subscriber, planner._start, planner._read_to = cast(Subscriber, stream), 0, 0
    return planner


def test_the_end_of_a_micro_batch_of_many_small_cuts_is_found_in_one_pass() -> None:
    planner = _planner(_Stream(40_000), 1)

    began = time.thread_time()
    mark = planner.end_within(BatchLimit(rows=39_990), whole_cuts=True)

    assert time.thread_time() - began < 5, "a pass for each cut takes minutes"
    assert mark is not None
    assert mark.end == 39_990
    planner.begin(39_990, 1)
    mark = planner.end_within(BatchLimit(rows=5), whole_cuts=True)
    assert mark is not None
    assert mark.end == 39_995


def test_the_memory_for_changes_of_other_tables_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_plan, "MARKS_MAX", 1000, raising=False)
    planner = _planner(_Stream(10_000), 2)
    ends = []
    while (mark := planner.end_within(BatchLimit(rows=5, nbytes=5), whole_cuts=True)) is not None:
        assert len(planner._marks) <= 1020
        ends.append(mark.end)
        planner.begin(mark.end, 1)

    assert ends[-1] == 10_000
    assert len(ends) <= 11


def test_a_cut_of_more_increments_than_are_kept_is_delivered_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_plan, "MARKS_MAX", 100, raising=False)
    planner = _planner(_Stream(1000, cut=500), 1)

    mark = planner.end_within(BatchLimit(), whole_cuts=True)

    assert mark is not None
    assert mark.end == 500
