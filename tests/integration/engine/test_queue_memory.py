"""All businesses together share one memory limit for their queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import Producer
from venus.broker.core import Core
from venus.broker.machine import queue_index

BUSINESSES = 20
BATCHES = 100
PLACES = 300


def _fill(engine: Core) -> None:
    for number in range(BUSINESSES):
        producer = Producer(engine, f"shop{number}")
        halves = [producer.next_half(engines.rows(n, 2)) for n in range(BATCHES)]
        producer.send(*halves)
        producer.decide(halves[-1])


def _count_kept_batches(engine: Core) -> list[int]:
    return [len(business.tail._places) for business in engine.catalogue.list_stored()]


def _check(engine: Core) -> None:
    for number in range(BUSINESSES):
        found = engines.queue(engine, business=f"shop{number}")
        assert [increment.base_offset for increment in found] == list(range(0, 2 * BATCHES, 2))


def test_the_newest_batches_of_all_businesses_share_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_index, "TAILS_PLACES", PLACES, raising=False)
    engine = engines.make(tmp_path)
    _fill(engine)

    assert sum(_count_kept_batches(engine)) <= PLACES + PLACES // 4 + BATCHES
    assert all(count > 0 for count in _count_kept_batches(engine)), "the newest batch of each is always known"
    _check(engine)
    engine.stop()

    again = engines.make(tmp_path)

    assert sum(_count_kept_batches(again)) <= PLACES + BUSINESSES
    assert all(count > 0 for count in _count_kept_batches(again))
    _check(again)
    again.stop()


def test_a_batch_too_large_for_the_tail_is_known_after_a_restart(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 5))
    producer.commit(engines.rows(5, 9000), cut_end=False)
    engine.stop()

    again = engines.make(tmp_path)
    newest = engines.the_business(again).tail.newest

    assert newest is not None
    assert (newest.base_offset, newest.count, newest.cut_end) == (5, 9000, False)
    again.stop()


def test_the_longest_tails_are_cut_and_the_short_ones_left() -> None:
    tails = [queue_index.QueueTail() for _ in range(4)]
    for tail, count in zip(tails, (3, 50, 0, 1000), strict=True):
        tail._places = [None] * count  # type: ignore[list-item]

    queue_index.shorten_tails(tails, 100)

    assert [len(tail) for tail in tails] == [3, 48, 0, 49]
