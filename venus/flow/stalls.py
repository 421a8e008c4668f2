"""How long a process did not get to run, found by looking at a clock in regular beats.

A process that was stopped, swapped out or short of a processor waits longer for an answer than the answer took. What
is missing between two beats is time in which it could not have seen one, so it says nothing of whoever was asked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: Gaps that are remembered; of older ones nothing is known, and nothing is discounted.
KEPT = 512


@dataclass(slots=True)
class Stalls:
    """The gaps between beats that were to come every `every_s` seconds."""

    every_s: float
    _last: float | None = None
    _gaps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def beat(self, now: float) -> None:
        """Note that the process runs."""
        if self._last is not None and now > self._last + self.every_s:
            self._gaps.append((self._last + self.every_s, now))
        self._last = now

    def rest(self) -> None:
        """Note that no beat is to be expected until the next one."""
        self._last = None

    def missing_s(self, since: float, now: float) -> float:
        """Return how much of the time from `since` to `now` the process did not run, as far as is known."""
        missing_s = 0.0
        if self._last is not None:  # the next beat is late already, or not due
            missing_s = max(0.0, now - max(self._last + self.every_s, since))
        for begin, end in reversed(self._gaps):  # in order, and mostly one of the last is asked for
            if end <= since:
                break
            missing_s += max(0.0, min(end, now) - max(begin, since))
        return missing_s
