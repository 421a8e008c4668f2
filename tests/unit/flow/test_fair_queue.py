"""Order is kept within a business, no business starves, and a flood delays the others by one turn only."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from venus.flow.write_queue import FairQueue

ITEMS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 400)), max_size=100)


@given(ITEMS, st.integers(1, 500), st.integers(1, 20), st.integers(0, 300))
def test_every_business_keeps_its_order_and_everything_is_taken(
    items: list[tuple[int, int]], cost_max: int, count_max: int, small: int
) -> None:
    queue: FairQueue[tuple[int, int]] = FairQueue(100)
    for number, (key, cost) in enumerate(items):
        queue.put(key, cost, (key, number))
    out: list[tuple[int, int]] = []
    while len(queue):
        taken = queue.take(cost_max, count_max, small=small)
        assert 0 < len(taken) <= count_max
        costs = [items[number][1] for _, number in taken if items[number][1]]
        assert sum(costs[:-1]) < max(cost_max, 5 * small + 1)
        out += taken
    by_key = defaultdict(list)
    for key, number in out:
        by_key[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sorted(number for _, number in out) == list(range(len(items)))


def test_a_small_business_waits_for_one_turn_of_a_flood_at_most() -> None:
    queue: FairQueue[str] = FairQueue(100)
    for _ in range(1000):
        queue.put("flood", 50, "f")
    queue.put("small", 50, "s")
    assert queue.take(200, 100) == ["f", "f", "s", "f"]


def test_a_small_business_is_served_without_the_flood_every_second_time_at_most() -> None:
    queue: FairQueue[str] = FairQueue(100)
    for _ in range(1000):
        queue.put("flood", 50, "f")
    queue.put("small", 10, "half")
    queue.put("small", 0, "decision")
    assert queue.take(200, 100, small=20) == ["half", "decision"]
    queue.put("small", 10, "half")
    assert queue.take(200, 100, small=20) == ["f", "f", "half", "f", "f"], "the flood has its turn as well"
    queue.put("small", 0, "decision")
    assert queue.take(200, 100, small=20) == ["decision"]


def test_a_flood_with_few_waiting_messages_does_not_count_as_small() -> None:
    queue: FairQueue[str] = FairQueue(100)
    for _ in range(10):
        queue.put("flood", 50, "f")
    assert len(queue.take(1000, 100, small=20)) == 10, "no other business is there"
    queue.put("flood", 0, "its decision")
    queue.put("other", 500, "o")
    assert queue.take(1000, 100, small=20) == ["its decision", "o"]
    for _ in range(10):
        queue.put("other", 500, "o")
        assert queue.take(1000, 100, small=20) == ["o"]
    queue.put("flood", 0, "the next")
    queue.put("other", 500, "o")
    assert queue.take(1000, 100, small=20) == ["the next"], "its flood is long ago"


def test_small_businesses_share_one_turn() -> None:
    queue: FairQueue[str] = FairQueue(100)
    queue.put("a", 10, "a")
    queue.put("b", 10, "b")
    assert queue.take(1000, 100, small=20) == ["a", "b"]


def test_a_decision_does_not_wait_for_half_messages_of_others() -> None:
    queue: FairQueue[str] = FairQueue(100)
    for _ in range(10):
        queue.put("flood", 1000, "f")
    queue.put("small", 0, "decision")
    assert queue.take(1, 100)[0] == "decision"


def test_a_decision_waits_for_the_half_messages_before_it() -> None:
    queue: FairQueue[str] = FairQueue(100)
    queue.put("a", 10, "half")
    queue.put("a", 0, "decision")
    assert queue.take(1000, 100) == ["half", "decision"]


def test_a_message_larger_than_a_turn_is_taken() -> None:
    queue: FairQueue[str] = FairQueue(100)
    queue.put("a", 100_000, "large")
    queue.put("b", 10, "small")
    assert queue.take(1, 100) == ["small"]
    assert queue.take(1, 100) == ["large"]


def test_a_barrier_keeps_its_place_among_all_commands() -> None:
    queue: FairQueue[str] = FairQueue(100)
    queue.put("a", 10, "1")
    queue.put_barrier("barrier")
    queue.put("b", 0, "2")
    queue.put_first("first")
    assert len(queue) == 4
    assert queue.take(1000, 100) == ["first", "1", "barrier", "2"]
    assert queue.take(1000, 100) == []


@given(ITEMS, st.sets(st.integers(0, 99)))
def test_barriers_divide_the_queue(items: list[tuple[int, int]], barriers: set[int]) -> None:
    queue: FairQueue[int] = FairQueue(100)
    for number, (key, cost) in enumerate(items):
        if number in barriers:
            queue.put_barrier(-number)
        queue.put(key, cost, number)
    out: list[int] = []
    while len(queue):
        out += queue.take(300, 7)
    for number in barriers & set(range(1, len(items))):
        at = out.index(-number)
        assert all(n < number for n in out[:at] if n > 0)
        assert all(n >= number for n in out[at + 1 :] if n > 0)


def test_drain_empties_the_queue() -> None:
    queue: FairQueue[str] = FairQueue(100)
    queue.put("a", 10, "1")
    queue.put_barrier("2")
    queue.put_first("3")
    assert sorted(queue.drain()) == ["1", "2", "3"]
    assert len(queue) == 0
    assert queue.take(10, 10) == []
