"""Which index is worth it for which interests, by what is measured of them. Pure.

A table is looked up first: each has an index of its own. Interests with an equality are filed under it. Of the others
it depends on how many there are and how much HPartition narrows them for the events that come: with few, or with few
constrained columns, comparing all of them is quicker.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

import numpy as np

from venus.network.matching.equality import Equality
from venus.network.matching.hpartition import HPartition, copies_of
from venus.network.matching.interests import NONE, Events, Ids, Interest, Matches
from venus.network.matching.intervals import Intervals

#: Below so many, nothing is gained by finding out.
FEW = 200
#: HPartition has to leave so much less to be looked at: finding the subspace and ordering what is found costs as well.
WORTH = 3.0
SAMPLE = 200
#: In how many parts a column is cut that is the only one.
SEGMENTS_ALONE = 128
#: Columns in a group, and parts of each.
SHAPES = ((2, 10), (4, 5), (4, 8))
#: How often an interest may be stored: eight bytes each.
COPIES_MAX = 512


class Index(Protocol):
    """Interests by number, found by event."""

    def match(self, events: Events) -> Matches:
        """Return every pair that matches."""

    def candidates(self, events: Events) -> int:
        """Return how many interests are looked at for these events."""


class Chosen:
    """An index for each part of the interests of one table; `sample` are events as they come."""

    def __init__(self, interests: Sequence[Interest], sample: Events) -> None:
        filed = [n for n, one in enumerate(interests) if one.equal]
        ranged = [n for n, one in enumerate(interests) if not one.equal]
        self.parts: list[tuple[Ids, Index]] = []
        if filed:
            self.parts.append((np.array(filed), Equality([interests[n] for n in filed])))
        if ranged:
            self.parts.append((np.array(ranged), of_ranges([interests[n] for n in ranged], sample)))

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
        """Return how many interests are looked at for these events."""
        return sum(index.candidates(events) for _, index in self.parts)


def of_ranges(interests: Sequence[Interest], sample: Events) -> Index:
    """Return the index for interests without an equality that looks at less for the sample."""
    plain = Intervals(interests)
    if len(interests) < FEW or not sample.count:
        return plain
    some = sample.taken(np.arange(min(SAMPLE, sample.count)))
    columns = len({name for one in interests for name in one.between})
    affordable = [
        HPartition(interests, size=size, segments=segments)
        for size, segments in ([(1, SEGMENTS_ALONE)] if columns == 1 else SHAPES)
        if size <= columns and copies_of(interests, size=size, segments=segments) <= COPIES_MAX
    ]
    best = min(affordable, key=lambda one: one.candidates(some), default=None)
    return best if best is not None and WORTH * best.candidates(some) < plain.candidates(some) else plain


class Tables:
    """An index for each table, by whatever names it."""

    def __init__(self, tables: Mapping[Hashable, Index]) -> None:
        self._tables = dict(tables)

    def match(self, table: Hashable, events: Events) -> Matches:
        """Return every pair of a table's events and interests that matches; none for a table that nobody asked for."""
        index = self._tables.get(table)
        return index.match(events) if index is not None else NONE
