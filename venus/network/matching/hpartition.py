"""HPartition (SREM 4): the content space in groups of columns, each cut into subspaces of several columns. Pure.

An interest is stored in every subspace that it overlaps, in each group. An event lies in one subspace of each group,
and whoever matches it is in all of them: it is held against the one with the fewest interests. Groups of one column are
SPartition (BlueDove). Segments end where ranges do, as many on each side, so that hot spots are cut finer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from venus.network.matching.interests import NONE, Events, Floats, Ids, Interest, Matches, Ranges

#: Pairs that are looked at in one step.
PAIRS = 1 << 20


class HPartition:
    """An index over groups of `size` columns, each column in `segments` parts."""

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
        """Return how many interests are looked at for these events."""
        return int(self._best(self._ranges.points(events))[1].sum()) if self._groups else 0

    def match(self, events: Events) -> Matches:
        """Return every pair that matches."""
        if not self._groups or not events.count:
            return NONE
        points = self._ranges.points(events)
        best, counts, starts = self._best(points)
        found = [
            self._held(points, rows, self._groups[group].ids, counts[rows], starts[rows])
            for group in range(len(self._groups))
            for rows in _steps(np.flatnonzero(best == group), counts)
        ]
        if not found:
            return NONE
        return Matches.of(np.concatenate([rows for rows, _ in found]), np.concatenate([ids for _, ids in found]))

    def _best(self, points: Floats) -> tuple[Ids, Ids, Ids]:
        """Return for each event the group that has the fewest interests there, how many, and where they begin."""
        segments = [np.searchsorted(edges, points[:, n], side="right") for n, edges in enumerate(self._edges)]
        found = [group.place(segments) for group in self._groups]
        counts = np.stack([count for _, count in found])
        best = counts.argmin(axis=0)
        every = np.arange(len(points))
        return best, counts[best, every], np.stack([start for start, _ in found])[best, every]

    def _held(self, points: Floats, rows: Ids, ids: Ids, counts: Ids, starts: Ids) -> tuple[Ids, Ids]:
        places = np.arange(counts.sum()) + np.repeat(starts - (counts.cumsum() - counts), counts)
        return self._ranges.narrowed(points, np.repeat(rows, counts), ids[places])


def copies_of(interests: Sequence[Interest], *, size: int, segments: int) -> float:
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
    """The subspaces of some columns, one behind the other: `ids` of one begin at `_starts`."""

    def __init__(self, ranges: Ranges, edges: list[Floats], columns: tuple[int, ...], segments: int) -> None:
        self._columns, self._segments = columns, segments
        spans = [
            (np.searchsorted(edges[n], ranges.low[:, n], side="right"),
             np.searchsorted(edges[n], ranges.high[:, n], side="right"))
            for n in columns
        ]  # fmt: skip
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
        """Return where the interests of each event's subspace begin, and how many there are."""
        key = np.zeros(len(segments[0]), np.int64)
        for n in self._columns:
            key = key * self._segments + segments[n]
        return self._starts[key], self._counts[key]


def _edges(low: Floats, high: Floats, segments: int) -> Floats:
    """Return the inner ends of a column's segments."""
    ends = np.concatenate([low[np.isfinite(low)], high[np.isfinite(high)]])
    if not len(ends):
        return np.full(segments - 1, np.inf)
    found: Floats = np.quantile(ends, np.arange(1, segments) / segments)
    return found


def _steps(rows: Ids, counts: Ids) -> list[Ids]:
    """Cut rows so that no step looks at many more than PAIRS."""
    if not len(rows):
        return []
    step = (counts[rows].cumsum() - counts[rows]) // PAIRS
    return [part for part in np.split(rows, np.flatnonzero(np.diff(step)) + 1) if len(part)]
