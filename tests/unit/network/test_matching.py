"""Every index finds exactly the pairs that brute force finds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.support.predicates.matching import INF, compare, some_events
from venus.network.matching.indexes import (
    COPIES_MAX,
    FEW,
    EqualityIndex,
    HPartition,
    IntervalIndex,
    TableIndex,
    TableIndexes,
)
from venus.network.matching.interests import Events, Interest


@pytest.mark.parametrize("seed", range(40))
def test_every_index_finds_what_brute_force_finds(seed: int) -> None:
    chance = random.Random(seed)
    compare(seed, chance.choice((1, 5, 60, 250)), chance.choice((1, 3, 40)))


@pytest.mark.slow
def test_every_index_finds_what_brute_force_finds_on_100_000_events() -> None:
    """In batches of 1,000 events, each with other interests."""
    assert sum(compare(seed, 30, 1000) for seed in range(1000, 1100)) > 100_000


def test_no_interest_or_no_event_gives_no_pair() -> None:
    come = some_events(random.Random(1), 10)
    none = some_events(random.Random(1), 0)
    for index in (IntervalIndex([]), HPartition([]), EqualityIndex([]), TableIndex([], come)):
        assert index.match(come).pairs() == []
        assert index.candidates(come) == 0
    for index in (IntervalIndex([Interest()]), HPartition([Interest(between={"a": (0, 1)})])):
        assert index.match(none).pairs() == []
    assert IntervalIndex([Interest()]).match(come).pairs() == [(row, 0) for row in range(10)], (
        "without a condition: all"
    )


def test_a_bound_is_inside_and_null_is_never_inside() -> None:
    interests = [
        Interest(between={"a": (1.0, 2.0)}),
        Interest(between={"a": (-INF, INF)}),
        Interest(between={"b": (0, 0)}),
    ]
    come = Events(5, {"a": np.array([1.0, 2.0, 0.999, 2.001, np.nan])})
    for index in (IntervalIndex(interests), HPartition(interests, size=1), HPartition(interests, size=2)):
        found = index.match(come).pairs()
        assert [row for row, n in found if n == 0] == [0, 1]
        assert not [row for row, n in found if n == 2], "a column that is not there is NULL"


def test_a_column_without_a_bound_admits_null() -> None:
    interests = [Interest(between={"a": (0.0, 9.0)}), Interest(between={"a": (0.0, 9.0), "b": (0.0, 9.0)})]
    come = Events(2, {"a": np.array([5.0, 5.0]), "b": np.array([np.nan, 5.0])})
    for index in (IntervalIndex(interests), HPartition(interests)):
        assert index.match(come).pairs() == [(0, 0), (1, 0), (1, 1)]


def narrow_interests(chance: random.Random, count: int, columns: int) -> list[Interest]:
    names = [f"c{n}" for n in range(8)]
    found = []
    for _ in range(count):
        middles = {name: chance.gauss(100, 25) for name in chance.sample(names, columns)}
        found.append(Interest(between={name: (middle - 5, middle + 5) for name, middle in middles.items()}))
    return found


def test_the_index_with_the_fewest_remaining_comparisons_is_chosen() -> None:
    chance = random.Random(3)
    come = Events(300, {f"c{n}": np.array([chance.gauss(100, 25) for _ in range(300)]) for n in range(8)})

    def choose_index(interests: list[Interest]) -> type:
        (part,) = TableIndex(interests, come).parts
        return type(part[1])

    assert choose_index(narrow_interests(chance, FEW - 1, 8)) is IntervalIndex
    assert choose_index(narrow_interests(chance, 3000, 8)) is HPartition
    (part,) = TableIndex(narrow_interests(chance, 3000, 2), come).parts
    assert not isinstance(part[1], HPartition) or part[1].copies <= COPIES_MAX
    assert choose_index(narrow_interests(chance, 3000, 1)) is IntervalIndex, "most subspaces hold nearly all"
    assert choose_index([Interest(equal={"k": frozenset({n})}) for n in range(3000)]) is EqualityIndex


def test_an_equality_is_stored_where_the_fewest_are() -> None:
    interests = [Interest(equal={"region": frozenset({"EU"}), "tenant": frozenset({n})}) for n in range(1000)]
    come = Events(2, {}, {"region": ["EU", "US"], "tenant": [7, 7]})
    index = EqualityIndex(interests)
    assert index.candidates(come) == 2
    assert index.match(come).pairs() == [(0, 7)]


def test_a_table_without_interests_costs_nothing() -> None:
    come = Events(1, {"a": np.array([1.0])})
    tables = TableIndexes({"orders": IntervalIndex([Interest(between={"a": (0.0, 2.0)})])})
    assert tables.match("orders", come).pairs() == [(0, 0)]
    assert tables.match("items", come).pairs() == []
