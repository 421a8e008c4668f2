"""How long to wait before the next poll. Pure: time is an argument.

A trickle must be seen within milliseconds (performance.md 8), an idle source must not be asked 500 times a second.
So the interval stays at its minimum for a while after traffic, then doubles up to its maximum.
"""

from __future__ import annotations

#: Polls stay fast for so long after the last change: longer than the gaps of a slow trickle.
RECENT_S = 0.5


class Pace:
    """The interval between two polls of an adapter that found nothing."""

    def __init__(self, *, min_s: float, max_s: float) -> None:
        self._min_s = min_s
        self._max_s = max(min_s, max_s)
        self._delay_s = min_s
        self._last_traffic = float("-inf")

    def traffic(self, now: float) -> None:
        """Note that a poll found changes."""
        self._last_traffic = now
        self._delay_s = self._min_s

    def delay_s(self, now: float) -> float:
        """Return the wait after a poll that found nothing."""
        if now - self._last_traffic < RECENT_S:
            return self._min_s
        delay = self._delay_s
        self._delay_s = min(self._max_s, delay * 2)
        return delay
