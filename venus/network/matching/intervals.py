"""Ranges of many interests in arrays: every event against every interest, narrowed column by column. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from venus.network.matching.interests import NONE, Events, Floats, Ids, Interest, Matches, Ranges

#: Pairs that are looked at in one step: what fits into the processor's cache.
PAIRS = 1 << 20


class Intervals:
    """The best up to some hundreds of interests; the cost of an event grows with their number."""

    def __init__(self, interests: Sequence[Interest]) -> None:
        self._ranges = Ranges.of(interests)
        self._count = len(interests)

    def candidates(self, events: Events) -> int:
        """Return how many interests are looked at for these events."""
        return events.count * self._count

    def match(self, events: Events) -> Matches:
        """Return every pair that matches."""
        if not self._count or not events.count:
            return NONE
        points = self._ranges.points(events)
        step = max(1, PAIRS // self._count)
        found = [self._block(points[at : at + step], at) for at in range(0, events.count, step)]
        return Matches(np.concatenate([rows for rows, _ in found]), np.concatenate([ids for _, ids in found]))

    def _block(self, points: Floats, at: int) -> tuple[Ids, Ids]:
        rows = np.repeat(np.arange(len(points)), self._count)
        interests = np.tile(np.arange(self._count), len(points))
        rows, interests = self._ranges.narrowed(points, rows, interests)
        return rows + at, interests
