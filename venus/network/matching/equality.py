"""A hash index for interests that compare columns with constants: the cost of an event is what it finds. Pure.

Each interest is filed under the values of one of its columns, the one by which it shares its place with the fewest
others. What is found there is then held against everything else that the interest asks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from venus.network.matching.interests import NONE, Events, Ids, Interest, Matches, Ranges


class Equality:
    """Interests with at least one equality."""

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
        """Return how many interests are looked at for these events."""
        return len(self._found(events))

    def match(self, events: Events) -> Matches:
        """Return every pair that matches."""
        found = self._found(events)
        if self._plain or not len(found):
            return found
        found = Matches(*self._ranges.narrowed(self._ranges.points(events), found.events, found.interests))
        if not any(self._rest):
            return found
        same = (self._same(events, row, number) for row, number in found.pairs())
        inside = np.fromiter(same, np.bool_, len(found))
        return Matches(found.events[inside], found.interests[inside])

    def _found(self, events: Events) -> Matches:
        rows: list[int] = []
        ids: list[Ids] = []
        for column, places in self._filed.items():
            there = list(map(places.get, _values(events, column)))  # None is filed nowhere
            rows += [row for row, found in enumerate(there) if found is not None]
            ids += [found for found in there if found is not None]
        if not rows:
            return NONE
        counts = np.fromiter(map(len, ids), np.int64, len(ids))
        return Matches.of(np.repeat(np.array(rows, np.int64), counts), np.concatenate(ids))

    def _same(self, events: Events, row: int, number: int) -> bool:
        return all(_values(events, name)[row] in values for name, values in self._rest[number].items())


def _values(events: Events, column: str) -> Sequence[Hashable]:
    found = events.others.get(column)
    if found is not None:
        return found
    return events.numbers[column].tolist() if column in events.numbers else [None] * events.count
