"""Where micro-batches end: whole cuts, limits, and one step at least."""

from __future__ import annotations

from collections import deque

from venus.spark.streaming_plan import Limit, Mark, boundary


def marks(*spec: tuple[int, int, bool]) -> deque[Mark]:
    """Rows, bytes, whether the cut ends."""
    found: deque[Mark] = deque()
    end = 0
    for rows, nbytes, cut_end in spec:
        end += rows
        found.append(Mark(end=end, rows=rows, nbytes=nbytes, cut_end=cut_end, epoch=1))
    return found


CUTS = marks((10, 100, False), (10, 100, True), (10, 100, True), (10, 100, False), (10, 100, True))


def end(limit: Limit, *, whole_cuts: bool, of: deque[Mark] = CUTS) -> int | None:
    found = boundary(of, limit, whole_cuts=whole_cuts)
    return found.end if found is not None else None


def test_a_micro_batch_ends_where_a_cut_ends() -> None:
    assert end(Limit(), whole_cuts=True) == 50
    assert end(Limit(rows=45), whole_cuts=True) == 30
    assert end(Limit(rows=25), whole_cuts=True) == 20
    assert end(Limit(nbytes=399), whole_cuts=True) == 30


def test_a_cut_larger_than_the_limit_is_taken_whole() -> None:
    assert end(Limit(rows=5), whole_cuts=True) == 20
    assert end(Limit(nbytes=1), whole_cuts=True) == 20


def test_half_a_cut_is_nothing_unless_it_may_be_cut() -> None:
    half = marks((10, 100, False), (10, 100, False))

    assert end(Limit(rows=5), whole_cuts=True, of=half) is None
    assert end(Limit(rows=15), whole_cuts=False, of=half) == 10
    assert end(Limit(rows=5), whole_cuts=False, of=half) == 10
    assert end(Limit(), whole_cuts=True, of=marks()) is None


def test_a_limit_says_when_enough_is_known() -> None:
    assert Limit(rows=10).reached(10, 0)
    assert not Limit(rows=10).exceeded(10, 0)
    assert not Limit().reached(10**9, 10**12)
