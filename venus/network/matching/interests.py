"""Interests: conjunctions of equalities and ranges over the columns of one table. Pure.

Numbers are compared as 64-bit floats, as `venus.predicates.evaluation` does first. A caller that needs more precision
widens a bound to the next float and evaluates the matches again. NULL (NaN among numbers, None elsewhere) is in no
range and equal to nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Interest:
    """A condition. `equal`: the allowed values of each column. `between`: each column's closed range of numbers."""

    equal: Mapping[str, frozenset[Hashable]] = field(default_factory=dict)
    between: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def is_match(self, event: Mapping[str, object]) -> bool:
        """Whether one event matches; the reference for every index."""
        same = all(event.get(name) is not None and event[name] in values for name, values in self.equal.items())
        return same and all(
            isinstance(value := event.get(name), int | float) and low <= value <= high
            for name, (low, high) in self.between.items()
        )


@dataclass(frozen=True, slots=True)
class Events:
    """Columns of a batch of changes, all of the same length: numbers as an array, other values as a list."""

    count: int
    numbers: Mapping[str, Floats]
    others: Mapping[str, Sequence[Hashable]] = field(default_factory=dict)

    def select(self, rows: Ids) -> Events:
        """Return some of the events."""
        return Events(
            len(rows),
            {name: column[rows] for name, column in self.numbers.items()},
            {name: [column[row] for row in rows] for name, column in self.others.items()},
        )


NO_EVENTS = Events(0, {})


@dataclass(frozen=True, slots=True)
class Matches:
    """Pairs of event and interest numbers, sorted by event, then by interest."""

    events: Ids
    interests: Ids

    @classmethod
    def of(cls, events: Ids, interests: Ids) -> Matches:
        """Sort pairs."""
        order = np.lexsort((interests, events))
        return cls(events[order], interests[order])

    def __len__(self) -> int:
        return len(self.events)

    def pairs(self) -> list[tuple[int, int]]:
        """Return the pairs as a list."""
        return list(zip(self.events.tolist(), self.interests.tolist(), strict=True))


NONE = Matches(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of many interests as matrices, one row each; a column without a range is `free`."""

    columns: tuple[str, ...]
    low: Floats
    high: Floats
    free: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, interests: Sequence[Interest]) -> Ranges:
        """Build the matrices of interests."""
        columns = tuple(sorted({name for one in interests for name in one.between}))
        place = {name: n for n, name in enumerate(columns)}
        low = np.full((len(interests), len(columns)), -np.inf)
        high = np.full((len(interests), len(columns)), np.inf)
        free = np.ones(low.shape, dtype=np.bool_)
        for row, one in enumerate(interests):
            for name, (least, most) in one.between.items():
                low[row, place[name]], high[row, place[name]], free[row, place[name]] = least, most, False
        return cls(columns, low, high, free)

    def points(self, events: Events) -> Floats:
        """Return the events' values in the order of the columns; a column that is missing is NULL."""
        found = np.full((events.count, len(self.columns)), np.nan)
        for n, name in enumerate(self.columns):
            if name in events.numbers:
                found[:, n] = events.numbers[name]
        return found

    def narrow(self, points: Floats, rows: Ids, interests: Ids) -> tuple[Ids, Ids]:
        """Return the pairs whose event is in all ranges of the interest; each column removes some."""
        for n in self._order():
            value = points[rows, n]
            inside = (value >= self.low[interests, n]) & (value <= self.high[interests, n])
            if np.isnan(points[:, n]).any():
                inside |= self.free[interests, n]
            rows, interests = rows[inside], interests[inside]
        return rows, interests

    def _order(self) -> list[int]:
        """Return the columns, those that most interests constrain first."""
        return [int(n) for n in np.argsort(self.free.sum(axis=0), kind="stable")]
