"""Indexes for interests, and the choice among them by measurement. Pure.

Each table has an index of its own. Interests with an equality are indexed by its value. For the others, the choice
depends on their number and on how much HPartition (SREM 4) narrows a sample of events: with few interests, or few
constrained columns, comparing all of them is faster.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from venus.network.matching.interests import NO_EVENTS, NONE, Events, Floats, Ids, Interest, Matches, Ranges

#: Pairs compared in one step, so that they fit into the processor's cache.
PAIRS = 1 << 20
#: Below this number of interests HPartition is not considered.
FEW = 200
#: HPartition must reduce the candidates by this factor: finding the subspace and sorting the result has a cost too.
WORTH = 3.0
SAMPLE = 200
#: Number of segments of a single column.
SEGMENTS_ALONE = 128
#: Columns in a group, and segments of each.
SHAPES = ((2, 10), (4, 5), (4, 8))
#: Maximum number of copies of an interest; each takes eight bytes.
COPIES_MAX = 512


class HPartition:
    """Index over groups of `size` columns, each column in `segments` segments.

    Each group stores an interest in every subspace that it overlaps. An event lies in one subspace of each group, and
    every matching interest is in all of them, so the event is compared only with the subspace of the fewest interests.
    Groups of one column are SPartition (BlueDove). Each segment contains equally many ends of ranges, so hot spots get
    smaller segments.
    """

    def __init__(self, interests: Sequence[Interest], *, size: int = 2, segments: int = 10) -> None:
        self._ranges = ranges = Ranges.of(interests)
        columns = range(len(ranges.columns))
        self._edges = [_edges(ranges.low[:, n], ranges.high[:, n], segments) for n in columns]
        self._groups = [
            _Group(ranges, self._edges, tuple(columns[at : at + size]), segments) for at in range(0, len(columns), size)
        ]

    @property
    def copies(self) -> float:
        """How often an interest is stored, on average."""
        return sum(len(group.ids) for group in self._groups) / max(1, len(self._ranges.low))

    def candidates(self, events: Events) -> int:
        """Return how many interests are compared with these events."""
        return int(self._find_best(self._ranges.points(events))[1].sum()) if self._groups else 0

    def match(self, events: Events) -> Matches:
        """Return every pair that matches."""
        if not self._groups or not events.count:
            return NONE
        points = self._ranges.points(events)
        best, counts, starts = self._find_best(points)
        found = [
            self._compare(points, rows, self._groups[group].ids, counts[rows], starts[rows])
            for group in range(len(self._groups))
            for rows in _split_rows(np.flatnonzero(best == group), counts)
        ]
        if not found:
            return NONE
        return Matches.of(np.concatenate([rows for rows, _ in found]), np.concatenate([ids for _, ids in found]))

    def _find_best(self, points: Floats) -> tuple[Ids, Ids, Ids]:
        """Return for each event the group with the fewest interests, their number, and where they begin."""
        segments = [np.searchsorted(edges, points[:, n], side="right") for n, edges in enumerate(self._edges)]
        found = [group.place(segments) for group in self._groups]
        counts = np.stack([count for _, count in found])
        best = counts.argmin(axis=0)
        every = np.arange(len(points))
        return best, counts[best, every], np.stack([start for start, _ in found])[best, every]

    def _compare(self, points: Floats, rows: Ids, ids: Ids, counts: Ids, starts: Ids) -> tuple[Ids, Ids]:
        """Return the pairs of events and the interests of their subspaces that match."""
        places = np.arange(counts.sum()) + np.repeat(starts - (counts.cumsum() - counts), counts)
        return self._ranges.narrow(points, np.repeat(rows, counts), ids[places])


def estimate_copies(interests: Sequence[Interest], *, size: int, segments: int) -> float:
    """Return how often an interest would be stored, on average, without storing it."""
    ranges = Ranges.of(interests)
    every = []
    for n in range(len(ranges.columns)):
        edges = _edges(ranges.low[:, n], ranges.high[:, n], segments)
        first, last = (np.searchsorted(edges, ends[:, n], side="right") for ends in (ranges.low, ranges.high))
        every.append(last - first + 1)
    groups = [every[at : at + size] for at in range(0, len(every), size)]
    return sum(float(np.prod(np.maximum(0, group), axis=0).sum()) for group in groups) / max(1, len(ranges.low))


class _Group:
    """The subspaces of a group of columns; `ids` has their interests one after the other, from `_starts` on."""

    def __init__(self, ranges: Ranges, edges: list[Floats], columns: tuple[int, ...], segments: int) -> None:
        self._columns, self._segments = columns, segments
        spans = [
            (
                np.searchsorted(edges[n], ranges.low[:, n], side="right"),
                np.searchsorted(edges[n], ranges.high[:, n], side="right"),
            )
            for n in columns
        ]
        keys: list[Ids] = []
        ids: list[Ids] = []
        for part in itertools.product(range(segments), repeat=len(columns)):
            inside = np.ones(len(ranges.low), dtype=np.bool_)
            for segment, (first, last) in zip(part, spans, strict=True):
                inside &= (first <= segment) & (segment <= last)
            ids.append(np.flatnonzero(inside))
            keys.append(np.array([len(ids[-1])]))
        self.ids = np.concatenate(ids)
        self._counts = np.concatenate(keys)
        self._starts = self._counts.cumsum() - self._counts

    def place(self, segments: Sequence[Ids]) -> tuple[Ids, Ids]:
        """Return where the interests of each event's subspace begin, and their number."""
        key = np.zeros(len(segments[0]), np.int64)
        for n in self._columns:
            key = key * self._segments + segments[n]
        return self._starts[key], self._counts[key]


def _edges(low: Floats, high: Floats, segments: int) -> Floats:
    """Return the boundaries between a column's segments: quantiles of the ends of ranges."""
    ends = np.concatenate([low[np.isfinite(low)], high[np.isfinite(high)]])
    if not len(ends):
        return np.full(segments - 1, np.inf)
    found: Floats = np.quantile(ends, np.arange(1, segments) / segments)
    return found


def _split_rows(rows: Ids, counts: Ids) -> list[Ids]:
    """Split rows of events into parts, none of which compares many more pairs than PAIRS."""
    if not len(rows):
        return []
    step = (counts[rows].cumsum() - counts[rows]) // PAIRS
    return [part for part in np.split(rows, np.flatnonzero(np.diff(step)) + 1) if len(part)]


class EqualityIndex:
    """Hash index for interests with at least one equality: the cost of an event is the number of its hits.

    Each interest is indexed by the values of one of its columns, the one whose values have the fewest other interests.
    The interests found there are then compared in full.
    """

    def __init__(self, interests: Sequence[Interest]) -> None:
        self._interests = interests
        self._ranges = Ranges.of(interests)
        self._rest: list[dict[str, frozenset[Hashable]]] = []
        filed: defaultdict[str, defaultdict[Hashable, list[int]]] = defaultdict(lambda: defaultdict(list))
        crowd = Counter((name, value) for one in interests for name, values in one.equal.items() for value in values)
        for number, one in enumerate(interests):
            column = min(one.equal, key=lambda name: (sum(crowd[name, value] for value in one.equal[name]), name))
            for value in one.equal[column] - {None}:
                filed[column][value].append(number)
            self._rest.append({name: values for name, values in one.equal.items() if name != column})
        self._filed: dict[str, dict[Hashable, Ids]] = {
            column: {value: np.array(ids, np.int64) for value, ids in places.items()}
            for column, places in filed.items()
        }
        self._plain = not any(self._rest) and not self._ranges.columns

    def candidates(self, events: Events) -> int:
        """Return how many interests are compared with these events."""
        return len(self._find(events))

    def match(self, events: Events) -> Matches:
        """Return every pair that matches."""
        found = self._find(events)
        if self._plain or not len(found):
            return found
        found = Matches(*self._ranges.narrow(self._ranges.points(events), found.events, found.interests))
        if not any(self._rest):
            return found
        same = (self._is_equal(events, row, number) for row, number in found.pairs())
        inside = np.fromiter(same, np.bool_, len(found))
        return Matches(found.events[inside], found.interests[inside])

    def _find(self, events: Events) -> Matches:
        """Return the pairs whose indexed equality holds; the other conditions are not checked yet."""
        rows: list[int] = []
        ids: list[Ids] = []
        for column, places in self._filed.items():
            there = list(map(places.get, _values(events, column)))  # None is not indexed
            rows += [row for row, found in enumerate(there) if found is not None]
            ids += [found for found in there if found is not None]
        if not rows:
            return NONE
        counts = np.fromiter(map(len, ids), np.int64, len(ids))
        return Matches.of(np.repeat(np.array(rows, np.int64), counts), np.concatenate(ids))

    def _is_equal(self, events: Events, row: int, number: int) -> bool:
        """Return whether an event has the values of an interest's other equalities."""
        return all(_values(events, name)[row] in values for name, values in self._rest[number].items())


def _values(events: Events, column: str) -> Sequence[Hashable]:
    """Return the values of a column, None for each event if the events lack it."""
    found = events.others.get(column)
    if found is not None:
        return found
    return events.numbers[column].tolist() if column in events.numbers else [None] * events.count


class IntervalIndex:
    """Index that compares every event with every interest, column by column; best for some hundreds of interests."""

    def __init__(self, interests: Sequence[Interest]) -> None:
        self._ranges = Ranges.of(interests)
        self._count = len(interests)

    def candidates(self, events: Events) -> int:
        """Return how many interests are compared with these events."""
        return events.count * self._count

    def match(self, events: Events) -> Matches:
        """Return every pair that matches."""
        if not self._count or not events.count:
            return NONE
        points = self._ranges.points(events)
        step = max(1, PAIRS // self._count)
        found = [self._match_block(points[at : at + step], at) for at in range(0, events.count, step)]
        return Matches(np.concatenate([rows for rows, _ in found]), np.concatenate([ids for _, ids in found]))

    def _match_block(self, points: Floats, at: int) -> tuple[Ids, Ids]:
        """Return the matching pairs of a block of events that begins at event `at`."""
        rows = np.repeat(np.arange(len(points)), self._count)
        interests = np.tile(np.arange(self._count), len(points))
        rows, interests = self._ranges.narrow(points, rows, interests)
        return rows + at, interests


class InterestIndex(Protocol):
    """Index of numbered interests."""

    def match(self, events: Events) -> Matches:
        """Return every pair that matches."""

    def candidates(self, events: Events) -> int:
        """Return how many interests are compared with these events."""


class TableIndex:
    """The two indexes of one table: for interests with an equality, and for the others; `sample` has typical events."""

    def __init__(self, interests: Sequence[Interest], sample: Events) -> None:
        filed = [n for n, one in enumerate(interests) if one.equal]
        ranged = [n for n, one in enumerate(interests) if not one.equal]
        self.parts: list[tuple[Ids, InterestIndex]] = []
        if filed:
            self.parts.append((np.array(filed), EqualityIndex([interests[n] for n in filed])))
        if ranged:
            self.parts.append((np.array(ranged), choose_range_index([interests[n] for n in ranged], sample)))

    def match(self, events: Events) -> Matches:
        """Return every pair that matches."""
        found = [(ids, index.match(events)) for ids, index in self.parts]
        if not found:
            return NONE
        if len(found) == 1:
            ids, only = found[0]
            return Matches(only.events, ids[only.interests])
        return Matches.of(
            np.concatenate([one.events for _, one in found]),
            np.concatenate([ids[one.interests] for ids, one in found]),
        )

    def candidates(self, events: Events) -> int:
        """Return how many interests are compared with these events."""
        return sum(index.candidates(events) for _, index in self.parts)


class NumberedIndex:
    """Immutable index of interests, each with a number; a match returns numbers. Any thread may use it.

    Interests without a condition are listed apart: they match every event.
    """

    def __init__(self, interests: Iterable[tuple[int, Interest]] = (), sample: Events = NO_EVENTS) -> None:
        found = list(interests)
        chosen = [(number, one) for number, one in found if one.equal or one.between]
        self._index = TableIndex([one for _, one in chosen], sample)
        self._numbers = np.array([number for number, _ in chosen], np.int64)
        self._every = np.array([number for number, one in found if not (one.equal or one.between)], np.int64)

    @property
    def has_conditions(self) -> bool:
        """Whether any of the interests has a condition."""
        return len(self._numbers) > 0

    def find(self, events: Events) -> tuple[Ids, Ids]:
        """Return the pairs of an event and a number that match, in any order."""
        found, count = self._index.match(events), len(self._every)
        rows, numbers = found.events, self._numbers[found.interests]
        if not count:
            return rows, numbers
        return (
            np.concatenate([rows, np.repeat(np.arange(events.count), count)]),
            np.concatenate([numbers, np.tile(self._every, events.count)]),
        )

    def match(self, events: Events) -> Matches:
        """Return every pair that matches."""
        return Matches.of(*self.find(events))


def choose_range_index(interests: Sequence[Interest], sample: Events) -> InterestIndex:
    """Return the index with fewer candidates for the sample, for interests without an equality."""
    plain = IntervalIndex(interests)
    if len(interests) < FEW or not sample.count:
        return plain
    some = sample.select(np.arange(min(SAMPLE, sample.count)))
    columns = len({name for one in interests for name in one.between})
    affordable = [
        HPartition(interests, size=size, segments=segments)
        for size, segments in ([(1, SEGMENTS_ALONE)] if columns == 1 else SHAPES)
        if size <= columns and estimate_copies(interests, size=size, segments=segments) <= COPIES_MAX
    ]
    best = min(affordable, key=lambda one: one.candidates(some), default=None)
    return best if best is not None and WORTH * best.candidates(some) < plain.candidates(some) else plain


class TableIndexes:
    """Index of all tables, by a hashable name."""

    def __init__(self, tables: Mapping[Hashable, InterestIndex]) -> None:
        self._tables = dict(tables)

    def match(self, table: Hashable, events: Events) -> Matches:
        """Return every pair of a table's events and interests that matches; none for a table without interests."""
        index = self._tables.get(table)
        return index.match(events) if index is not None else NONE
