"""Random interests and events: every index must find exactly the pairs that brute force finds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from venus.network.matching.indexes import EqualityIndex, HPartition, IntervalIndex, TableIndex, estimate_copies
from venus.network.matching.interests import Events, Interest

NUMBERS = ("a", "b", "c", "d")
WORDS = ("EU", "US", "ASIA", "")
INF = float("inf")


def some_range(chance: random.Random) -> tuple[float, float]:
    """Return a random interval; it may be open, empty, a point, or everything."""
    low, high = sorted((chance.gauss(0, 30) // 1, chance.gauss(0, 30) // 1))
    match chance.randrange(7):
        case 0:
            return low, low
        case 1:
            return -INF, high
        case 2:
            return low, INF
        case 3:
            return high + 1, low  # empty range
        case 4:
            return -INF, INF  # satisfied by every value but NULL
    return low, high


def some_interests(chance: random.Random, count: int, *, equal: bool) -> list[Interest]:
    """Return random interests; with `equal` each also demands equal values of some columns."""
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
    """Return random events, some of whose values are NULL or not finite."""

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


def crowded_interests(count: int, seed: int = 1) -> list[Interest]:
    """Return interests that crowd in a few places of the value space."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        middle = chance.gauss(100, 10)
        tenant = f"tenant-{int(200 * chance.random() ** 3)}"
        found.append(Interest({"tenant": frozenset([tenant])}, {"amount": (middle - 2, middle + 2)}))
    return found


def crowded_events(count: int, seed: int = 1) -> Events:
    """Return events at the places of the crowded interests."""
    chance = random.Random(seed)
    return Events(
        count,
        {"amount": np.array([chance.gauss(100, 10) for _ in range(count)])},
        {"tenant": [f"tenant-{int(200 * chance.random() ** 3)}" for _ in range(count)]},
    )


def match_by_brute_force(interests: list[Interest], events: Events) -> list[tuple[int, int]]:
    """Return all pairs (event, interest) that match, by comparing every one with every other."""
    found = []
    for row in range(events.count):
        event: dict[str, object] = {name: float(column[row]) for name, column in events.numbers.items()}
        event |= {name: column[row] for name, column in events.others.items()}
        found += [(row, n) for n, one in enumerate(interests) if one.is_match(event)]
    return found


def compare(seed: int, interests: int, events: int) -> int:
    """Compare all indexes with brute force; return the number of pairs."""
    chance = random.Random(seed)
    ranged = some_interests(chance, interests, equal=False)
    filed = some_interests(chance, interests, equal=True)
    mixed = chance.sample(ranged + filed, len(ranged) + len(filed))
    come = some_events(chance, events)
    wanted = match_by_brute_force(ranged, come)
    assert IntervalIndex(ranged).match(come).pairs() == wanted
    for size, segments in ((1, 10), (2, 6), (2, 1), (3, 4), (4, 3)):
        index = HPartition(ranged, size=size, segments=segments)
        assert index.match(come).pairs() == wanted, (size, segments)
        assert index.copies == pytest.approx(estimate_copies(ranged, size=size, segments=segments))
    assert EqualityIndex(filed).match(come).pairs() == match_by_brute_force(filed, come)
    assert TableIndex(mixed, come).match(come).pairs() == match_by_brute_force(mixed, come)
    return len(wanted)
