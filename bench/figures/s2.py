"""S2: matched events a second, HPartition beside BlueDove, which partitions by one column (SREM reports 3.7 to 40.4 x).

Both indexes run the same code on one core. BlueDove's groups have one column (ten segments); HPartition's are the
largest that store an interest at most 512 times: four columns with eight or five segments, or two columns with ten.
Interests and events are skewed: normal around the middle. The peers are a comparison of every event with every
interest, and an index for each table, the product's first step. Times are processor time, the best of three rounds.

In the last lines 16 real broker processes, which share the cores of this machine, match for a broker that owns 100,000
skewed subscriptions of a table.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import numpy as np

from bench.figures.figure import Figure, FigureResult, at_least, at_most
from bench.network.sixteen import BROKERS, share_matching
from venus.network.matching.indexes import (
    COPIES_MAX,
    SHAPES,
    HPartition,
    IntervalIndex,
    TableIndex,
    TableIndexes,
    estimate_copies,
)
from venus.network.matching.interests import Events, Interest

GOAL = 3.7
COLUMNS = tuple(f"c{n}" for n in range(8))
TABLES = 50
PAPER = "3.7 to 40.4 times"


def some_interests(chance: random.Random, count: int, columns: int, half: float) -> list[Interest]:
    """Return random interests: each has a range, 2 * `half` wide, in this number of columns."""
    found = []
    for _ in range(count):
        middles = {name: chance.gauss(100, 25) for name in chance.sample(COLUMNS, columns)}
        found.append(Interest(between={name: (m - half, m + half) for name, m in middles.items()}))
    return found


def some_events(seed: int, count: int) -> Events:
    """Return skewed random events."""
    chance = np.random.default_rng(seed)
    return Events(count, {name: chance.normal(100, 25, count) for name in COLUMNS})


def make_largest_partition(interests: list[Interest]) -> HPartition:
    """Return the partition with the largest groups that store an interest at most 512 times."""
    size, segments = next(
        shape
        for shape in reversed(SHAPES)
        if estimate_copies(interests, size=shape[0], segments=shape[1]) <= COPIES_MAX
    )
    return HPartition(interests, size=size, segments=segments)


def rate(match: Callable[[], object], events: int, rounds: int) -> float:
    """Return the events matched per second of processor time."""
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        match()
        taken.append(time.process_time() - began)
    return events / max(1e-9, min(taken))


def compare_partitions(name: str, interests: list[Interest], events: Events, rounds: int) -> FigureResult:
    """Return the line that compares HPartition with a partition by single columns."""
    hybrid, single, plain = (
        make_largest_partition(interests),
        HPartition(interests, size=1),
        IntervalIndex(interests),
    )
    assert hybrid.match(events).pairs() == single.match(events).pairs()
    some = events.select(np.arange(min(events.count, 200)))
    ours = rate(lambda: hybrid.match(events), events.count, rounds)
    theirs = rate(lambda: single.match(events), events.count, rounds)
    all_of_them = rate(lambda: plain.match(some), some.count, rounds)
    return FigureResult(
        what=f"{name}: HPartition {ours:,.0f} events/s, {hybrid.copies:.0f} copies of an interest",
        ours=f"{ours / theirs:.1f} times",
        goal=f">= {GOAL} times",
        met=ours >= GOAL * theirs,
        paper=PAPER,
        peer=f"one column {theirs:,.0f}, all compared {all_of_them:,.0f} events/s",
    )


def compare_indexes(count: int, events: int, rounds: int) -> FigureResult:
    """Return the line that compares an index per table with one partition in which the table is a column."""
    chance = random.Random(9)
    interests = [some_interests(chance, count // TABLES, 3, 10) for _ in range(TABLES)]
    come = [some_events(table, events // TABLES) for table in range(TABLES)]
    tables = TableIndexes({n: TableIndex(each, come[n]) for n, each in enumerate(interests)})
    whole = [
        Interest(between={**one.between, "table": (float(n), float(n))})
        for n, each in enumerate(interests)
        for one in each
    ]
    together = Events(
        sum(one.count for one in come),
        {name: np.concatenate([one.numbers[name] for one in come]) for name in COLUMNS}
        | {"table": np.repeat(np.arange(TABLES, dtype=float), [one.count for one in come])},
    )
    hybrid, single = make_largest_partition(whole), HPartition(whole, size=1)

    def count_matches() -> int:
        return sum(len(tables.match(n, each)) for n, each in enumerate(come))

    assert count_matches() == len(hybrid.match(together))
    ours = rate(count_matches, together.count, rounds)
    two = rate(lambda: hybrid.match(together), together.count, rounds)
    one = rate(lambda: single.match(together), together.count, rounds)
    return FigureResult(
        what=f"{count:,} interests in 3 of 8 columns of {TABLES} tables: table first {ours:,.0f} events/s",
        ours=f"{ours / one:.1f} times one column, {ours / two:.1f} times HPartition",
        goal=f">= {GOAL} times",
        met=ours >= GOAL * one,
        peer=f"HPartition {two:,.0f}, one column {one:,.0f} events/s",
    )


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure S2 and return its lines."""
    count, events, rounds = (4000, 500, 1) if quick else (10_000, 1000, 3)
    chance, come = random.Random(2), some_events(1, events)
    shapes = (
        ("all 8 columns, ranges of 10", 8, 5.0),
        ("all 8 columns, ranges of 40", 8, 20.0),
        ("4 of 8 columns, ranges of 10", 4, 5.0),
        ("3 of 8 columns, ranges of 20", 3, 10.0),
    )
    found = [
        compare_partitions(
            f"{count:,} interests in {words}", some_interests(chance, count, columns, half), come, rounds
        )
        for words, columns, half in shapes
    ]
    return [*found, compare_indexes(count, 10 * events, rounds), *_real_brokers(quick)]


def _real_brokers(quick: bool) -> list[FigureResult]:
    """Let sixteen broker processes match changes, and return the lines of that."""
    count = 10_000 if quick else 100_000
    found = share_matching(count, 30 if quick else 100)
    what = f"{BROKERS} real broker processes, {count:,} skewed subscriptions, {found.changes_per_s:,.0f} changes/s"
    return [
        at_most(f"{what}: batches with a wrong verdict", found.wrong, 0, ""),
        at_least("the same: changes that other brokers matched", 100 * found.elsewhere, 90, "%"),
        at_most("the same: pairs compared by a broker, max/mean", found.imbalance, 1.5, ""),
    ]


FIGURE = Figure(id="S2", title="matching rate", measure=run)
