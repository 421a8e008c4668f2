"""What matching costs this broker: processor time of the last seconds, and pairs compared since the start. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from venus.network.matching.interests import Events

#: Half of the load that is reported is from the last so many seconds.
HALF_LIFE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedEvents:
    """Changes of one subspace that another broker is asked about, and the numbers of its interests."""

    table: str
    path: str
    digest: int
    events: Events
    numbers: frozenset[int]

    @property
    def pairs(self) -> int:
        """How many pairs would be compared one by one."""
        return self.events.count * len(self.numbers)


@dataclass(slots=True)
class MatchingLoad:
    """Counts the work of one broker."""

    pairs: int = 0
    changes: int = 0
    busy_s: float = 0.0
    _decayed: float = 0.0
    _at: float = field(default=-math.inf)

    def record(self, changes: int, interests: int, busy_s: float, now: float) -> None:
        """Record that changes were compared with interests."""
        self.pairs += changes * interests
        self.changes += changes
        self.busy_s += busy_s
        self._decayed = self._at_now(now) + busy_s
        self._at = now

    def rate(self, now: float) -> float:
        """Return the load in processor seconds a second."""
        return self._at_now(now) * math.log(2) / HALF_LIFE_S

    def _at_now(self, now: float) -> float:
        return self._decayed * 0.5 ** (max(0.0, now - self._at) / HALF_LIFE_S) if self._at > -math.inf else 0.0
