"""Every index finds exactly what brute force finds, pair by pair."""

from __future__ import annotations

import random

import numpy as np
import pytest

from venus.network.matching.choosing import COPIES_MAX, FEW, Chosen, Tables
from venus.network.matching.equality import Equality
from venus.network.matching.hpartition import HPartition, copies_of
from venus.network.matching.interests import Events, Interest
from venus.network.matching.intervals import Intervals

NUMBERS = ("a", "b", "c", "d")
WORDS = ("EU", "US", "ASIA", "")
INF = float("inf")


def some_range(chance: random.Random) -> tuple[float, float]:
    low, high = sorted((chance.gauss(0, 30) // 1, chance.gauss(0, 30) // 1))
    match chance.randrange(7):
        case 0:
            return low, low
        case 1:
            return -INF, high
        case 2:
            return low, INF
        case 3:
            return high + 1, low  # empty
        case 4:
            return -INF, INF  # is not NULL
    return low, high


def some_interests(chance: random.Random, count: int, *, equal: bool) -> list[Interest]:
    found = []
    for _ in range(count):
        names = chance.sample(NUMBERS, chance.choice((0, 1, 2, 2, 3, 4)) if equal else chance.choice((1, 2, 3, 4)))
        same = {}
        if equal:
            for name in chance.sample(("word", "key"), chance.choice((1, 1, 2))):
                values = WORDS if name == "word" else range(50)
                same[name] = frozenset(chance.sample(list(values), chance.choice((1, 1, 3))))
        found.append(Interest(equal=same, between={name: some_range(chance) for name in names}))
    return found


def some_events(chance: random.Random, count: int) -> Events:
    def number() -> float:
        return chance.choice((float("nan"), INF, -INF)) if chance.random() < 0.03 else chance.gauss(0, 30) // 1

    return Events(
        count,
        {name: np.array([number() for _ in range(count)]) for name in NUMBERS},
        {
            "word": [chance.choice((*WORDS, None)) for _ in range(count)],
            "key": [chance.choice((*range(60), None)) for _ in range(count)],
        },
    )


def brute(interests: list[Interest], events: Events) -> list[tuple[int, int]]:
    found = []
    for row in range(events.count):
        event: dict[str, object] = {name: float(column[row]) for name, column in events.numbers.items()}
        event |= {name: column[row] for name, column in events.others.items()}
        found += [(row, n) for n, one in enumerate(interests) if one.holds(event)]
    return found


def compare(seed: int, interests: int, events: int) -> int:
    """Compare all indexes; return how many pairs there were."""
    chance = random.Random(seed)
    ranged = some_interests(chance, interests, equal=False)
    filed = some_interests(chance, interests, equal=True)
    mixed = chance.sample(ranged + filed, len(ranged) + len(filed))
    come = some_events(chance, events)
    wanted = brute(ranged, come)
    assert Intervals(ranged).match(come).pairs() == wanted
    for size, segments in ((1, 10), (2, 6), (2, 1), (3, 4), (4, 3)):
        index = HPartition(ranged, size=size, segments=segments)
        assert index.match(come).pairs() == wanted, (size, segments)
        assert index.copies == pytest.approx(copies_of(ranged, size=size, segments=segments))
    assert Equality(filed).match(come).pairs() == brute(filed, come)
    assert Chosen(mixed, come).match(come).pairs() == brute(mixed, come)
    return len(wanted)


@pytest.mark.parametrize("seed", range(40))
def test_every_index_finds_what_brute_force_finds(seed: int) -> None:
    chance = random.Random(seed)
    compare(seed, chance.choice((1, 5, 60, 250)), chance.choice((1, 3, 40)))


@pytest.mark.slow
def test_every_index_finds_what_brute_force_finds_on_100_000_events() -> None:
    """In batches of 1,000 events, each with other interests."""
    assert sum(compare(seed, 30, 1000) for seed in range(1000, 1100)) > 100_000


def test_nobody_and_nothing() -> None:
    come = some_events(random.Random(1), 10)
    none = some_events(random.Random(1), 0)
    for index in (Intervals([]), HPartition([]), Equality([]), Chosen([], come)):
        assert index.match(come).pairs() == []
        assert index.candidates(come) == 0
    for index in (Intervals([Interest()]), HPartition([Interest(between={"a": (0, 1)})])):
        assert index.match(none).pairs() == []
    assert Intervals([Interest()]).match(come).pairs() == [(row, 0) for row in range(10)], "without a condition: all"


def test_a_bound_is_inside_and_null_is_nowhere() -> None:
    interests = [
        Interest(between={"a": (1.0, 2.0)}),
        Interest(between={"a": (-INF, INF)}),
        Interest(between={"b": (0, 0)}),
    ]
    come = Events(5, {"a": np.array([1.0, 2.0, 0.999, 2.001, np.nan])})
    for index in (Intervals(interests), HPartition(interests, size=1), HPartition(interests, size=2)):
        found = index.match(come).pairs()
        assert [row for row, n in found if n == 0] == [0, 1]
        assert not [row for row, n in found if n == 2], "a column that is not there is NULL"


def test_a_column_without_a_bound_lets_null_pass_when_it_is_not_named() -> None:
    interests = [Interest(between={"a": (0.0, 9.0)}), Interest(between={"a": (0.0, 9.0), "b": (0.0, 9.0)})]
    come = Events(2, {"a": np.array([5.0, 5.0]), "b": np.array([np.nan, 5.0])})
    for index in (Intervals(interests), HPartition(interests)):
        assert index.match(come).pairs() == [(0, 0), (1, 0), (1, 1)]


def narrow(chance: random.Random, count: int, columns: int) -> list[Interest]:
    names = [f"c{n}" for n in range(8)]
    found = []
    for _ in range(count):
        middles = {name: chance.gauss(100, 25) for name in chance.sample(names, columns)}
        found.append(Interest(between={name: (middle - 5, middle + 5) for name, middle in middles.items()}))
    return found


def test_the_index_is_chosen_by_what_it_leaves_to_be_looked_at() -> None:
    chance = random.Random(3)
    come = Events(300, {f"c{n}": np.array([chance.gauss(100, 25) for _ in range(300)]) for n in range(8)})

    def chosen(interests: list[Interest]) -> type:
        (part,) = Chosen(interests, come).parts
        return type(part[1])

    assert chosen(narrow(chance, FEW - 1, 8)) is Intervals
    assert chosen(narrow(chance, 3000, 8)) is HPartition
    (part,) = Chosen(narrow(chance, 3000, 2), come).parts
    assert not isinstance(part[1], HPartition) or part[1].copies <= COPIES_MAX
    assert chosen(narrow(chance, 3000, 1)) is Intervals, "most subspaces hold nearly everybody"
    assert chosen([Interest(equal={"k": frozenset({n})}) for n in range(3000)]) is Equality


def test_an_equality_is_filed_where_fewest_are() -> None:
    interests = [Interest(equal={"region": frozenset({"EU"}), "tenant": frozenset({n})}) for n in range(1000)]
    come = Events(2, {}, {"region": ["EU", "US"], "tenant": [7, 7]})
    index = Equality(interests)
    assert index.candidates(come) == 2
    assert index.match(come).pairs() == [(0, 7)]


def test_a_table_nobody_asked_for_costs_nothing() -> None:
    come = Events(1, {"a": np.array([1.0])})
    tables = Tables({"orders": Intervals([Interest(between={"a": (0.0, 2.0)})])})
    assert tables.match("orders", come).pairs() == [(0, 0)]
    assert tables.match("items", come).pairs() == []
